"""The state of a workflow: its file, and what a file, a folder or a store is known by."""

import json
from pathlib import Path
from typing import Any

import pytest

from dasrel.errors import InputError, StoreError
from dasrel.workflow.status import VERSION, ContentHashes, Log, StateFile, read


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


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        ({"done": {"key": "k"}}, "done.kind: field required"),
        ({"now": {"status": "gone", "key": "k", "began": "t"}}, "now.status: input should be"),
        ({"ours": 3}, "ours: input should be a valid list"),
        ([], "input should be a valid dictionary"),
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, record: Any, fault: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"version": VERSION, "steps": {"one": record}, "files": {}}))
    with pytest.raises(StoreError, match=f"cannot be read .*{fault}.*move it"):
        StateFile(path)
