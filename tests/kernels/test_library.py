"""The loading of the compiled library, and the report of which is in use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dasrel.io.readers import stream as streams
from dasrel.kernels import checks, native, products

FACTS = """
import numpy as np
from dasrel.kernels import native
from dasrel.io.readers import stream as streams
from dasrel.kernels import checks, products
print(native.signature(), native.described(), sep="|")
print(products.has_native_products(), checks._native_checks() is not None, streams.library() is not None)
"""


def facts(**environment: str) -> list[str]:
    """What a fresh process says of the kernels in use."""
    done = subprocess.run(
        [sys.executable, "-c", FACTS], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return done.stdout.splitlines()


def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
    assert native.library.__wrapped__() is None


def test_versions_in_c_and_python_are_the_same() -> None:
    """Else an installed library would never be used."""
    source = Path(native.library_path()).parent / "csrc" / "library.c"
    found = re.search(r"dasrel_library_version\(void\) \{ return (\d+); \}", source.read_text(encoding="utf-8"))
    assert found is not None
    assert int(found[1]) == native.VERSION


def test_without_a_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "_native.so"
    monkeypatch.setattr(native, "library_path", lambda: str(file))
    assert native.library.__wrapped__() is None
    file.write_bytes(b"not a library")
    assert native.library.__wrapped__() is None


def test_what_uses_vectors_is_there_together() -> None:
    assert products.has_native_products() == (checks._native_checks() is not None) == bool(native.instruction_set())
    assert streams.library() is not None or native.library() is None


def test_it_is_switched_off_by_the_environment() -> None:
    assert facts(DASREL_NO_NATIVE="1") == ["numpy|none, NumPy", "False False False"]
    usual = f"{native.signature()}|{native.described()}"
    if not os.environ.get("DASREL_NO_NATIVE"):
        assert facts(DASREL_NO_NATIVE="0")[0] == facts(DASREL_NO_NATIVE="")[0] == usual


@pytest.mark.skipif(not native.instruction_set(), reason="no vector kernels here")
def test_the_signature_names_instructions_and_version() -> None:
    assert native.signature() == f"{native.instruction_set()}-{native.VERSION}"
    assert native.instruction_set() in ("avx2", "neon")


def test_rows_that_the_library_takes() -> None:
    array = np.zeros((4, 6))
    assert native.in_rows(array)
    assert native.in_rows(array[:, 1:3])
    assert native.in_rows(array[::2])
    assert not native.in_rows(array[::-1])
    assert not native.in_rows(array[:, ::2])
    assert not native.in_rows(array.T)
