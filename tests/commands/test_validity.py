"""`dasrel validity`: partitions in files, by id and by order, and what is wrong with them."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics

import dasrel
from dasrel.cli import app
from dasrel.commands.validity import COLUMNS, read_partition
from dasrel.errors import DasrelWarning, InputError
from dasrel.partition.files import read_partition_file
from dasrel.util import progress
from tests.helpers.commands import prepared
from tests.helpers.matrices import distances, grouped_points
from tests.helpers.stores import stored

N = 48
IDS = [f"obj {k}" for k in range(N)]
GROUPS = np.arange(N) % 3
D = distances(grouped_points(N))
RIGHT = metrics.silhouette_score(D, GROUPS, metric="precomputed")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store with names, in an otherwise empty working directory."""
    monkeypatch.chdir(tmp_path)
    stored("d.zarr", D, ids=IDS, dtype="float64", tile=20)
    return "d.zarr"


def output(capsys, *words):
    assert app.run([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def write(name, lines):
    with open(name, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return name


def test_labels_by_id_in_any_order_by_order_and_as_arrays_are_the_same_partition(store, capsys):
    mixed = np.random.default_rng(0).permutation(N)
    files = [
        write("ids.csv", ["id,label,membership", *(f"{IDS[k]},{GROUPS[k]},0.5" for k in mixed)]),
        write("ids.tsv", ["label\tID", *(f"group {GROUPS[k]}\t{IDS[k]}" for k in mixed)]),
        write("bare-ids.csv", [f"{IDS[k]},{GROUPS[k]}" for k in mixed]),
        write("bare.txt", [str(k) for k in GROUPS]),
        write("order.csv", ["label", *(f"g{k}" for k in GROUPS)]),
    ]
    np.save("labels.npy", GROUPS)
    np.save("memberships.npy", np.eye(3)[GROUPS])
    files += ["labels.npy", "memberships.npy"]
    with progress.watch() as counted:
        found = output(capsys, "validity", store, *files, "--index", "silhouette,dunn", "-o", "out.csv")
    assert counted.scans == found["scans"] == 1
    assert [row["partition"] for row in found["partitions"]] == files
    for row in found["partitions"]:
        assert row["silhouette"] == pytest.approx(RIGHT, rel=1e-9)
        assert row["n_clusters"] == len(row["cluster_silhouettes"]) == 3
    lines = Path("out.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "partition,n_clusters,silhouette,dunn"
    assert len(lines) == 1 + len(files)
    assert app.run(["validity", store, *files, "-o", "out.csv"]) == 1
    assert "out.csv exists" in capsys.readouterr().err


def test_a_result_is_judged_by_its_memberships_and_its_labels(store, capsys):
    run = ["cluster", store, "out", "--rule", "fcm1", "--clusters", "3", "--fuzzifier", "1.5", "--n-init", "3", "-q"]
    assert app.run(run) == 0
    found = output(capsys, "validity", store, "out", "out/labels.csv")
    fuzzy, labels = found["partitions"]
    U = np.load("out/memberships.npy")
    assert fuzzy["partition_coefficient"] == pytest.approx((U**2).sum() / N)
    assert labels["partition_coefficient"] == 1
    assert fuzzy["silhouette"] == pytest.approx(labels["silhouette"])
    w, X = U.T**1.5, grouped_points(N)
    centres = w @ X / w.sum(axis=1, keepdims=True)
    J = (w * ((centres[:, None] - X) ** 2).sum(axis=2)).sum()
    apart = min(((centres[i] - centres[j]) ** 2).sum() for i in range(3) for j in range(i))
    assert fuzzy["xie_beni"] == pytest.approx(J / (N * apart), rel=1e-6)
    assert found["best"]["partition_entropy"] == "out/labels.csv"


def test_few_partitions_are_columns_and_many_are_lines(store, capsys):
    write("a.csv", [str(k) for k in GROUPS])
    write("b.csv", [str(k) for k in np.arange(N) // 24])
    assert app.run(["validity", store, "a.csv", "b.csv"]) == 0
    shown = capsys.readouterr().out.splitlines()
    (line,) = [one for one in shown if one.startswith("silhouette")]
    assert line.split()[1] == f"{RIGHT:.4g}"
    assert line.split()[-1] == "larger"
    assert app.run(["validity", store, *["b.csv"] * COLUMNS, "a.csv"]) == 0
    shown = capsys.readouterr().out
    assert f"3 clusters, silhouette {RIGHT:.4g}" in shown
    assert [one.split()[-1] for one in shown.splitlines() if one.startswith("best silhouette")] == ["a.csv"]


def test_a_dry_run_reads_no_tile_and_writes_nothing(store, capsys, tmp_path):
    write("a.csv", [str(k) for k in GROUPS])
    before = sorted(tmp_path.iterdir())
    with progress.watch() as counted:
        estimate = output(capsys, "validity", store, "a.csv", "-o", "new.csv", "--dry-run")
    assert (counted.scans, counted.tiles) == (0, 0)
    assert sorted(tmp_path.iterdir()) == before
    assert estimate["scans"]["most"] == 1
    assert estimate["facts"] == {"partitions": 1, "n_clusters": 3}
    output(capsys, "validity", store, "a.csv", "-o", "new.csv")
    assert 0.5 < estimate["outputs"][0]["bytes"] / (tmp_path / "new.csv").stat().st_size < 2
    write("named.csv", ["id,label", *(f"{name},{k}" for name, k in zip(IDS, GROUPS, strict=True))])
    assert prepared("validity", store, labels=["named.csv"]).cost().scans.most == 1


def test_labels_are_matched_with_the_ids_whatever_their_column_is_called(store, capsys):
    mixed = np.random.default_rng(1).permutation(N)
    named = [(IDS[k], f"g{GROUPS[k]}") for k in mixed]
    files = [
        write("pandas.csv", [",label", *(f"{name},{label}" for name, label in named)]),
        write("qiime.tsv", ["sample-id\tage\tlabel", "#q2:types\tnumeric\tcategorical",
                            *(f"{name}\t{k}\t{label}" for k, (name, label) in enumerate(named))]),
        write("last.csv", ["label,age,who", *(f"{label},{k},{name}" for k, (name, label) in enumerate(named))]),
        write("other.csv", ["sample-id,cluster", *(f"{name},{label}" for name, label in named)]),
    ]  # fmt: skip
    found = output(capsys, "validity", store, *files, "--index", "silhouette")
    for row in found["partitions"]:
        assert row["silhouette"] == pytest.approx(RIGHT, rel=1e-9), row["partition"]


def test_labels_without_ids_are_in_the_order_of_the_store_and_that_is_said(store, capsys):
    write("bare.csv", ["label", *(str(k) for k in GROUPS)])
    with pytest.warns(DasrelWarning, match="bare.csv has labels and no ids: they are taken in the order of the store"):
        np.testing.assert_array_equal(read_partition_file("bare.csv").of_objects(IDS), GROUPS.astype(str))
    assert app.run(["validity", store, "bare.csv", "--index", "silhouette"]) == 0
    assert "bare.csv has labels and no ids" in capsys.readouterr().err
    write("sizes.csv", ["label,size", *(f"{k},3" for k in GROUPS)])
    assert app.run(["validity", store, "sizes.csv"]) == 1
    assert "sizes.csv has columns label, size, and none of ids" in capsys.readouterr().err


LINES = [f"{name},{k % 3}" for k, name in enumerate(IDS)]
BAD = {
    "one cluster": (
        ["id,label", *(f"{name},1" for name in IDS)],
        "x.csv has one cluster only; give at least two",
    ),
    "too few": (
        ["1", "2"],
        "x.csv has 2 labels and the store 48 objects; give one for each, in the order of",
    ),
    "missing ids": (["id,label", *LINES[2:]], "x.csv has no label for 2 objects of the store: obj 0, obj 1"),
    "other ids": (["id,label", *LINES, "y,1"], "x.csv has labels for 1 object that the store does not have: y"),
    "both": (["id,label", "y,1", *LINES[1:]], "no label for 1 object of the store, and labels for 1 object that it"),
    "twice": (["id,label", *LINES, LINES[0]], "x.csv has more than one label for obj 0"),
    "no label": (["id,label", *LINES[:-1], f"{IDS[-1]},"], "x.csv: row 49 has no label (1 such)"),
    "short row": (["id,label", *LINES[:-1], IDS[-1]], "x.csv: row 49 has 1 column, not 2"),
    "no header": (["1,2,3"] * N, "x.csv has 3 columns and none is named label"),
    "empty": ([""], "x.csv is empty"),
}


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_of_labels_gets_one_clear_line(store, capsys, case):
    lines, message = BAD[case]
    write("x.csv", lines)
    with progress.watch() as counted:
        assert app.run(["validity", store, "x.csv", "-o", "out.csv"]) == 1
    assert counted.scans == 0
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert "unexpected" not in printed


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((N, 2), 0.3), "the memberships of object 0 sum to 0.6, not to 1"),
        (np.zeros((N, N, 2)), "has shape (48, 48, 2)"),
        (np.zeros(N - 1), "has shape (47,); give 48 labels"),
        (np.full(N, np.nan), "has no label (NaN) for 48 objects"),
    ],
)
def test_a_bad_array_gets_one_clear_line(store, array, message):
    np.save("x.npy", array)
    with pytest.raises(InputError) as report:
        read_partition("x.npy", IDS, 2.0)
    assert message in str(report.value)


@pytest.mark.slow
def test_what_is_no_partition_gets_one_clear_line(store, capsys):
    for content in (b"\xff\xfe\x00", b"\x93NUMPY"):
        for name in ("x.csv", "x.npy"):
            with open(name, "wb") as file:
                file.write(content)
            with pytest.raises(InputError, match=r"x\..* is (no file of labels|empty)|x\..*has 1 label"):
                read_partition(name, IDS, 2.0)
    with pytest.raises(InputError, match=r"there is no file nowhere\.csv with labels"):
        read_partition("nowhere.csv", IDS, 2.0)
    with pytest.raises(InputError, match=r"no result of `dasrel cluster` with memberships in d\.zarr"):
        read_partition(store, IDS, 2.0)
    assert app.run(["cluster", store, "out", "--rule", "hard", "--clusters", "2,3", "-q"]) == 0
    with pytest.raises(InputError, match="choose one of its settings, such as out/best"):
        read_partition("out", IDS, 2.0)
    with pytest.raises(InputError, match="has no label for 1 object of the store"):
        read_partition("out/hard-clusters2", [*IDS, "more"], 2.0)
    assert app.run(["validity", store, "out/hard-clusters2", "--index", "silhouete"]) == 2
    assert "'silhouete' is not one of silhouette" in capsys.readouterr().err


def test_permutations_test_all_partitions_in_one_more_scan(store, capsys):
    write("right.txt", [f"g{k}" for k in GROUPS])
    write("wrong.txt", ["x" if k < N // 2 else "y" for k in range(N)])
    with progress.watch() as counted:
        found = output(
            capsys, "validity", store, "right.txt", "wrong.txt", "--permutations", "99", "--seed", "5", "-o", "out.csv"
        )
    assert counted.scans == found["scans"] == 2
    for row, labels in zip(found["partitions"], (GROUPS, np.arange(N) // (N // 2)), strict=True):
        alone = dasrel.permanova(D, labels, kind="distance", permutations=99, random_state=5)
        assert row["pseudo_f"] == pytest.approx(row["calinski_harabasz"], rel=1e-12)
        assert row["p_value"] == alone.p_value
        assert (row["permutations"], row["random_state"]) == (99, 5)
    assert found["partitions"][0]["p_value"] == 0.01
    assert found["partitions"][1]["p_value"] > 0.05
    assert "p_value" in Path("out.csv").read_text().splitlines()[0]
    assert app.run(["validity", store, "right.txt", "wrong.txt", "--permutations", "99", "--seed", "5"]) == 0
    assert "p_value" in (printed := capsys.readouterr().out)
    assert "of 99 permutations (PERMANOVA)" in printed
    assert app.run(["validity", store, *["right.txt"] * 7, "--permutations", "9"]) == 0
    assert capsys.readouterr().out.count("p-value 0.1") == 7
    cost = output(capsys, "validity", store, "right.txt", "--permutations", "99", "--dry-run")
    assert cost["scans"]["most"] == 2


def test_permutations_refuse_what_they_cannot_test(store, capsys):
    write("all.txt", [f"g{k}" for k in range(N)])
    assert app.run(["validity", store, "all.txt", "--permutations", "9"]) == 1
    assert "as many groups as objects" in capsys.readouterr().err
    write("right.txt", [f"g{k}" for k in GROUPS])
    assert app.run(["validity", store, "right.txt", "--permutations", "0"]) == 1
    assert "--permutations" in capsys.readouterr().err
