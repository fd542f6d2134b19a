"""The C sources, compiled in other ways than for use: with sanitizers, for ARM, by other compilers."""

from __future__ import annotations

import ast
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("driver.c")


def build_settings() -> dict[str, Any]:
    """The constants of the build hook, which itself can be imported by hatchling only."""
    parsed = ast.parse((ROOT / "hatch_build.py").read_text(encoding="utf-8"))
    found = {}
    for node in parsed.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


BUILD = build_settings()
SOURCES = [ROOT / BUILD["FOLDER"] / name for name in BUILD["SOURCES"]]
FLAGS = [flag for flag in BUILD["FLAGS"] if flag not in ("-fPIC", "-shared")]


def compiled(compiler: str, out: Path, *flags: str) -> Path:
    """The driver with all sources, compiled so that a warning is an error."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    command = [compiler, *FLAGS, "-Werror", *flags, "-o", out, DRIVER, *SOURCES, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_all_sources_are_built() -> None:
    assert sorted(SOURCES) == sorted((ROOT / "dasrel").rglob("*.c"))


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compiles_without_warnings_and_agrees_with_plain_loops(compiler: str, tmp_path: Path) -> None:
    driver = compiled(compiler, tmp_path / "driver")
    done = subprocess.run([driver], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_no_access_outside_of_arrays_and_no_undefined_behaviour(tmp_path: Path) -> None:
    plain = tmp_path / "plain.c"
    plain.write_text("int main(void) { return 0; }\n")
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    if (
        shutil.which("gcc") is None
        or subprocess.run(["gcc", *sanitizers, "-o", tmp_path / "plain", plain], capture_output=True).returncode
    ):
        pytest.skip("there is no gcc with address and undefined-behaviour sanitizers")
    driver = compiled("gcc", tmp_path / "driver", "-O0", *sanitizers)
    # Where a process may not be traced, as in some containers, even a program without leaks fails when it ends.
    finds_leaks = subprocess.run([tmp_path / "plain"], capture_output=True).returncode == 0
    options = {} if finds_leaks else {"ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([driver], capture_output=True, text=True, env={**os.environ, **options})
    assert (done.returncode, done.stderr) == (0, "")


def test_runs_on_64_bit_arm(tmp_path: Path) -> None:
    """On another processor under an emulator."""
    if platform.machine() in ("aarch64", "arm64"):
        pytest.skip("this is such a processor, and all other tests run on it")
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("qemu-aarch64 is not installed (Debian: qemu-user)")
    driver = compiled("aarch64-linux-gnu-gcc", tmp_path / "driver", "-static")
    done = subprocess.run(["qemu-aarch64", driver], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("neon-")


def test_vector_code_has_no_intrinsics_of_one_processor() -> None:
    """The exception is the search for delimiters, which has a portable form beside it."""
    for source in (ROOT / BUILD["FOLDER"]).iterdir():
        if source.name != "pair_list.c":
            assert "mmintrin.h" not in source.read_text(encoding="utf-8")
            assert "arm_neon.h" not in source.read_text(encoding="utf-8")
