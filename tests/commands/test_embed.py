"""`dasrel embed`: files, formats of others, colours, interruptions, and what is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasrel
from dasrel.cli import app
from dasrel.commands.operations import operation
from dasrel.util import progress
from tests.helpers.commands import prepared
from tests.helpers.matrices import distances, gram, grouped_points
from tests.helpers.stores import files, stored

N = 60
IDS = [f"obj {k}" for k in range(N)]
D = distances(grouped_points(N), "cityblock")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    stored("d.zarr", D, ids=IDS, dtype="float64", tile=25)
    return tmp_path


def read_ordination(path: Path) -> dict[str, Any]:
    """Read a file by the specification of scikit-bio's format: six sections in order, blank lines between them."""
    sections = path.read_text(encoding="utf-8").split("\n\n")
    found: dict[str, Any] = {}
    assert len(sections) == 6
    for name, dimensions, text in zip(
        ("Eigvals", "Proportion explained", "Species", "Site", "Biplot", "Site constraints"),
        (1, 1, 2, 2, 2, 2), sections, strict=True,
    ):  # fmt: skip
        header, *lines = text.rstrip("\n").split("\n")
        title, *shape = header.split("\t")
        assert (title, len(shape)) == (name, dimensions)
        rows = [line.split("\t") for line in lines]
        if dimensions == 1:
            assert len(rows) == 1
            assert len(rows[0]) == int(shape[0])
            found[name] = np.array(rows[0], dtype=float)
        elif shape == ["0", "0"]:
            assert rows == []
        else:
            assert len(rows) == int(shape[0])
            assert {len(row) - 1 for row in rows} == {int(shape[1])}
            found[name] = [row[0] for row in rows], np.array([row[1:] for row in rows], dtype=float)
    return found


@pytest.mark.slow
def test_files_have_the_axes_of_the_dense_matrix(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.watch() as counted:
        assert app.run(["embed", "d.zarr", "out", "--components", "3", "--tol", "1e-8", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    saved = json.loads(Path("out/result.json").read_text())
    assert printed == saved
    assert printed["scans"] == counted.scans
    names = ["coordinates.csv", "eigenvalues.csv", "embedding.png", "ordination.txt", "result.json"]
    assert sorted(one.name for one in Path("out").iterdir()) == names

    values, vectors = np.linalg.eigh(gram(D**2))
    values, vectors = values[::-1][:3], vectors[:, ::-1][:, :3]
    with open("out/coordinates.csv", encoding="utf-8", newline="") as lines:
        header, *rows = csv.reader(lines)
    assert header == ["id", "axis1", "axis2", "axis3"]
    assert [row[0] for row in rows] == IDS
    X = np.array([row[1:] for row in rows], dtype=float)
    np.testing.assert_allclose(np.abs(X), np.abs(vectors * np.sqrt(values)), atol=1e-6)
    with open("out/eigenvalues.csv", encoding="utf-8", newline="") as lines:
        table = list(csv.DictReader(lines))
    np.testing.assert_allclose([float(row["eigenvalue"]) for row in table], values, rtol=1e-8)
    assert float(table[2]["cumulative_share"]) == pytest.approx(sum(printed["shares"]), rel=1e-12)

    ordination = read_ordination(Path("out/ordination.txt"))
    np.testing.assert_array_equal(ordination["Eigvals"], printed["eigenvalues"])
    np.testing.assert_array_equal(ordination["Proportion explained"], printed["shares"])
    assert ordination["Site"][0] == IDS
    np.testing.assert_array_equal(ordination["Site"][1], X)


@pytest.mark.slow
def test_colours_come_from_results_and_labels(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        app.run(["cluster", "d.zarr", "clusters", "--rule", "fcm2", "--clusters", "3", "--n-init", "1", "--quiet"]) == 0
    )
    Path("labels.csv").write_text("id,label\n" + "".join(f"{name},g{k % 3}\n" for k, name in enumerate(IDS[::-1])))
    job = prepared("embed", "d.zarr", "new", result="clusters")
    assert job.colours is not None
    assert job.colours.memberships is not None
    np.testing.assert_allclose(job.colours.memberships, np.load("clusters/memberships.npy"), rtol=1e-6)
    by_name = prepared("embed", "d.zarr", "new", labels="labels.csv").colours
    assert by_name is not None
    assert by_name.names == ("g0", "g1", "g2")
    np.testing.assert_array_equal(by_name.labels, (np.arange(N) % 3)[::-1])

    drawn = {}
    for name, more in {"plain": [], "fuzzy": ["--result", "clusters"], "named": ["--labels", "labels.csv"]}.items():
        assert app.run(["embed", "d.zarr", name, "--components", "3", *more]) == 0
        drawn[name] = Path(name, "embedding.png").read_bytes()
    assert len(set(drawn.values())) == 3
    assert "of the positive eigenvalues" in capsys.readouterr().out
    assert app.run(["embed", "d.zarr", "none", "--components", "3", "--no-picture", "--quiet"]) == 0
    assert not Path("none/embedding.png").exists()


def test_an_interrupted_embedding_is_resumed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = "--checkpoint kept --components 3 --no-picture"
    assert app.run(f"embed d.zarr out {kept}".split()) == 0
    assert not Path("kept").exists()
    assert app.run(f"embed d.zarr later {kept} --time-limit 0.000001s".split()) == 75
    assert not Path("later").exists()
    assert app.run(f"embed d.zarr later {kept} --resume".split()) == 0
    whole, later = files(Path("out")), files(Path("later"))
    assert {name: text for name, text in whole.items() if name != "result.json"} == {
        name: text for name, text in later.items() if name != "result.json"
    }
    capsys.readouterr()
    with progress.watch() as counted:
        assert app.run(f"embed d.zarr later {kept} --resume --json".split()) == 0
    assert counted.scans == 0
    assert json.loads(capsys.readouterr().out)["nothing_to_do"] is True


def test_names_that_the_format_cannot_hold(place: Path) -> None:
    stored("odd.zarr", D, ids=["a\tb", " c", *IDS[2:]], dtype="float64")
    with pytest.warns(dasrel.DasrelWarning, match="ordination.txt is not written"):
        prepared("embed", "odd.zarr", "out", n_components=2, picture=False).run()
    assert sorted(one.name for one in Path("out").iterdir()) == ["coordinates.csv", "eigenvalues.csv", "result.json"]
    with open("out/coordinates.csv", encoding="utf-8", newline="") as lines:
        assert [row["id"] for row in csv.DictReader(lines)] == ["a\tb", " c", *IDS[2:]]


def test_shares_are_said_to_be_estimates(place: Path) -> None:
    """The sum of all positive eigenvalues is at least its bound, and a true share is at most what is said."""
    values = np.linalg.eigvalsh(gram(D**2))
    whole = values[values > 0].sum()
    for count in (1, 4):
        result = prepared("embed", "d.zarr", f"out{count}", n_components=count, picture=False).run()
        assert result["n_negative"]
        assert result["positive_sum_least"] <= whole * (1 + 1e-9)
        line = dict(operation("embed").lines(result))["axes"]
        assert line.startswith(f"{count}, about ")
        most = float(line.rpartition("at most ")[2].rstrip("%")) / 100
        assert most >= values[::-1][:count].sum() / whole - 1e-3  # rounded to a tenth of a percent


def test_fewer_axes_are_given_and_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored("e.zarr", distances(grouped_points(N)), dtype="float64")
    assert app.run(["embed", "e.zarr", "out", "--json", "--no-picture"]) == 0
    printed = capsys.readouterr()
    assert "warning: 10 axes were requested and 3 eigenvalues are positive" in printed.err
    assert json.loads(printed.out)["n_components"] == 3


@pytest.mark.slow
def test_what_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("few.csv").write_text("label\na\nb\n")
    for line, message in [
        ("embed d.zarr out --components 0", "--components"),
        ("embed d.zarr out --labels none.csv", "there is no file none.csv"),
        ("embed d.zarr out --labels few.csv", "few.csv has 2 labels and the store 60 objects"),
        ("embed d.zarr d.zarr", "would replace what is read"),
        ("embed none.zarr out", "none.zarr"),
    ]:
        assert app.run(line.split()) == 1, line
        printed = capsys.readouterr().err
        assert message in printed
        assert len(printed.splitlines()) == 1
        assert not Path("out").exists()
    assert app.run(["embed", "d.zarr", "out", "--labels", "few.csv", "--result", "clusters"]) == 2
    assert "not both; give one of them" in capsys.readouterr().err
    assert app.run(["embed", "d.zarr", "out", "--correction", "cailliez"]) == 2
    assert app.run(["embed", "d.zarr", "out", "--components", "2", "--quiet"]) == 0
    capsys.readouterr()
    assert app.run(["embed", "d.zarr", "out", "--components", "2"]) == 1
    assert "out exists" in capsys.readouterr().err


@pytest.mark.slow
def test_the_dry_run_reads_no_tile(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.watch() as counted:
        assert app.run(["embed", "d.zarr", "out", "--components", "4", "--dry-run", "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)
    assert (counted.scans, cost["facts"], cost["command"]) == (0, {"axes": 4}, "embed")
    assert not Path("out").exists()


@pytest.mark.slow
def test_a_step_of_a_workflow_is_coloured_by_another(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("d.npy", D)
    Path("labels.txt").write_text("".join(f"g{k % 3}\n" for k in range(N)))
    Path("w.toml").write_text(
        '[import]\nsource = "d.npy"\nkind = "distance"\n[cluster]\nclusters = 3\nn_init = 1\n'
        '[embed.fuzzy]\ncomponents = 2\nresult = "cluster"\n[embed.named]\ncomponents = 2\nlabels = "labels.txt"\n',
        encoding="utf-8",
    )
    assert app.run(["run", "w.toml", "--quiet"]) == 0
    for name in ("fuzzy", "named"):
        assert Path("w", name, "embedding.png").exists()
        assert json.loads(Path("w", name, "result.json").read_text())["n_components"] == 2
    Path("labels.txt").write_text("".join(f"h{k % 2}\n" for k in range(N)))
    capsys.readouterr()
    assert app.run(["run", "w.toml", "--json"]) == 0
    done = {one["step"]: one["status"] for one in json.loads(capsys.readouterr().out)["steps"]}
    assert (done["named"], done["fuzzy"]) == ("done", "unchanged")
