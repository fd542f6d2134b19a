"""The command that CONTRIBUTING adds works as it says, by its file and its name alone."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasrel.cli import app
from dasrel.commands import operations
from tests.helpers.matrices import distances, uniform_points
from tests.helpers.stores import stored

ROOT = Path(__file__).parents[2]


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the command `alone`: its file stands outside the package, so that a broken test leaves nothing in it."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    source = re.search(r'```python\n("""Count the objects.*?)```', text, re.DOTALL)
    assert source is not None
    path = tmp_path / "alone.py"
    path.write_text(source[1], encoding="utf-8")
    spec: Any = importlib.util.spec_from_file_location("dasrel.commands.alone", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "dasrel.commands.alone", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(app, "OPERATIONS", ("alone",))
    monkeypatch.setattr("dasrel.cli.commands.summary", lambda name: source[1].split('"""')[1])
    assert "alone" not in operations.OPERATIONS


def test_a_command_is_one_file(added: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    D = distances(uniform_points(40, 3, 1))
    store = str(stored(tmp_path / "d.zarr", D, dtype="float64", tile=16) and tmp_path / "d.zarr")
    np.fill_diagonal(D, np.inf)
    nearest = D.min(axis=1)
    within = float(np.median(nearest))
    assert app.run(["alone", store, "--beyond", repr(within), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["n_objects"], printed["alone"]) == (40, int((nearest > within).sum()))
    assert app.run(["alone", store, "--beyond", repr(within), "--dry-run"]) == 0
    assert "scans" in capsys.readouterr().out
    assert app.run(["alone", "--help"]) == 0
    assert "Count the objects of a STORE" in capsys.readouterr().out
    assert app.run(["alone", store, "--beyond", "-1"]) == 1
    assert "beyond is -1" in capsys.readouterr().err
