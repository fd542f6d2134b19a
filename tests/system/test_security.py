"""What is given to dasrel is data: nothing in it is run, followed or shown as it is, and no secret is passed on.

That no socket is made without a cluster and that a local cluster listens on loopback only is tested in
engine/test_runtime.py, that workflow files cannot say what a cluster runs in workflow/test_schema.py; here are all
kinds of files together.
"""

import functools
import json
import os
import pickle
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

import dasrel
from dasrel import Reading, Writing
from dasrel.errors import DasrelError
from dasrel.geometry.tree import Tree
from tests.helpers.matrices import distances, uniform_points
from tests.helpers.processes import ran
from tests.helpers.runs import grid

pytestmark = pytest.mark.filterwarnings("ignore:.*did not converge:dasrel.DasrelWarning")

N = 24


def texts(*folders: Path) -> str:
    """All that lies in folders, as text, packed archives unpacked."""
    found = []
    for one in (file for place in folders for file in place.rglob("*")):
        if one.is_file():
            found.append(one.read_bytes().decode("latin-1"))
        if one.suffix == ".npz":
            with np.load(one, allow_pickle=False) as members:
                found += [members[name].tobytes().decode("latin-1") for name in members.files]
        found.append(one.name)
    return "\n".join(found)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    dasrel.import_matrix(distances(uniform_points(N)), tmp_path / "s.zarr", kind="distance", writing=Writing(tile=8))
    return tmp_path / "s.zarr"


CLUSTER = ("--rule", "fcm1", "--clusters", 2, "--n-init", 1, "--max-iter", 4, "--tol", 0)

# ------------------------------------------------------------------------------------------------------------- pickles


class Bomb:
    """Unpickled, it leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """A folder that only a bomb makes; that it would is seen here."""
    place = tmp_path / "unpickled"
    pickle.loads(pickle.dumps(Bomb(place)))
    place.rmdir()
    yield place
    assert not place.exists()


def test_nothing_is_unpickled(tmp_path: Path, store: Path, mark: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Every member of every archive that dasrel writes, replaced by an object that would do harm, one at a time."""
    assert ran("cluster", store, tmp_path / "out", *CLUSTER, "--quiet") == 0
    assert ran("euclideanize", store, "--method", "ultrametric", "--out", tmp_path / "e.npz", "--quiet") == 0
    assert ran("tree", store, tmp_path / "tree", "--quiet") == 0
    kept = tmp_path / "kept"
    with pytest.raises(KeyboardInterrupt), dasrel.watch(interrupted):
        dasrel.cluster(store, grid("fcm1", 2, max_iter=6, tol=0.0), checkpoint=dasrel.Checkpoint(kept))
    newest = max(kept.glob("cluster-*.npz"))
    for older in set(kept.glob("cluster-*.npz")) - {newest}:
        older.unlink()
    np.save(tmp_path / "rows.npy", distances(uniform_points(N)))
    out = tmp_path / "new"
    readers = {
        tmp_path / "out" / "model.npz": ("predict", tmp_path / "out", tmp_path / "rows.npy", out),
        tmp_path / "e.npz": ("cluster", store, out, *CLUSTER, "--euclideanize", tmp_path / "e.npz"),
        newest: ("cluster", store, out, *CLUSTER[:-3], 6, "--tol", 0, "--checkpoint", kept, "--resume"),
    }
    for file, command in readers.items():
        good = file.read_bytes()
        with np.load(file, allow_pickle=False) as members:
            whole = {name: members[name] for name in members.files}
        for name in whole:
            np.savez(file, **{**whole, name: np.array([Bomb(mark)], dtype=object)})
            capfd.readouterr()
            assert ran(*command, "--quiet") == 1, name
            lines = capfd.readouterr().err.splitlines()
            assert len(lines) == 1, lines
            assert "which are never loaded" in lines[0] or "is not a" in lines[0], lines
            assert not mark.exists()
        file.write_bytes(pickle.dumps(Bomb(mark)))
        assert ran(*command, "--quiet") == 1
        file.write_bytes(good)
    capfd.readouterr()
    with np.load(tmp_path / "tree" / "tree.npz", allow_pickle=False) as members:
        whole = {name: members[name] for name in members.files}
    for name in whole:
        np.savez(tmp_path / "tree" / "tree.npz", **{**whole, name: np.array([Bomb(mark)], dtype=object)})
        with pytest.raises(DasrelError, match="which are never loaded"):
            Tree.load(tmp_path / "tree" / "tree.npz")


def interrupted(progress: Any) -> None:
    if progress.scans > 3:
        raise KeyboardInterrupt


def test_arrays_of_results_and_starts(
    tmp_path: Path, store: Path, mark: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Memberships beside a model, starts, rows and features that are pickles."""
    assert ran("cluster", store, tmp_path / "out", *CLUSTER, "--quiet") == 0
    bomb, new = tmp_path / "bomb.npy", tmp_path / "new"
    np.save(bomb, np.array([[Bomb(mark)]], dtype=object))
    shutil.copy(bomb, tmp_path / "out" / "memberships.npy")
    for command in (
        ("cluster", store, new, *CLUSTER, "--init", bomb),
        ("cluster", store, new, *CLUSTER, "--warm-start", tmp_path / "out"),
        ("predict", tmp_path / "out", bomb, new),
        ("import", bomb, new, "--kind", "distance"),
        ("pairwise", bomb, new, "--metric", "euclidean"),
        ("append", store, bomb),
        ("image", store, tmp_path / "new.png", "--order", "labels", "--result", tmp_path / "out"),
    ):
        capfd.readouterr()
        assert ran(*command, "--quiet") == 1, command
        lines = [line for line in capfd.readouterr().err.splitlines() if "warning" not in line]
        assert len(lines) == 1, (command, lines)
        assert not new.exists()


@pytest.mark.parametrize("place", ["ids", "values", "records"])
def test_a_store_with_pickles_in_it(store: Path, mark: Path, capfd: pytest.CaptureFixture[str], place: str) -> None:
    """Chunks that are pickles, and Zarr's old codec for objects named in the metadata."""
    for chunk in [one for one in (store / place / "c").rglob("*") if one.is_file()]:
        chunk.write_bytes(pickle.dumps(Bomb(mark)))
    ran("cluster", store, store.parent / "out", *CLUSTER, "--quiet")
    ran("audit", store, "--verify", "--quiet")
    assert not (store.parent / "out").exists() or place == "records"
    about = json.loads((store / place / "zarr.json").read_text())
    about["codecs"] = [{"name": "numcodecs.pickle", "configuration": {}}]
    (store / place / "zarr.json").write_text(json.dumps(about))
    capfd.readouterr()
    if place != "records":
        assert ran("cluster", store, store.parent / "new", *CLUSTER, "--quiet") == 1
        assert len(capfd.readouterr().err.splitlines()) == 1


def test_a_workflow_file_is_data(tmp_path: Path, mark: Path, capfd: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "d.npy", distances(uniform_points(N)))
    shell = f"$(mkdir {mark}); `mkdir {mark}`; {{{{ mkdir }}}}"
    file = tmp_path / "w.toml"
    for text in (
        f"[import]\nsource = {json.dumps(shell)}\nkind = 'distance'\n",
        f"out = {json.dumps(str(mark) + chr(0))}\n[import]\nsource = 'd.npy'\nkind = 'distance'\n",
        "[import]\nsource = 'd.npy'\nkind = '!!python/object/apply:os.system [\"true\"]'\n",
        f"[import]\nsource = 'd.npy'\nkind = 'distance'\n[shell]\ncommand = {json.dumps(shell)}\n",
        "['__import__(\"os\")'.x]\na = 1\n",
        "[import.'../../up']\nsource = 'd.npy'\nkind = 'distance'\n",
    ):
        file.write_text(text)
        assert ran("run", file, "--quiet") in (1, 2), text
        assert not mark.exists()
    file.write_bytes(pickle.dumps(Bomb(mark)))
    assert ran("run", file, "--quiet") == 1
    assert "is not TOML" in capfd.readouterr().err.splitlines()[-1]
    assert not (tmp_path.parent / "up").exists()


# -------------------------------------------------------------------------------------------------------- what is shown


NASTY = [
    "../../escaped", "/etc/escaped", "\x1b[31mred\x1b[0m", "two\nlines", "back\rover", "[bold red]b[/bold red]",
    "[link=file:///etc/passwd]l[/link]", "<script>alert(1)</script>", "\x9b2J", "\u202eright", "=1+1", "a,b\"c",
]  # fmt: skip


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    names = [*NASTY, *(f"o{k}" for k in range(N - len(NASTY)))]
    place = tmp_path / "inner" / "s.zarr"
    reading = Reading(ids=names)
    dasrel.import_matrix(distances(uniform_points(N)), place, kind="distance", reading=reading, writing=Writing(tile=8))
    return place


def printable(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("tty", [False, True])
def test_names_are_escaped_and_never_followed(
    nasty: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tty: bool
) -> None:
    """Whatever a command prints, for people on a terminal too, holds no control characters of the data."""
    folder = nasty.parent
    if tty:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setenv("NO_COLOR", "1")
    commands = [
        ("cluster", nasty, folder / "out", "--rule", "hard", "--clusters", N - 1, "--n-init", 1),
        ("audit", nasty),
        ("tree", nasty, folder / "tree"),
        ("image", nasty, folder / "a.png"),
        ("export", nasty, folder / "d.lsmat", "--format", "lsmat"),
        ("append", nasty, folder / "rows.csv"),
        ("spectrum", nasty),
    ]
    (folder / "rows.csv").write_text("x\n\x1b]0;owned\x07,1\n")
    for command in commands:
        ran(*command)
        report = capfd.readouterr()
        output = report.out.replace("\x1b[1m", "").replace("\x1b[0m", "") if tty else report.out  # our own bold
        assert printable(output), (command, output)
        assert printable(report.err), (command, report.err)
    outside = [one.name for one in folder.parent.iterdir()]
    assert outside == ["inner"]
    assert not list(folder.rglob("*escaped*"))
    assert not Path("/etc/escaped").exists()


def test_rich_markup_in_names_is_text(nasty: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two objects with one name, and one that is not there: the errors show the markup as it is."""
    (nasty.parent / "d.csv").write_text("x,[bold]a[/bold],[bold]a[/bold]\n[bold]a[/bold],0,1\n[bold]a[/bold],1,0\n")
    assert ran("import", nasty.parent / "d.csv", nasty.parent / "t", "--kind", "distance") == 1
    assert "[bold]a[/bold]" in capfd.readouterr().err


def test_paths_that_talk_to_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    strange = tmp_path / "a\x1b[31m\nb"
    for command in (
        ("spectrum", strange), ("import", strange, tmp_path / "s", "--kind", "distance"), ("run", strange),
        ("predict", strange, strange, tmp_path / "p.csv"), ("audit", strange), ("append", strange, strange),
    ):  # fmt: skip
        for more in ((), ("-vv",)):
            assert ran(*command, *more) == 1
            report = capfd.readouterr()
            assert printable(report.err), report.err
            if not more:
                assert len(report.err.splitlines()) == 1


# ------------------------------------------------------------------------------------------------------------- secrets


SECRETS = ("hunter2", "s3cr3t", "AKIAGEHEIM", "wJalrGEHEIM")


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAGEHEIM")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrGEHEIM")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A Zarr array on a web server that does not look at passwords; the address has one."""
    zarr.create_array(tmp_path / "web" / "d.zarr", data=distances(uniform_points(N)), chunks=(8, 8))

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *words: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path / "web"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://me:hunter2@127.0.0.1:{made.server_port}/d.zarr"
        made.shutdown()


def clean(text: str) -> bool:
    return not any(secret in text for secret in SECRETS)


class Shared(MemoryFileSystem):  # type: ignore[misc]
    """Storage that takes any address, `shared://`, and lasts as long as this process."""

    protocol = "shared"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("shared://", "memory://")))


@pytest.mark.usefixtures("secrets")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_secrets_of_addresses_stay_where_they_are(
    tmp_path: Path, server: str, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("aiohttp")
    store = tmp_path / "s.zarr"
    fsspec.register_implementation("shared", Shared, clobber=True)
    remote = "shared://me:s3cr3t@host/m.zarr"
    good = [
        ("import", server, store, "--kind", "distance", "--tile", 8),
        ("import", server, remote, "--kind", "distance", "--tile", 8),
        ("cluster", remote, tmp_path / "out", *CLUSTER, "--checkpoint", tmp_path / "kept", "-vv"),
        ("audit", remote),
        ("spectrum", remote),
        ("plan", remote, "--rule", "fcm1", "--clusters", 3),
        ("euclideanize", remote, "--method", "ultrametric", "--out", tmp_path / "e.npz"),
    ]
    bad = [
        ("import", server, remote, "--kind", "distance"),
        ("import", "s3://me:hunter2@bucket/x?X-Amz-Signature=s3cr3t", tmp_path / "t", "--kind", "distance"),
        ("spectrum", "memory://me:hunter2@host/none"),
        ("append", remote, "http://me:hunter2@127.0.0.1:9/rows.zarr"),
        ("predict", tmp_path / "out", "http://me:hunter2@127.0.0.1:9/rows.zarr", tmp_path / "p"),
        ("cluster", store, tmp_path / "o", *CLUSTER, "--scheduler", "tcp://me:hunter2@127.0.0.1:9"),
        ("cluster", store, "memory://me:hunter2@host/out", *CLUSTER, "--checkpoint", "s3://me:hunter2@b/c"),
    ]
    for command, wrong in [*((one, False) for one in good), *((one, True) for one in bad)]:
        for more in ((), ("--json",), ("-vv",)) if wrong else (("--json",),):
            code = ran(*command, *more)
            report = capfd.readouterr()
            assert (code != 0) == wrong, (command, report)
            assert clean(report.out), (command, report.out)
            assert clean(report.err), (command, report.err)
    assert clean(texts(store, tmp_path / "out"))
    assert "***@" in texts(store)  # the address itself is told
    assert clean((tmp_path / "e.npz").read_bytes().decode("latin-1"))


@pytest.mark.usefixtures("secrets")
def test_a_workflow_keeps_secrets(tmp_path: Path, server: str, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("aiohttp")
    file = tmp_path / "w.toml"
    file.write_text(
        f"[import]\nsource = '{server}'\nkind = 'distance'\ntile = 8\n"
        "[cluster]\nrule = ['hard']\nclusters = [2]\nn_init = 1\n"
    )
    ran("run", file, "--log-json", tmp_path / "log.jsonl", "--json")
    ran("run", file, "--status", "--json")
    report = capfd.readouterr()
    assert clean(report.out)
    assert clean(report.err)
    log = (tmp_path / "log.jsonl").read_text()
    assert log
    assert clean(log)
    assert clean(texts(tmp_path / "w"))
