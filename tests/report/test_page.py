"""Pages about results: what they say is what other programs compute, and nothing of the data becomes code."""

import csv
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import silhouette_samples

import dasrel
from dasrel.cli import app
from dasrel.report import page as pages
from dasrel.report.page_parts import Picture, ResultPart, Section, table
from dasrel.util import progress
from dasrel.util.results import without_times
from tests.helpers.matrices import blobs, distances
from tests.helpers.report_pages import Page, read_page
from tests.helpers.stores import stored

N = 60
HOSTILE = [
    '<script>document.title="broken"</script>',
    'a"b',
    "two\nlines",
    "'><img src=x onerror=alert(1)>",
    "`x`&amp;",
]


def points() -> Any:
    """Three groups, two of them near each other."""
    return blobs(N // 3, [[0, 0], [12, 0], [15, 3]])


def ran(*words: object) -> None:
    assert app.run([str(word) for word in words] + ["--quiet"]) == 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and one result of every kind. Paths in them are absolute."""
    home = tmp_path_factory.mktemp("page")
    ids = [f"object{k}" for k in range(N - len(HOSTILE))] + HOSTILE
    store = home / "d.zarr"
    stored(store, distances(points()), ids=ids, tile=32)
    ran("cluster", store, home / "grid", "--clusters", "2-4", "--n-init", 4)
    ran("cluster", store, home / "one", "--clusters", 3, "--rule", "fcm1", "--fuzzifier", 2, "--init", "random",
        "--n-init", 3, "--seed", 5)  # fmt: skip
    ran("outliers", store, home / "odd", "--width", 3, "--reject", 0.1, "--clusters")
    ran("tree", store, home / "linked", "--linkage", "average", "--clusters", "2,3")
    ran("tree", store, home / "tree")
    ran("align", store, home / "aligned", "--clusters", "2,3", "--width", "2,5", "--n-init", 1)
    ran("embed", store, home / "axes", "--components", 2)
    ran("euclideanize", store, "--method", "spread", "--out", home / "spread.npz")
    (home / "spectrum.json").write_text(json.dumps(dasrel.spectrum(store).as_dict()))
    return home


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., Page]:
    """Write a page about results, and read it."""

    def write(*results: Any) -> Page:
        return read_page(dasrel.write_report(list(results), tmp_path / "page.html", force=True))

    return write


def labels(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "labels.csv").open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


# ------------------------------------------------------------------------------------------------------------- contents


@pytest.mark.slow
def test_a_clustering_from_top_to_bottom(place: Path, report: Callable[..., Page]) -> None:
    page = report(place / "one")
    wanted = ["Clusters", "The matrix in the order of clusters", "Memberships", "Silhouettes", "Validity",
              "Embedding", "Border objects", "Runs", "The matrix", "What was run"]  # fmt: skip
    assert page.headings == [f"3 clusters of {N} objects, fcm1", "Verdict", *wanted]
    assert len(page.alts) == len(page.captions) == 3
    assert all(len(text) > 20 for text in page.alts + page.captions)
    assert any("dasrel embed STORE AXES" in text for _, text in page.notes)
    assert page.addresses == []
    assert page.scripts == 1


def test_an_embedding_of_the_same_matrix_is_joined(place: Path, report: Callable[..., Page]) -> None:
    page = report(place / "one", place / "axes")
    assert page.headings[:2] == [f"2 results, {N} objects", "Verdict"]
    assert any("along the first principal coordinates, coloured by cluster" in alt for alt in page.alts)
    assert not [text for _, text in page.notes if "dasrel embed STORE" in text]
    assert [text for _, text in page.notes if "The store is the same as above" in text]


def test_clusters_and_silhouettes_are_those_of_scikit_learn(place: Path, report: Callable[..., Page]) -> None:
    page, found = report(place / "one"), labels(place / "one")
    given = np.array([int(row["label"]) for row in found.values()])
    samples = silhouette_samples(distances(points()), given, metric="precomputed")
    header, *rows = page.tables["clusters"]
    values = [dict(zip(header, row, strict=True)) for row in rows]
    assert [int(row["objects"]) for row in values] == np.bincount(given).tolist()
    for k, row in enumerate(values):
        assert float(row["mean silhouette"]) == pytest.approx(samples[given == k].mean(), abs=1e-5)
        members = np.flatnonzero(given == k)
        nearest = members[distances(points())[np.ix_(members, members)].mean(axis=1).argmin()]
        assert row["medoid"] in found
        assert int(found[row["medoid"]]["label"]) == k
        assert distances(points())[nearest, list(found).index(row["medoid"])] < 2  # one near the middle of its group
    scale = [(0.7, "strong"), (0.5, "reasonable"), (0.25, "weak"), (-1, "no substantial")]  # Kaufman and Rousseeuw 1990
    word = next(word for bound, word in scale if samples.mean() >= bound)
    assert page.said(f"mean silhouette is {samples.mean():.3f}", word)
    assert f"mean {samples.mean():.3f}" in page.text  # in the picture


def test_restarts_are_those_of_the_sample(place: Path, report: Callable[..., Page]) -> None:
    result = json.loads((place / "grid" / "result.json").read_text())
    best = next(one for one in result["settings"] if one["folder"] == result["recommended"]["folder"])
    ended = best["restarts"]
    assert (ended["runs"], ended["finished"]) == (4, 2)
    only = "Only " if ended["same"] == 1 else ""
    assert f"{only}{ended['same']} of 2 restarts that were finished ended in the" in report(place / "grid").text
    assert [row[:2] for row in report(place / "grid").tables["levels"][1:]] == [
        [str(level["objects"]), str(level["runs"])] for level in result["levels"]
    ]
    alone = json.loads((place / "one" / "result.json").read_text())["settings"][0]
    assert alone["restarts"] is None
    assert "of 3 runs of this setting ended at the" in report(place / "one").text


def test_border_objects_are_listed_and_downloaded(place: Path, report: Callable[..., Page]) -> None:
    page, found = report(place / "one"), labels(place / "one")
    doubtful = {name: row for name, row in found.items()
                if float(row["membership"]) < 0.9 or float(row["silhouette"]) < 0}  # fmt: skip
    assert 0 < len(doubtful) < N
    _, *rows = page.tables["border-objects"]
    assert {row[0] for row in rows} == set(doubtful)
    assert [float(row[2]) for row in rows] == sorted(float(row["membership"]) for row in doubtful.values())
    border = sum(float(row["membership"]) < 0.9 for row in found.values())
    assert page.said(f"{border} objects of {N}", "lie on a border")
    assert page.downloads["labels.csv"] == (place / "one" / "labels.csv").read_bytes()


def test_a_grid_says_why_and_compares(place: Path, report: Callable[..., Page]) -> None:
    page = report(place / "grid")
    result = json.loads((place / "grid" / "result.json").read_text())
    best = max(result["settings"], key=lambda one: one["validity"]["fuzzy_silhouette"])
    assert page.headings[0] == f"{best['n_clusters']} clusters of {N} objects, fcm2, the best of 3 settings"
    assert page.said("Of 2 to 4 clusters", f"{best['validity']['fuzzy_silhouette']:.3f}")
    header, *rows = page.tables["validity"]
    assert [row[header.index("clusters")] for row in rows] == ["2", "3", "4"]
    chosen = {row[0]: row[-1] for row in rows}
    assert [name for name, said in chosen.items() if said == "true"] == [best["folder"]]
    assert "Parameters that were chosen" in page.headings
    assert any("Validity indices against 2 to 4 clusters" in alt for alt in page.alts)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", ["one", "grid", "odd", "linked", "tree", "aligned", "axes"])
def test_the_command_repeats_the_result(
    kind: str, place: Path, report: Callable[..., Page], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (command,) = report(place / kind).commands
    words = shlex.split(command)
    assert words[0] == "dasrel"
    words[words.index(str(place / kind))] = str(tmp_path / "again")
    assert app.run([*words[1:], "--json"]) == 0
    printed = json.loads(capfd.readouterr().out.splitlines()[-1])
    before = json.loads((place / kind / "result.json").read_text())
    same = {name: value for name, value in without_times(before).items() if name != "out"}
    again = without_times(printed)
    assert {name: again[name] for name in same} == same


def test_outliers_are_the_least_typical(place: Path, report: Callable[..., Page]) -> None:
    page = report(place / "odd")
    with (place / "odd" / "outliers.csv").open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["typicality"]))
    assert page.headings[0].startswith(f"{N // 10} outliers among {N} objects")
    assert [row[0] for row in page.tables["outliers"][1:]] == [row["id"] for row in rows[:20]]
    assert [row[3] for row in page.tables["outliers"][1:]] == ["true"] * (N // 10) + ["false"] * (20 - N // 10)
    assert page.said(f"{N // 10} outliers, 10.0%")


@pytest.mark.slow
def test_every_kind_of_result_has_a_part(place: Path, report: Callable[..., Page], tmp_path: Path) -> None:
    ran("audit", place / "d.zarr")
    audit = tmp_path / "audit.json"
    audit.write_text(json.dumps({**dasrel.audit_store(place / "d.zarr"), "seconds": 1.0}))
    names = ["one", "odd", "linked", "tree", "aligned", "axes", "spectrum.json", "spread.npz", "d.zarr"]
    page = report(*(place / name for name in names), audit)
    kinds = [text.partition(":")[0] for text in page.headings if ": " in text]
    assert kinds == ["Clustering", "Outliers", "Hierarchical clustering", "Tree", "Alignment", "Embedding", "Spectrum",
                     "Euclideanisation", "Matrix", "Matrix"]  # fmt: skip
    assert page.size < pages.LIMIT
    assert page.said("No repair was allowed")
    heaviest = np.sort(_tree_weights(distances(points())))[::-1]
    shown = [float(row[2]) for row in page.tables["longest-edges"][1:]]
    np.testing.assert_allclose(shown, heaviest, rtol=1e-6)
    with (place / "linked" / "labels.csv").open(newline="") as file:
        two = np.array([int(row["label_2"]) for row in csv.DictReader(file)])
    samples = silhouette_samples(distances(points()), two, metric="precomputed")
    assert page.said("mean silhouette of 2 clusters", f"{samples.mean():.3f}")
    assert page.said("The matrix is Euclidean")


def _tree_weights(D: Any) -> Any:
    from scipy.sparse.csgraph import minimum_spanning_tree

    return minimum_spanning_tree(D).data


@pytest.mark.slow
def test_a_clustering_of_this_process(place: Path, tmp_path: Path) -> None:
    found = dasrel.cluster(place / "d.zarr", dasrel.grid("hard", 3, n_init=2))
    with progress.watch() as counted:
        path = found.report(tmp_path / "mine.html")
    assert counted.scans == 2  # silhouettes, and the picture of the matrix
    page = read_page(path)
    assert page.headings[0] == f"3 clusters of {N} objects, hard"
    assert len(page.alts) == 3
    arrays = dasrel.cluster(distances(points()), dasrel.grid("hard", 3, n_init=2), kind="distance", judge=True)
    with progress.watch() as counted:
        page = read_page(arrays.report(tmp_path / "array.html"))
    assert counted.scans == 1
    assert len(page.alts) == 3
    with pytest.raises(dasrel.InputError, match=r"mine\.html exists; choose another name, or say force=True"):
        found.report(tmp_path / "mine.html")


def test_a_table_of_figures(tmp_path: Path, report: Callable[..., Page], place: Path) -> None:
    home = tmp_path / "paper"
    home.mkdir()
    rows = ["what,where,paper,ours,verdict,why", "stress,table 2,0.31,0.3101,exact,", "gamma,figure 1,5,6,different,"
            '"rounded, perhaps"', "alpha,table 2,1,1,exact,"]  # fmt: skip
    (home / "figures.csv").write_text("\n".join(rows) + "\n")
    shutil.copy(place / "one" / "partition.png", home / "partition.png")
    (home / "curve.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>')
    page = report(home)
    assert page.tables["figures"][2] == ["gamma", "figure 1", "5", "6", "different", "rounded, perhaps"]
    assert page.said("2 figures: exact")
    assert page.said("1 figure: different")
    assert page.captions == ["curve.svg", "partition.png"]
    assert page.scripts == 1  # the picture stays a picture


# ------------------------------------------------------------------------------------------------------------ the store


def test_the_matrix_is_drawn_in_one_scan_if_the_store_is_the_same(place: Path, tmp_path: Path) -> None:
    home = tmp_path / "moved"
    shutil.copytree(place / "one", home / "one")
    shutil.copytree(place / "d.zarr", home / "d.zarr")
    values = json.loads((home / "one" / "result.json").read_text())
    values["store"] = "/nowhere/d.zarr"  # it is beside the result now
    (home / "one" / "result.json").write_text(json.dumps(values))

    def written() -> tuple[int, Page]:
        with progress.watch() as counted:
            path = dasrel.write_report(home / "one", tmp_path / "p.html", force=True)
        return counted.scans, read_page(path)

    scans, page = written()
    assert (scans, len(page.alts)) == (1, 3)
    D = distances(points())
    D[0, 1] = D[1, 0] = 1
    stored(home / "d.zarr", D, tile=32, force=True)
    scans, page = written()
    assert (scans, len(page.alts)) == (0, 2)
    assert [text for _, text in page.notes if "has another content now" in text]
    shutil.rmtree(home / "d.zarr")
    scans, page = written()
    assert scans == 0
    missing = [text for _, text in page.notes if "is not there any more" in text]
    assert len(missing) == 2  # the picture, and the audit


def test_a_large_store_is_not_read(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dasrel.report.result_store.LARGEST_SCAN", 1000)
    with progress.watch() as counted:
        page = read_page(dasrel.write_report(place / "one", tmp_path / "p.html"))
    assert counted.scans == 0
    assert any("this takes a scan of" in text and "dasrel image" in text for _, text in page.notes)


def test_repairs_are_named(tmp_path: Path, report: Callable[..., Page]) -> None:
    D = distances(points())
    D[0, 1] += 1
    policy = dasrel.Policy(symmetrize="mean", clip_negative=0.5)
    dasrel.import_matrix(D, tmp_path / "r.zarr", kind="distance", policy=policy)
    ran("cluster", tmp_path / "r.zarr", tmp_path / "out", "--clusters", 2, "--rule", "hard", "--n-init", 1)
    page = report(tmp_path / "out")
    assert ("caution", "Repairs that were allowed: symmetrize mean; clip-negative 0.5.") in page.notes


# ---------------------------------------------------------------------------------------------------- hostile and large


def test_names_stay_text(place: Path, report: Callable[..., Page]) -> None:
    page = report(place / "one", place / "odd", place / "tree")
    assert page.scripts == 1
    assert "x" not in page.addresses
    with (place / "one" / "labels.csv").open(newline="") as file:
        assert set(HOSTILE) <= {row["id"] for row in csv.DictReader(file)}
    listed = {name for row in page.tables["longest-edges"][1:] for name in row[:2]}
    assert set(HOSTILE) <= listed  # as they are, in what is downloaded ...
    shown = [name for row in page.shown["longest-edges"][1:] for name in row[:2]]
    assert "two\\nlines" in shown  # ... and on one line each here
    assert not [name for name in shown if "\n" in name]


def test_long_names_are_cut(tmp_path: Path) -> None:
    D = distances(points())
    ids = [f"{k:02d}" + "é" * 10_000 for k in range(N)]
    stored(tmp_path / "long.zarr", D, ids=ids, tile=32)
    ran("cluster", tmp_path / "long.zarr", tmp_path / "out", "--clusters", 3, "--rule", "fcm1", "--n-init", 2)
    page = read_page(dasrel.write_report(tmp_path / "out", tmp_path / "p.html"))
    assert page.size < 400_000
    assert "labels.csv" not in page.downloads
    assert max(len(row[3]) for row in page.tables["clusters"]) == 300
    assert max(len(row[3]) for row in page.shown["clusters"]) == 80


def synthetic(folder: Path, n: int, clusters: int = 5) -> Path:
    """A result of n objects, as `dasrel cluster` writes it."""
    rng = np.random.default_rng(1)
    labels_, memberships = rng.integers(0, clusters, n), rng.uniform(0.4, 1, n)
    folder.mkdir()
    with (folder / "labels.csv").open("w") as file:
        file.write("id,label,membership,second_label,silhouette,border\n")
        file.writelines(
            f"sample-{k},{a},{u},{(a + 1) % clusters},{u - 0.5},{'true' if u < 0.9 else 'false'}\n"
            for k, (a, u) in enumerate(zip(labels_.tolist(), memberships.tolist(), strict=True))
        )
    U = np.full((n, clusters), 0.0)
    U[np.arange(n), labels_] = memberships
    np.save(folder / "memberships.npy", U)
    sizes = np.bincount(labels_, minlength=clusters).tolist()
    setting = {"folder": ".", "rule": "fcm2", "n_clusters": clusters, "converged": True, "n_iter": 9, "objective": 1.0,
               "sizes": sizes, "membership_sums": [float(size) for size in sizes], "run": 0, "empty": 0,
               "medoids": [f"sample-{k}" for k in range(clusters)], "validity": {"silhouette": 0.2}, "flat": False,
               "coincident_clusters": 0, "border": int((memberships < 0.9).sum()), "ladders": []}  # fmt: skip
    (folder / "result.json").write_text(json.dumps({
        "store": "gone.zarr", "matrix": "0" * 16, "out": "x", "requested": {"n_clusters": [clusters], "border": 0.9},
        "n_objects": n, "kind": "distance", "runs": 1, "runs_converged": 1, "converged": True, "scans": 9,
        "bundles": 1, "seconds": 2.0, "recommended": None, "settings": [setting], "warnings": []}))  # fmt: skip
    return folder


def test_a_page_of_many_objects_is_small(tmp_path: Path) -> None:
    page = read_page(dasrel.write_report(synthetic(tmp_path / "many", 50_000), tmp_path / "p.html"))
    assert page.size < 500_000
    assert len(page.tables["border-objects"]) == 101
    below = np.random.default_rng(1)
    below.integers(0, 5, 50_000)
    doubtful = int((below.uniform(0.4, 1, 50_000) < 0.9).sum())
    assert f"100 of {doubtful:,} rows are shown" in page.text
    assert "labels.csv" in page.text
    assert page.downloads == {}


@pytest.mark.slow
def test_many_results_fit_too(place: Path, tmp_path: Path) -> None:
    page = read_page(dasrel.write_report([place / "grid"] * 12 + [place / "odd"] * 12, tmp_path / "p.html"))
    assert page.size <= 1_000_000
    assert len([text for text in page.headings if text.startswith(("Clustering", "Outliers: "))]) == 24


def test_what_does_not_fit_is_left_out_with_a_line() -> None:
    noise = np.random.default_rng(0).bytes(1_500_000)
    drawing = Picture("A large drawing.", "How to read it.", b"<svg>" + b"x" * 1_200_000 + b"</svg>", "inline")
    listed = table("t", ["a"], [[k] for k in range(200)], whole=noise, file="t.csv")
    text = pages.render([ResultPart("Test", "here", "A test", [], [], [Section("All", [drawing, listed])])])
    assert len(text) < pages.LIMIT
    assert b"A picture is left out, because the page would be larger than 1 MB. A large drawing." in text
    assert b"100 of 200 rows are shown. All of them are in the file <code>t.csv</code>." in text


def test_without_fonts_there_is_a_page(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_font(*arguments: Any, **more: Any) -> Any:
        raise ValueError("Failed to find font DejaVu Sans")

    monkeypatch.setattr("matplotlib.font_manager.FontManager.findfont", no_font)
    monkeypatch.setattr("matplotlib.font_manager.FontManager._find_fonts_by_props", no_font)
    with pytest.warns(dasrel.DasrelWarning, match=r"could not be drawn \(Failed to find font") as warned:
        path = dasrel.write_report(place / "one", tmp_path / "p.html")
    page = read_page(path)
    assert len(warned) == len([text for _, text in page.notes if text.startswith("The picture could not be drawn")])
    assert len(page.alts) == 1  # partition.png, which is there already
    assert "border-objects" in page.tables


# ------------------------------------------------------------------------------------------------------- several stores


@pytest.mark.slow
def test_results_of_different_matrices_are_shown_apart(
    place: Path, tmp_path: Path, report: Callable[..., Page]
) -> None:
    stored(tmp_path / "other.zarr", 2 * distances(points()), tile=32)
    ran("tree", tmp_path / "other.zarr", tmp_path / "tree")
    page = report(place / "one", tmp_path / "tree", place / "linked")
    assert page.notes[0] == (
        "caution",
        "These results are of 2 different matrices: their numbers cannot be compared with each other, and they are"
        " shown apart.",
    )
    kinds = [text.partition(":")[0] for text in page.headings if ": " in text]
    assert kinds == ["Clustering", "Hierarchical clustering", "Tree"]
    assert "matrix 1 of 2" in page.text
    assert "matrix 2 of 2" in page.text
    same = report(place / "one", place / "linked")
    assert not [text for _, text in same.notes if "different matrices" in text]
