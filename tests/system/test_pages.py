"""Every console and Python block of the README and of docs/ is run, and prints what its page says."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import dasrel
from dasrel.names import FORMATS, KINDS
from tests.helpers.pages import DOCS, RUN, SHOWN, Session, blocks, name_of, pages

NOT_RUN = Counter(
    {
        "docs/explanation/performance.md": 1,  # benches, which test_readme.py runs
        "docs/howto/blast.md": 1,
        "docs/howto/kubernetes.md": 2,
        "docs/howto/mash.md": 1,
        "docs/howto/slurm.md": 2,
        "docs/howto/unifrac.md": 1,
        "docs/tutorial.md": 1,  # the demo, which test_readme.py runs
    }
)
"""Blocks that need programs which a test does not have: how many on each page. Each is marked there with its reason."""
BASH = {"README.md"}
"""The page whose `bash` blocks are the two commands that tests/system/test_readme.py runs."""
S3 = "docs/howto/s3.md"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.guarantee if name_of(page) == "README.md" else ())
        for page in pages()
        if name_of(page) != S3
    ],
    ids=name_of,
)
def test_a_page_prints_what_it_says(page: Path, tmp_path: Path) -> None:
    run(page, tmp_path)


@pytest.mark.usefixtures("s3")
def test_the_page_of_s3_prints_what_it_says(tmp_path: Path) -> None:
    """Against a server on this machine, which has the page's bucket."""
    run(DOCS.parent / S3, tmp_path)


def run(page: Path, folder: Path) -> None:
    session = Session(folder)
    for block in blocks(page):
        if block.is_run or block.file is not None:
            session.run(block)


def test_all_blocks_are_run_or_marked() -> None:
    unmarked = [
        block.where
        for page in pages()
        for block in blocks(page)
        if block.language not in (*RUN, *SHOWN) and not block.mark and name_of(page) not in BASH
    ]
    assert not unmarked  # neither run nor marked, or without a language
    indented = [name_of(page) for page in pages() if "\n ```" in page.read_text().replace("\n  ", "\n ")]
    assert not indented  # blocks() does not see those
    marks = [block.mark for page in pages() for block in blocks(page) if block.mark]
    assert all(mark.startswith(("file: ", "not run: ")) for mark in marks)
    assert Counter(block.page for page in pages() for block in blocks(page) if block.reason) == NOT_RUN


def test_the_documentation_builds_without_warnings(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", DOCS, tmp_path / "html"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    for page in pages()[1:]:
        assert (tmp_path / "html" / page.relative_to(DOCS).with_suffix(".html")).is_file()


def test_the_tables_are_complete() -> None:
    text = (DOCS / "reference" / "formats.md").read_text(encoding="utf-8")
    for name, meaning in FORMATS.items():
        assert f"| `{name}` | {meaning} |" in text
    for name, meaning in KINDS.items():
        assert f"| `{name}` | {meaning} |" in text


def test_all_public_names_are_in_the_reference() -> None:
    text = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    missing = [name for name in dasrel.__all__ if f":: dasrel.{name}\n" not in text and f"`dasrel.{name}`" not in text]
    assert missing == ["__version__"]
