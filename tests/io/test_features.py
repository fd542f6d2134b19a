"""Feature tables from files."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from scipy.spatial.distance import cdist

from dasrel import InputError
from dasrel.io.pairwise import pairwise
from dasrel.store.options import Writing
from tests.helpers.matrices import normal_points
from tests.helpers.stores import whole

N = 45
TILE = 16  # three tiles a side, the last one ragged
DOUBLE = Writing(tile=TILE, dtype="float64")


@pytest.mark.slow
def test_every_format_gives_the_same_tiles(tmp_path: Path) -> None:
    x = normal_points(N, 6).round(3)
    names = [f"object {k}" for k in range(N)]
    frame = pd.DataFrame(x, columns=list("abcdef"))
    named = frame.assign(who=names)[["who", *"abcdef"]]
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(x))
    np.savez(tmp_path / "x.npz", x)
    np.savez_compressed(tmp_path / "named.npz", x=x, ids=np.array(names))
    scipy.sparse.save_npz(tmp_path / "sparse.npz", scipy.sparse.csc_array(x))
    frame.to_csv(tmp_path / "plain.csv", index=False)
    pd.DataFrame(x).to_csv(tmp_path / "indexed.csv")  # a first column of numbers without a header
    named.to_csv(tmp_path / "named.csv", index=False)
    named.to_csv(tmp_path / "named.tsv", index=False, sep="\t")
    named.to_csv(tmp_path / "named.csv.gz", index=False)
    frame.to_parquet(tmp_path / "plain.parquet")
    frame.assign(who=names).to_parquet(tmp_path / "named.parquet")
    frame.set_index(pd.Index([100, *range(2, N + 1)])).to_parquet(tmp_path / "indexed.parquet")
    expected = whole(pairwise(x, tmp_path / "expected", metric="euclidean", writing=DOUBLE))
    assert np.abs(expected - cdist(x, x)).max() < 1e-13
    sources = [p for p in sorted(tmp_path.iterdir()) if p.is_file()]
    assert len(sources) == 13
    for source in sources:
        found = pairwise(source, tmp_path / f"{source.name}.zarr", metric="euclidean", writing=DOUBLE)
        if source.name == "sparse.npz":
            np.testing.assert_allclose(whole(found), expected, rtol=1e-12)
        else:
            np.testing.assert_array_equal(whole(found), expected, err_msg=source.name)
        first = "object 0" if "named" in source.name else "100" if source.name == "indexed.parquet" else "0"
        assert found.ids[0] == first, source.name
        provenance = found.manifest["provenance"]
        assert provenance["source"] == str(source)
        assert provenance["size"] == source.stat().st_size
        assert provenance["metric"] == "euclidean"
        assert provenance["features"] == [N, 6]
        assert provenance["checksum"].startswith("crc32c: ")
    in_frame = pairwise(frame, tmp_path / "frame", metric="euclidean", writing=DOUBLE)
    np.testing.assert_array_equal(whole(in_frame), expected)


def test_given_ids_take_the_place_of_the_files(tmp_path: Path) -> None:
    pd.DataFrame({"id": ["x", "y"], "a": [1.0, 2.0]}).to_csv(tmp_path / "f.csv", index=False)
    found = pairwise(tmp_path / "f.csv", tmp_path / "s", metric="euclidean", ids=["p", "q"])
    assert list(found.ids) == ["p", "q"]
    (tmp_path / "names.txt").write_text("r\ns\n")
    found = pairwise(str(tmp_path / "f.csv"), tmp_path / "t", metric="euclidean", ids=str(tmp_path / "names.txt"))
    assert list(found.ids) == ["r", "s"]


@pytest.mark.parametrize(("name", "text", "message"), [
    ("f.csv", "id,a,b\nx,1,2\ny,3\n", "Expected 3 columns, got 2.*as many fields"),
    ("f.csv", "id,a,b\nx,1,2\ny,3,oops\n", "line 3, column 'b': 'oops' is not a number"),
    ("f.tsv", "id\ta\nx\t1\ny\t\n", r"row 1 \(y\), column 'a': nan"),
    ("f.csv", "1.5,2.5\n3,4\n5,6\n", "add a header line"),
    ("f.csv", "id,a\nx,1\n,2\n", "name"),
    ("f.csv", "id,a\nx,1\nx,2\n", "not unique: x"),
    ("f.csv", "", "f.csv"),
    ("f.csv", "id,a\n", "0 rows"),
    ("f.csv", "id\nx\ny\n", "0 columns"),
    ("f.npy", "not an array", "no whole .npy"),
    ("f.npz", "not an archive", "f.npz"),
    ("f.parquet", "not a table", "cannot be read as Parquet"),
    ("f.xlsx", "?", "features are read from"),
])  # fmt: skip
def test_files_that_cannot_be_used(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message) as report:
        pairwise(tmp_path / name, tmp_path / "s", metric="euclidean")
    assert "\n" not in str(report.value)
    assert not (tmp_path / "s").exists()


def test_no_file_truncated_file_and_pickles(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        pairwise(tmp_path / "none.npy", tmp_path / "s", metric="euclidean")
    np.save(tmp_path / "cut.npy", normal_points(N, 6))
    data = (tmp_path / "cut.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"cut\.npy is truncated"):
        pairwise(tmp_path / "cut.npy", tmp_path / "s", metric="euclidean")
    np.save(tmp_path / "objects.npy", np.array([[print]], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="npy"):
        pairwise(tmp_path / "objects.npy", tmp_path / "s", metric="euclidean")
    np.savez(tmp_path / "two.npz", a=normal_points(N, 6), b=normal_points(N, 6))
    with pytest.raises(InputError, match=r"holds a \(45, 6\), b \(45, 6\); give one two-dimensional"):
        pairwise(tmp_path / "two.npz", tmp_path / "s", metric="euclidean")
