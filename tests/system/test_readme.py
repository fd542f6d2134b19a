"""The README: its two commands, its length, and the demo in a fresh environment."""

import os
import re
import subprocess
import venv
from pathlib import Path

from dasrel.cli.app import COMMANDS
from dasrel.commands.operations import OPERATIONS
from tests.helpers.pages import DOCS, ROOT, alike, blocks

README = ROOT / "README.md"
DEMO = "dasrel demo"
INSTALL = f"python -m pip install . && {DEMO}"
TEST = 'python -m pip install ".[test]" && python -m pytest'


def test_the_shell_blocks_are_the_two_commands() -> None:
    assert [block.text.strip() for block in blocks(README) if block.language == "bash"] == [INSTALL, TEST]
    assert TEST in (ROOT / ".ci" / "run").read_text(encoding="utf-8")  # the run that you are looking at


def test_the_readme_is_short_and_its_links_exist() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert len(text.split()) <= 900
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_every_command_is_named() -> None:
    table = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    assert [name for name in [*COMMANDS, *OPERATIONS] if f"| `dasrel {name} " not in table] == []


def test_a_fresh_environment_installs_and_shows_the_demo(tmp_path: Path) -> None:
    """The first command of the README, with nothing installed but Python and its own pip."""
    venv.create(tmp_path / "fresh", with_pip=True)
    scripts = tmp_path / "fresh" / "bin"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        ["bash", "-c", INSTALL], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    commands = dict(command for block in blocks(DOCS / "tutorial.md") if block.reason for command in block.commands())
    assert alike(commands[DEMO], done.stdout[done.stdout.index("objects  ") :])
    for name in ("dasrel-demo.png", "dasrel-demo.html"):  # the demo leaves them where it was run
        (ROOT / name).unlink()
