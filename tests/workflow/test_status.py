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


def test_a_state_with_values_of_another_type_is_refused_by_its_key(done_workflow: Path) -> None:
    file = done_workflow / "w" / "run.state.json"
    good = json.loads(file.read_text())
    StateFile(file)
    records = [record["done"] for record in good["steps"].values()]
    named = ("kind", "key", "parameters", "inputs", "outputs", "content", "parts", "ended", "seconds", "result")
    places = [(record, name) for record in records for name in named if record[name] is not None]
    places += [(good["files"], name) for name in list(good["files"])[:2]] + [(good, "steps"), (good, "files")]
    for part, name in places:
        kept = part[name]
        for value in (True, -1, 10**400, float("nan"), "x", [], [[1]], {"x": 1}, {"x": [1]}):
            if isinstance(value, type(kept)) and value != {"x": [1]}:
                continue  # another value of its own type
            if isinstance(kept, float) and value == -1:
                continue
            part[name] = value
            file.write_text(json.dumps(good))
            if name in ("parameters", "result") and isinstance(value, dict):
                StateFile(file)
                continue
            with pytest.raises(StoreError, match=r"run\.state\.json cannot be read \(.*(steps|files).*move it"):
                StateFile(file)
        part[name] = kept
