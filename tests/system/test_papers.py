"""The scripts of workflows/papers: all that the papers state is found, or its difference is explained."""

import csv
import html
import subprocess
import sys
from pathlib import Path

import pytest

PAPERS = Path(__file__).parents[2] / "workflows" / "papers"
pytestmark = pytest.mark.system


def script(name, *arguments):
    command = [sys.executable, str(PAPERS / f"{name}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=500)


@pytest.mark.parametrize(
    ("name", "option", "least", "pictures"),
    [
        ("l7", None, 20, 4),
        ("q09", None, 20, 5),
        ("k14", "gdp194", 30, 4),
        ("f09", "usps", 25, 7),
        pytest.param("f10", "breast", 14, 6, marks=pytest.mark.guarantee),
    ],
)
def test_what_the_papers_state(name, option, least, pictures, tmp_path):
    """At `least` so many figures can be checked without files that users name."""
    out = tmp_path / "out"
    done = script(name, out, "--quick")
    assert done.returncode == 0, done.stderr
    with open(out / "figures.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["what", "where", "paper", "ours", "verdict", "why"]
    assert len(rows) >= least
    assert [row for row in rows if row["verdict"] not in ("equal", "explained")] == []
    assert all(row["why"] for row in rows if row["verdict"] == "explained")
    assert len(list(out.glob("*.png"))) >= pictures
    page = (out / "report.html").read_text(encoding="utf-8")
    assert [row for row in rows if row["what"] not in html.unescape(page)] == []
    assert page.count("<img") >= pictures

    # what is done is not done again; a file that cannot be read is one line, and the rest is there
    before, parts = (out / "figures.csv").read_text(), len(list((out / "parts").glob("*.json")))
    (tmp_path / "wrong.csv").write_text("1,2\n3,4\n")
    given = [] if option is None else [f"--{option}", tmp_path / "wrong.csv"]
    again = script(name, out, "--quick", *given)
    assert again.stdout.count("done before") == parts
    assert (out / "figures.csv").read_text() == before
    told = [line for line in again.stderr.splitlines() if "wrong.csv" in line]
    assert (again.returncode, len(told)) == ((0, 0) if option is None else (1, 1))
    assert "Traceback" not in again.stderr


@pytest.mark.parametrize(("ours", "verdict"), [(2.004, "equal"), (2.5, "explained"), (3.1, "differs")])
def test_verdicts(ours, verdict, monkeypatch):
    monkeypatch.syspath_prepend(str(PAPERS))
    from common import Expected

    assert Expected("x", "y", 2.0, 0.005, "a misprint", (2.4, 3.0)).verdict(ours) == verdict
    assert Expected("x", "y", 2.0, 0.005).verdict(ours) == ("equal" if verdict == "equal" else "differs")
