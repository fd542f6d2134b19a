"""How sure clusters are: data with groups and without, in halves, and beside average linkage."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import cdist, pdist, squareform

import dasrel
from dasrel.engine.relation import relation
from dasrel.judging.groupings import of_labels
from dasrel.judging.structure import judge_structure, sampled_positions
from dasrel.judging.validity import compute_indices
from dasrel.report.verdict import structure_statements
from dasrel.util import progress


def squared(X: np.ndarray) -> np.ndarray:
    return cdist(X, X, "sqeuclidean")


def groups(rng: np.random.Generator, n: int, c: int, dimensions: int, apart: float) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(n) % c
    return rng.normal(size=(n, dimensions)) + apart * np.eye(c, dimensions)[labels], labels


def communities(rng: np.random.Generator, n: int, c: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Bray-Curtis dissimilarities of samples of communities: clear groups, whose silhouettes are low."""
    species, labels = 200, np.arange(n) % c
    common, own = rng.gamma(0.3, size=species), rng.gamma(0.15, size=(c, species))
    profiles = 0.6 * common / common.sum() + 0.4 * own / own.sum(axis=1, keepdims=True)
    counts = [rng.multinomial(300, rng.dirichlet(np.maximum(36 * profiles[k], 1e-9))) for k in labels]
    return squareform(pdist(np.array(counts, dtype=float), "braycurtis")), labels


def test_groups_are_more_than_chance_and_halves_agree() -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X, labels = groups(rng, 160, 4, 5, 6.0)
        found = judge_structure(squared(X), labels, 4)
        assert found is not None
        assert found.p_value == 0.01  # no draw of 99 is as good
        assert found.agreement > 0.9
        assert found.linked is None or not found.linked.disagrees


def test_groups_with_low_silhouettes_are_seen() -> None:
    d, labels = communities(np.random.default_rng(1), 300, 5)
    found = judge_structure(d * d, labels, 5)
    assert found is not None
    assert found.linked is None or found.linked.silhouette_here < 0.25
    assert found.p_value == 0.01
    assert found.agreement > 0.8
    assert [each.level for each in structure_statements(found.report())] == ["good"]


@pytest.mark.parametrize("c", [2, 4])
def test_data_without_groups_are_not_more_than_chance(c: int) -> None:
    rng = np.random.default_rng(7)
    noise = np.triu(rng.random((150, 150)), 1)
    sets = {
        "normal": squared(rng.normal(size=(200, 2))),
        "normal in many dimensions": squared(rng.normal(size=(150, 100))),
        "long": squared(rng.normal(size=(200, 3)) * [6, 2, 1]),
        "uniform": squared(rng.random((200, 2))),
        "uniform in ten dimensions": squared(rng.random((200, 10))),
        "random dissimilarities": (noise + noise.T) ** 2,
    }
    for name, D in sets.items():
        found = judge_structure(D, np.arange(len(D)) % c, c)
        assert found is not None
        assert found.p_value > 0.05, name
        assert structure_statements(found.report())[0].text.startswith("No clear clusters"), name


def test_average_linkage_is_named_where_it_finds_small_groups_beside_large_ones() -> None:
    rng = np.random.default_rng(3)
    small, large = rng.normal(size=(50, 2)) * 0.4 + [9, 0], rng.random((450, 2)) * [6, 16] - [3, 8]
    D, truth = squared(np.concatenate([small, large])), np.repeat([0, 1], [50, 450])
    halves = (np.concatenate([small, large])[:, 1] > 0).astype(int)  # as c-means divides it
    found = judge_structure(D, halves, 2)
    assert found is not None
    assert found.linked is not None
    assert found.linked.disagrees
    assert found.linked.sizes == (450, 50)
    assert "--linkage average --clusters 2" in structure_statements(found.report())[-1].text
    right = judge_structure(D, truth, 2)
    assert right is not None
    assert right.linked is not None
    assert right.linked.adjusted_rand_index == 1.0
    assert not right.linked.disagrees


def test_the_same_bits_and_nothing_where_nothing_can_be_said() -> None:
    X, labels = groups(np.random.default_rng(2), 60, 3, 4, 3.0)
    first, again = (judge_structure(squared(X), labels, 3, random_state=5) for _ in range(2))
    assert first == again
    assert judge_structure(squared(X), np.zeros(60, int), 1) is None
    assert judge_structure(squared(X), labels, 8) is None
    assert judge_structure(np.zeros((60, 60)), labels, 3) is None


@pytest.mark.parametrize("kind", ["distance", "kernel"])
def test_pairs_come_with_the_scan_of_the_indices(kind: str, tmp_path) -> None:
    X, labels = groups(np.random.default_rng(4), 50, 3, 4, 3.0)
    stored = cdist(X, X) if kind == "distance" else X @ X.T
    writing = dasrel.Writing(tile=16, dtype="float64")
    matrix = dasrel.import_matrix(stored, tmp_path / "store", kind=kind, writing=writing)
    positions = np.array([0, 3, 4, 17, 20, 31, 32, 49])
    for seen in (relation(matrix), replace(relation(matrix), beta=0.5)):  # without the spread
        for indices in (["silhouette"], ["dunn", "xie_beni"]):
            with progress.watch() as counted:
                judged = compute_indices(seen, [of_labels("a", labels)], indices=indices, positions=positions)
            assert counted.scans == 1
            assert judged.pairs is not None
            np.testing.assert_allclose(judged.pairs.D, squared(X[positions]), atol=1e-9)
    assert len(sampled_positions(50, 0)) == 50
    assert len(np.unique(sampled_positions(5_000, 0))) == 1_000


def test_the_first_line_says_so(here, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    X, _ = groups(rng, 90, 3, 4, 8.0)
    np.save("groups.npy", cdist(X, X))
    uniform = rng.random((120, 2))
    np.save("uniform.npy", cdist(uniform, uniform))
    begins = {"groups": "More structure than chance (p = 0.01); groups agree to", "uniform": "No clear clusters: "}
    for name, words in begins.items():
        here("import", f"{name}.npy", f"{name}.zarr", "--kind", "distance")
        command = ("cluster", f"{name}.zarr", name, "--clusters", "3", "--n-init", "2", "--no-picture")
        done = here(*command)
        assert done.stdout.splitlines()[0].split(maxsplit=1)[1].startswith(words)
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert result["structure"]["n_clusters"] == 3
        assert result["recommended"]["is_good"] == (name == "groups")
        scans = result["scans"]
        done = here(*command, "--no-null", "--force")
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert result["structure"] is None
        assert result["scans"] == scans
        assert "verdict" not in done.stdout


def test_python_has_it_too() -> None:
    X, _ = groups(np.random.default_rng(6), 90, 3, 4, 8.0)
    found = dasrel.cluster(cdist(X, X), dasrel.grid("fcm2", [3], n_init=2), kind="distance", judge=True)
    with progress.watch() as counted:
        structure = found.structure()
    assert counted.scans == 0
    assert structure is not None
    assert structure.p_value == 0.01
    unjudged = dasrel.cluster(cdist(X, X), dasrel.Run("hard", 3), kind="distance")
    with progress.watch() as counted:
        assert unjudged.structure() is not None
    assert counted.scans == 1
