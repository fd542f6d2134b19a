"""The commands `dasrel tree` and `dasrel image`: their files against SciPy, their orders, their refusals."""

import csv
import json

import numpy as np
import pytest
from matplotlib import image as pictures
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist, squareform

import dasrel
from dasrel.cli.app import run
from dasrel.commands.image import ImageOptions
from dasrel.errors import InputError
from dasrel.geometry.tree import Tree
from dasrel.io.importing import import_matrix
from dasrel.report.figures.downsample import cluster_order
from dasrel.store.options import Writing
from tests.helpers.commands import prepared

N = 90


@pytest.fixture
def store(tmp_path):
    """Three far clusters of 30, mixed up."""
    rng = np.random.default_rng(0)
    centres = np.array([[0, 0, 0], [9, 0, 1], [0, 9, -1]])
    truth = rng.permutation(np.repeat([0, 1, 2], N // 3))
    points = centres[truth] + rng.normal(size=(N, 3))
    path = tmp_path / "d.zarr"
    ids = [f"o,{k}" for k in range(N)]  # a comma in every name
    values = squareform(pdist(points))
    import_matrix(values, path, kind="distance", reading=dasrel.Reading(ids=ids), writing=Writing(tile=40))
    return path, values, truth


def test_tree_files_agree_with_scipy(store, tmp_path, capsys):
    path, values, _ = store
    out = tmp_path / "tree"
    assert run(["tree", str(path), str(out), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    stored = values.astype(np.float32).astype(float)
    expected = linkage(squareform(stored, checks=False), "single")
    np.testing.assert_allclose(np.load(out / "linkage.npy")[:, 2], expected[:, 2], rtol=1e-6)
    assert output["scans"] == 1
    assert output["total"] == pytest.approx(expected[:, 2].sum(), rel=1e-6)
    with (out / "edges.csv").open(newline="") as file:
        edges = list(csv.DictReader(file))
    assert len(edges) == N - 1
    for edge in edges:
        i, j = (int(edge[end].split(",")[1]) for end in ("first", "second"))
        assert float(edge["weight"]) == stored[i, j]
    with (out / "vat.csv").open(newline="") as file:
        assert sorted(row["id"] for row in csv.DictReader(file)) == sorted(f"o,{k}" for k in range(N))
    assert Tree.load(out / "tree.npz").n_objects == N
    assert run(["tree", str(path), str(out)]) == 1
    assert "exists" in capsys.readouterr().err
    assert run(["tree", str(path), str(out), "--force", "--quiet"]) == 0


def changes(truth, order):
    return int(np.count_nonzero(np.diff(truth[order])))


def test_cluster_order_follows_given_labels_then_decreasing_membership():
    memberships = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.1, 0.9]])
    np.testing.assert_array_equal(cluster_order(memberships, np.array([0, 1, 0, 1])), [0, 2, 3, 1])
    np.testing.assert_array_equal(cluster_order(memberships, np.array([0, 0, 0, 1])), [0, 2, 1, 3])


def test_images_that_cannot_be_drawn_are_refused_before_anything_is_read(tmp_path):
    out = tmp_path / "x.png"
    with pytest.raises(InputError, match="order is 'random'; use one of vat, ivat, labels, eigen, none"):
        ImageOptions(order="random")
    for options in ({"order": "labels"}, {"order": "none", "view": "induced"}, {"view": "proximity"}):
        with pytest.raises(InputError, match="need a result of `dasrel cluster`; name it as result"):
            ImageOptions(**options)
    for options, message in (
        ({"order": "ivat", "view": "kernel"}, "values of its own; say order='vat'"),
        ({"width": 1.0}, "goes with the view kernel and the order eigen only"),
        ({"vectors": 3, "order": "vat"}, "eigenvectors goes with the order eigen only"),
    ):
        with pytest.raises(InputError, match=message):
            ImageOptions(**options)
    out.touch()
    with pytest.raises(InputError, match="exists"):
        prepared("image", str(tmp_path / "absent.zarr"), out, order="none")


@pytest.mark.parametrize(
    ("order", "more"),
    [
        ("vat", {}), ("ivat", {}), ("none", {}), ("eigen", {}), ("eigen", {"width": 2.0, "vectors": 3}),
        ("none", {"view": "kernel"}), ("vat", {"view": "kernel", "width": 2.0}), ("eigen", {"view": "kernel"}),
    ],
)  # fmt: skip
def test_the_scans_of_an_image_are_estimated(store, tmp_path, order, more):
    job = prepared("image", store[0], tmp_path / "x.png", order=order, pixels=30, **more)
    cost = job.cost()
    with dasrel.watch() as meter:
        drawn = job.run()
    assert cost.scans.least <= meter.scans <= cost.scans.most
    assert cost.facts["side"] == drawn["side"] == 30


@pytest.mark.parametrize(("order", "scans"), [("vat", 2), ("ivat", 1), ("none", 1)])
def test_pictures_and_their_scans(store, tmp_path, capsys, order, scans):
    out = tmp_path / f"{order}.png"
    assert run(["image", str(store[0]), str(out), "--order", order, "--pixels", "60", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["scans"], output["side"]) == (scans, 60)
    assert len(np.unique(pictures.imread(out).reshape(-1, 4), axis=0)) > 20


def test_a_result_orders_and_induces(store, tmp_path, capsys):
    path, _, _ = store
    result = tmp_path / "result"
    assert run(["cluster", str(path), str(result), "--rule", "fcm1", "--clusters", "3", "--quiet"]) == 0
    for view, scans in (("matrix", 1), ("induced", 0), ("proximity", 0), ("kernel", 2)):
        out = tmp_path / f"{view}.png"
        arguments = ["image", str(path), str(out), "--view", view, "--result", str(result), "--json"]
        assert run(arguments) == 0
        drawn = json.loads(capsys.readouterr().out)
        assert (drawn["scans"], drawn["order"], drawn["view"]) == (scans, "labels", view)
        assert out.exists()
    assert run([*arguments[:3], "--order", "labels"]) == 2
    assert "--result" in capsys.readouterr().err
    assert run([*arguments[:3], "--order", "none"]) == 1
    assert "--force" in capsys.readouterr().err
    assert run(["image", str(path), str(tmp_path / "x.png"), "--order", "labels", "--result", str(tmp_path)]) == 1
    assert "labels.csv" in capsys.readouterr().err


def test_a_result_of_other_objects_is_refused(store, tmp_path, capsys):
    path, values, _ = store
    result = tmp_path / "result"
    other = tmp_path / "other.zarr"
    import_matrix(values, other, kind="distance")
    assert run(["cluster", str(other), str(result), "--rule", "hard", "--clusters", "2", "--quiet"]) == 0
    assert run(["image", str(path), str(tmp_path / "x.png"), "--order", "labels", "--result", str(result)]) == 1
    assert "other objects" in capsys.readouterr().err
