"""The command that writes a page: what it prints, what it refuses, and the page of a workflow."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import workflows
from tests.helpers.processes import ran
from tests.helpers.report_pages import read_page

Here = Callable[..., Any]


@pytest.fixture(scope="module")
def made(grouped_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a result of two settings, and one of a single setting."""
    home = tmp_path_factory.mktemp("made")
    store = str(grouped_store)
    assert ran("cluster", store, home / "two", "--clusters", "2,3", "--rule", "hard", "--n-init", 1, "-q") == 0
    assert ran("cluster", store, home / "one", "--clusters", 3, "--rule", "hard", "--n-init", 1, "-q") == 0
    return home


@pytest.fixture
def result(made: Path, tmp_path: Path) -> Path:
    """A copy of the single setting, to be damaged."""
    return Path(shutil.copytree(made / "one", tmp_path / "one"))


@pytest.mark.slow
def test_it_says_what_is_on_the_page(made: Path, tmp_path: Path, here: Here) -> None:
    done = here("report", made / "one", made / "two", "--out", tmp_path / "p.html")
    assert done.returncode == 0
    assert [line.split("  ")[0] for line in done.stdout.splitlines()] == ["clustering", "clustering", "page"]
    assert "3 clusters of 90 objects, hard" in done.stdout
    size = (tmp_path / "p.html").stat().st_size
    assert f"{size:,} bytes" in done.stdout
    values = json.loads(here("report", made / "one", "-o", tmp_path / "p.html", "--force", "--json").stdout)
    assert values["bytes"] == (tmp_path / "p.html").stat().st_size
    assert (values["scans"], len(values["results"])) == (1, 1)


def test_the_default_is_in_this_folder(made: Path, tmp_path: Path, here: Here) -> None:
    assert here("report", made / "one", cwd=tmp_path).returncode == 0
    assert read_page(tmp_path / "report.html").headings[0] == "3 clusters of 90 objects, hard"


def cut(path: Path, share: float = 0.6) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def lines(path: Path, count: int) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:count]))


def without(path: Path, key: str) -> None:
    values = json.loads(path.read_text())
    del values[key]
    path.write_text(json.dumps(values))


def led_elsewhere(path: Path) -> None:
    values = json.loads(path.read_text())
    values["settings"][0]["folder"] = "../../etc"
    path.write_text(json.dumps(values))


DAMAGE = {
    "truncated JSON": (lambda one: cut(one / "result.json"), "result.json is damaged: it is not JSON"),
    "an empty JSON file": (lambda one: (one / "result.json").write_text(""), "is damaged: it is not JSON"),
    "JSON of something else": (lambda one: (one / "result.json").write_text("{}"), "are those of no result of dasrel"),
    "a list": (lambda one: (one / "result.json").write_text("[]"), "is damaged: it is JSON, but no object"),
    "a key is missing": (lambda one: without(one / "result.json", "n_objects"), "is damaged: it has no 'n_objects'"),
    "a folder elsewhere": (lambda one: led_elsewhere(one / "result.json"), "'../../etc' is no folder of a setting"),
    "a truncated line": (lambda one: cut(one / "labels.csv"), "labels.csv is damaged"),
    "missing lines": (lambda one: lines(one / "labels.csv", 41), "is damaged: it has 40 lines for 90 objects"),
    "truncated runs": (lambda one: cut(one / "runs.csv", 0.95), "runs.csv is damaged: row 1 has"),
    "no runs": (lambda one: lines(one / "runs.csv", 1), "runs.csv is damaged: it has 0 runs of 1"),
    "text for numbers": (
        lambda one: (one / "labels.csv").write_text("id,label\n" + "a,b\n" * 90), "labels.csv is damaged"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", DAMAGE)
def test_a_damaged_result_is_one_line(fault: str, result: Path, tmp_path: Path, here: Here) -> None:
    damage, message = DAMAGE[fault]
    damage(result)
    done = here("report", result, "-o", tmp_path / "p.html")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert "unexpected" not in done.stderr
    assert not (tmp_path / "p.html").exists()


def test_memberships_that_are_cut_are_no_reason_to_fail(result: Path, tmp_path: Path, here: Here) -> None:
    """Only pictures need them, and the page says so."""
    cut(result / "memberships.npy")
    assert here("report", result, "-o", tmp_path / "p.html").returncode == 0
    assert any("memberships.npy is damaged" in text for _, text in read_page(tmp_path / "p.html").notes)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "there is no result .*nothing; give a folder that a command has written"),
        ("empty", "empty is no result: it has no result.json, run.state.json or figures.csv, and is no store"),
        (".", "is no result, but has some in it; give them: .*one"),
        ("two/best", "best is one setting of a result; give the result itself, .*two$"),
        ("d.npy", "d.npy is no result; give a folder of results, a store, a .json file or an .npz file"),
        ("other.json", "other.json is JSON, but not of a command that a page is made of"),
        ("broken.npz", "broken.npz is not a dasrel Euclideanisation"),
        ("figures", "figures.csv is damaged: it has no column paper, ours, verdict and 1 more"),
        ("s3://bucket/out", "results are read from this machine; copy them to it"),
    ],
)
def test_what_is_no_result_is_one_line(name: str, message: str, made: Path, tmp_path: Path, here: Here) -> None:
    home = Path(shutil.copytree(made, tmp_path / "home"))
    (home / "empty").mkdir()
    np.save(home / "d.npy", np.zeros(3))
    (home / "other.json").write_text('{"a": 1}')
    (home / "broken.npz").write_bytes(b"PK")
    (home / "figures").mkdir()
    (home / "figures" / "figures.csv").write_text("what,where\na,b\n")
    done = here("report", name if "://" in name else home / name, "-o", tmp_path / "p.html")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert re.search(message, done.stderr.strip()), done.stderr
    assert not (tmp_path / "p.html").exists()


def test_where_it_cannot_be_written(made: Path, tmp_path: Path, here: Here) -> None:
    (tmp_path / "p.html").write_text("mine")
    done = here("report", made / "one", "-o", tmp_path / "p.html")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "exists; choose another name, or say --force to replace it" in done.stderr
    assert (tmp_path / "p.html").read_text() == "mine"
    done = here("report", made / "one", "-o", tmp_path / "no" / "p.html")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cannot be written (No such file or directory); choose another place" in done.stderr
    done = here("report", made / "one", "-o", tmp_path)
    assert "is a folder; give the name of a file" in done.stderr
    done = here("report", made / "one" / "result.json", "-o", made / "one" / "result.json", "--force")
    assert "would replace what is read" in done.stderr
    done = here("report", made / "one", "-o", tmp_path / "page.pdf")
    assert (done.returncode, (tmp_path / "page.pdf").exists()) == (1, False)
    assert "page.pdf is HTML; give it a name that ends in .html" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/self/mounts").exists(), reason="root may write everywhere")
def test_a_read_only_place(made: Path, here: Here) -> None:
    """/proc takes no new files, not even from root."""
    done = here("report", made / "one", "-o", "/proc/page.html")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "/proc/page.html" in done.stderr


# ------------------------------------------------------------------------------------------------------------ workflows


@pytest.mark.slow
def test_a_workflow_writes_its_page(tmp_path: Path, here: Here) -> None:
    workflows.begin(tmp_path, "report = true\n" + workflows.SMALL)
    done = here("run", tmp_path / "w.toml", "--json")
    assert done.returncode == 0
    page = tmp_path / "w" / "report.html"
    assert json.loads(done.stdout)["report"] == str(page)
    found = read_page(page)
    assert found.said("All 10 steps are done.")
    assert [row[:3] for row in found.tables["steps"][1:]][:2] == [
        ["matrix", "import", "done"],
        ["spectrum", "spectrum", "done"],
    ]
    kinds = {text.partition(":")[0] for text in found.headings if ": " in text}
    assert kinds == {"Workflow", "Matrix", "Spectrum", "Euclideanisation", "Clustering", "Tree"}
    assert {"ivat.png", "labels.png", "who.png"} <= set(found.captions)
    assert found.size < 1_000_000

    written = page.stat().st_mtime_ns
    assert here("run", tmp_path / "w.toml").stdout.splitlines()[-2].split()[0] == "page"
    assert page.stat().st_mtime_ns == written  # nothing has changed
    page.unlink()
    assert here("run", tmp_path / "w.toml").returncode == 0
    assert page.is_file()
    page.write_text("mine")
    workflows.edit(tmp_path / "w.toml", ('rule = "fcm1"\nclusters = 2', 'rule = "fcm1"\nclusters = 3'))
    done = here("run", tmp_path / "w.toml")
    assert done.returncode == 0
    assert "report.html exists and is no page of dasrel; move it away" in done.stderr
    assert page.read_text() == "mine"


def test_a_failed_step_is_on_the_page(tmp_path: Path, here: Here) -> None:
    matrix = "report = true\n[import]\nsource = 'd.npy'\nkind = 'distance'\n"
    workflows.begin(tmp_path, matrix + "[cluster]\nrule = 'hard'\nclusters = 99\n[tree]\n")
    assert here("run", tmp_path / "w.toml").returncode == 1
    found = read_page(tmp_path / "w" / "report.html")
    assert found.said("Failed: cluster")
    state = json.loads((tmp_path / "w" / "run.state.json").read_text())
    (message,) = [row[-1] for row in found.shown["steps"] if row[0] == "cluster"]
    assert message == state["steps"]["cluster"]["now"]["message"]
    assert "99" in message


def test_a_wrong_value_of_report_is_refused(tmp_path: Path, here: Here) -> None:
    workflows.begin(tmp_path, "report = 'yes'\n" + workflows.SMALL)
    done = here("run", tmp_path / "w.toml")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "report: 'yes' is neither true nor false" in done.stderr


OTHERS: tuple[Any, ...] = (None, True, -1, 2.5, 10**400, float("nan"), "x", [], {}, [[1]], {"x": 1}, ["x"])
"""Values of every type that JSON has, in the place of others."""


@pytest.mark.slow
def test_a_value_of_another_type_is_one_line_or_does_not_matter(result: Path, tmp_path: Path, here: Here) -> None:
    """Every key of a result, and of its first setting, in turn."""
    file = result / "result.json"
    good = json.loads(file.read_text())
    places = [(good, name) for name in good] + [(good["settings"][0], name) for name in good["settings"][0]]
    for k, (part, name) in enumerate(places):
        kept = part[name]
        for value in (OTHERS[k % len(OTHERS)], OTHERS[(5 * k + 3) % len(OTHERS)]):
            part[name] = value
            file.write_text(json.dumps(good))
            done = here("report", result, "-o", tmp_path / "p.html", "--force")
            lines = [line for line in done.stderr.splitlines() if "warning" not in line]
            assert (done.returncode, len(lines)) in ((0, 0), (1, 1)), (name, value, done.stderr)
            assert "unexpected" not in done.stderr, (name, value)
        part[name] = kept
