"""The loading of the compiled library, and the report of which is in use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dasrel import kernels
from dasrel.io.readers import stream as streams
from dasrel.kernels import checks, products

FACTS = """
import numpy as np
from dasrel import kernels
from dasrel.io.readers import stream as streams
from dasrel.kernels import checks, products
print(kernels.signature(), kernels.described(), sep="|")
print(products.has_native_products(), checks._native_checks() is not None, streams.library() is not None)
"""


def facts(**environment: str) -> list[str]:
    """What a fresh process says of the kernels in use."""
    done = subprocess.run(
        [sys.executable, "-c", FACTS], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return done.stdout.splitlines()


def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "VERSION", kernels.VERSION + 1)
    assert kernels.library.__wrapped__() is None


def test_versions_in_c_and_python_are_the_same() -> None:
    """Else an installed library would never be used."""
    source = Path(kernels.library_path()).parent / "csrc" / "library.c"
    found = re.search(r"dasrel_library_version\(void\) \{ return (\d+); \}", source.read_text(encoding="utf-8"))
    assert found is not None
    assert int(found[1]) == kernels.VERSION


def test_without_a_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "_native.so"
    monkeypatch.setattr(kernels, "library_path", lambda: str(file))
    assert kernels.library.__wrapped__() is None
    file.write_bytes(b"not a library")
    assert kernels.library.__wrapped__() is None


def test_what_uses_vectors_is_there_together() -> None:
    assert products.has_native_products() == (checks._native_checks() is not None) == bool(kernels.instruction_set())
    assert streams.library() is not None or kernels.library() is None


def test_it_is_switched_off_by_the_environment() -> None:
    assert facts(DASREL_NO_NATIVE="1") == ["numpy|none, NumPy", "False False False"]
    usual = f"{kernels.signature()}|{kernels.described()}"
    if not os.environ.get("DASREL_NO_NATIVE"):
        assert facts(DASREL_NO_NATIVE="0")[0] == facts(DASREL_NO_NATIVE="")[0] == usual


@pytest.mark.skipif(not kernels.instruction_set(), reason="no vector kernels here")
def test_the_signature_names_instructions_and_version() -> None:
    assert kernels.signature() == f"{kernels.instruction_set()}-{kernels.VERSION}"
    assert kernels.instruction_set() in ("avx2", "neon")


def test_rows_that_the_library_takes() -> None:
    array = np.zeros((4, 6))
    assert kernels.in_rows(array)
    assert kernels.in_rows(array[:, 1:3])
    assert kernels.in_rows(array[::2])
    assert not kernels.in_rows(array[::-1])
    assert not kernels.in_rows(array[:, ::2])
    assert not kernels.in_rows(array.T)
