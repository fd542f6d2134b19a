"""A few hundred seeded cases of damaged inputs; `python -m tests.system.fuzz` runs any number."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def fuzzed(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run cases in a process of their own: it forks, which one with threads, as a test's, must not."""
    line = [sys.executable, "-m", "tests.system.fuzz", *map(str, arguments)]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)


def test_damaged_inputs_are_refused_in_one_line_or_read_rightly() -> None:
    done = fuzzed("--cases", 300, "--seed", 0, "--jobs", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 cases, 0 faults" in done.stdout


def test_the_reader_of_pairs_stays_inside_of_its_arrays(tmp_path: Path) -> None:
    """A hundred thousand inputs that libFuzzer makes up, with the sanitizers; the source says how to run more."""
    clang = shutil.which("clang")
    if clang is None:
        pytest.skip("clang is not installed")
    flags = ("-g", "-O1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")
    sources = (Path(__file__).with_name("pair_list_fuzz.c"), ROOT / "dasrel/kernels/csrc/pair_list.c")
    built = subprocess.run(
        [clang, *flags, *sources, "-o", tmp_path / "fuzz"], capture_output=True, text=True, check=False
    )
    if "libclang_rt" in built.stderr:
        pytest.skip("clang has no libFuzzer (Debian: libclang-rt-dev)")
    assert built.returncode == 0, built.stderr
    # Where a process may not be traced, as in some containers, even a program without leaks fails when it ends.
    options = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    line = [tmp_path / "fuzz", "-runs=100000", "-seed=1", "-timeout=20"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path, env=options, timeout=300)
    assert done.returncode == 0, done.stderr
