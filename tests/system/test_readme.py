"""Every command that the README shows is run, and what it prints is what the README says."""

import doctest
import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from dasrel.vocabulary import FORMATS, KINDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEMO = "dasrel demo"  # run by the test of a fresh environment
INSTALL = f"python -m pip install . && {DEMO}"
TEST = 'python -m pip install ".[test]" && python -m pytest'


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def steps() -> list[tuple[str, str]]:
    """The commands of all console blocks in order, each with what the README says it prints."""
    found: list[tuple[str, str]] = []
    for line in "".join(blocks("console")).splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:].rstrip("\n"), ""))
        else:
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def shell(command: str, folder: Path, **more: str) -> str:
    """What a user at a shell sees, stdout and stderr together; the `dasrel` and `python` are those of this run."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    return done.stdout


def is_bench(command: str) -> bool:
    return command.startswith("python bench/")


def alike(shown: str, printed: str) -> bool:
    """Equal, where `...` in the README stands for anything; progress lines of a slow machine do not count."""
    kept = [line for line in printed.splitlines() if not re.match(r"\w+( \d+)?: [\d,]+ of [\d,]+ tiles?", line)]
    pattern = ".*".join(re.escape(part) for part in shown.rstrip("\n").split("..."))
    return re.fullmatch(pattern, "\n".join(kept).rstrip("\n")) is not None


def test_the_shell_blocks_are_the_two_commands() -> None:
    assert [block.strip() for block in blocks("bash")] == [INSTALL, TEST]
    assert TEST in (ROOT / ".ci" / "run").read_text(encoding="utf-8")  # the run that you are looking at


def test_the_session_prints_what_the_readme_says(tmp_path: Path) -> None:
    commands = [(command, shown) for command, shown in steps() if not is_bench(command) and command != DEMO]
    assert len(commands) >= 10
    for text in blocks("toml"):
        (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
    for command, shown in commands:
        printed = shell(command, tmp_path)
        assert alike(shown, printed), f"$ {command}\n{printed}"
    # The Python part goes on in the same folder.
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    here = Path.cwd()
    try:
        os.chdir(tmp_path)
        for text in blocks("python"):
            test = doctest.DocTestParser().get_doctest(text, {}, "README", "README.md", 0)
            runner.run(test)
    finally:
        os.chdir(here)
    assert runner.summarize(verbose=False).attempted > 0
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("command", [command for command, _ in steps() if is_bench(command)])
def test_measuring_prints_json_lines(command: str, tmp_path: Path) -> None:
    printed = shell(command, ROOT, TMPDIR=str(tmp_path))
    lines = [json.loads(line) for line in printed.splitlines()]
    assert lines
    assert all(isinstance(line, dict) for line in lines)


@pytest.mark.timeout(1200)
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
    shown = dict(steps())[DEMO]
    assert alike(shown, done.stdout[done.stdout.index("objects  ") :])
    (ROOT / "dasrel-demo.png").unlink()  # the demo leaves its picture where it was run


def test_the_tables_are_complete() -> None:
    for name, meaning in FORMATS.items():
        assert f"| `{name}` | {meaning} |" in README
    for name, meaning in KINDS.items():
        assert meaning in README, name
