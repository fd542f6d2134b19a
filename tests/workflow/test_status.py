"""ContentHashes: what a file, a folder or a store is known by."""

from pathlib import Path

import pytest

from dasrel.errors import InputError
from dasrel.workflow.status import ContentHashes, Log, read


def test_words_of_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    known = ContentHashes()
    first = known.of(tmp_path / "a")
    assert first == read(tmp_path / "a") != read(tmp_path / "a" / "x")
    (tmp_path / "a" / "y").write_text("2")
    assert known.of(tmp_path / "a") != first
    assert read(tmp_path / "a", leave_out=("y",)) == first
    with pytest.raises(InputError, match="does not exist"):
        known.of(tmp_path / "b")


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        Log(str(tmp_path / "no" / "log"))
