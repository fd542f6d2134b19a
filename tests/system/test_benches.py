"""Every bench runs at a tiny size, as the page about performance shows it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.pages import DOCS, ROOT, blocks

PAGE = DOCS / "explanation" / "performance.md"
IN_TURN = """
import runpy, shlex, sys
for command in sys.argv[1:]:
    sys.argv = shlex.split(command)
    print(command, flush=True)
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""All in one process: most of the time of a tiny bench is that of importing libraries."""


@pytest.mark.slow
def test_every_bench_prints_json_lines(tmp_path: Path) -> None:
    shown = [command for block in blocks(PAGE) if block.language == "console" for command, _ in block.commands()]
    commands = [command.removeprefix("python ") for command in shown]
    benches = {f"bench/{path.name}" for path in (ROOT / "bench").glob("*.py")}
    assert {command.split()[0] for command in commands} == benches - {"bench/kills.py"}  # test_kills.py runs it

    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'bench'}"}
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN, *commands],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = dict.fromkeys(commands, 0)
    for line in done.stdout.splitlines():
        if line in lines:
            command = line
        else:
            assert isinstance(json.loads(line), dict), line
            lines[command] += 1
    assert min(lines.values()) > 0, lines
    assert {path.name for path in tmp_path.iterdir()} <= {"dask-scratch-space"}
