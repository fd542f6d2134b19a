"""The command line: wiring, exit codes, and what goes to stdout and what to stderr."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

import dasrel
from dasrel.cli import app
from dasrel.commands.demo import build_digits
from dasrel.errors import DasrelWarning, InputError
from dasrel.io.options import Reading
from dasrel.names import KINDS
from dasrel.store.matrix import open_matrix
from dasrel.store.options import Policy, Writing
from tests.helpers.matrices import distances, uniform_points
from tests.helpers.processes import command

N = 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a matrix and its features."""
    points = uniform_points(N, 4, 2)
    np.save(tmp_path / "points.npy", points)
    np.save(tmp_path / "dist.npy", distances(points))
    return tmp_path


@pytest.fixture
def store(folder: Path) -> Path:
    """A store of 50 objects in 6 tiles."""
    arguments = ["import", str(folder / "dist.npy"), str(folder / "d.zarr"), "--kind", "distance", "--tile", "20", "-q"]
    assert app.run(arguments) == 0
    return folder / "d.zarr"


# ------------------------------------------------------------------------------------------------------- as a program


def test_version_and_module(tmp_path: Path) -> None:
    done = command("--version", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(rf"dasrel {re.escape(dasrel.__version__)} \(kernels: (avx2|neon|none, NumPy)\)\n", done.stdout)


def test_the_installed_command_runs_this_code(tmp_path: Path) -> None:
    """Tests that start `dasrel` in a process of its own would else judge an older copy: install again if this fails."""
    where = "import dasrel; print(dasrel.__file__)"
    done = subprocess.run([sys.executable, "-c", where], cwd=tmp_path, capture_output=True, text=True, check=True)
    installed, here = Path(done.stdout.strip()).parent, Path(dasrel.__file__).parent
    sources = sorted(path.relative_to(here) for path in here.rglob("*.py"))
    assert sources == sorted(path.relative_to(installed) for path in installed.rglob("*.py"))
    assert [name for name in sources if (here / name).read_bytes() != (installed / name).read_bytes()] == []
    script = Path(sys.executable).with_name("dasrel")
    done = subprocess.run([script, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"dasrel {dasrel.__version__} (kernels: ")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, dasrel.cli.app;"
        "print([m for m in ('zarr', 'dask', 'scipy', 'sklearn', 'h5py', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_an_audit_loads_neither_zarr_nor_dask(folder: Path) -> None:
    assert command("import", "dist.npy", "light.zarr", "--kind", "distance", "--quiet", cwd=folder).returncode == 0
    code = (
        "import sys; from dasrel.cli import app; app.run(['audit', 'light.zarr', '--quiet']);"
        "print([m for m in ('zarr', 'dask', 'scipy', 'numcodecs', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    assert done.stdout.splitlines()[-1] == "[]"


def test_import_then_audit(folder: Path) -> None:
    done = command("import", "dist.npy", "d.zarr", "--kind", "distance", "--json", "--quiet", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["state"] == "complete"

    done = command("audit", "d.zarr", "--json", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    audit = json.loads(done.stdout)
    values = pdist(np.load(folder / "points.npy")).astype(np.float32)
    assert {name: audit[name] for name in ("n_objects", "kind", "state")} == {
        "n_objects": N,
        "kind": "distance",
        "state": "complete",
    }
    assert (audit["minimum"], audit["maximum"]) == (float(values.min()), float(values.max()))
    assert audit["mean"] == pytest.approx(values.mean(dtype=np.float64))
    assert audit["zeros"]["count"] == 0
    assert audit["asymmetry"]["largest"] == 0


def test_pairwise_then_export_gives_the_distances(folder: Path, here: Callable[..., Any]) -> None:
    done = here(
        "pairwise",
        "points.npy",
        "p.zarr",
        "--metric",
        "minkowski",
        "--metric-option",
        "p=3",
        "--json",
        "--quiet",
        cwd=folder,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["n_objects"] == N
    done = here("export", "p.zarr", "out.npy", "--format", "npy", "--json", "--quiet", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["out"] == "out.npy"
    expected = squareform(pdist(np.load(folder / "points.npy"), "minkowski", p=3))
    np.testing.assert_allclose(np.load(folder / "out.npy"), expected, rtol=1e-6)


def test_demo_is_simpson_of_the_digits(tmp_path: Path, here: Callable[..., Any]) -> None:
    from sklearn.datasets import load_digits

    build_digits(tmp_path / "digits.zarr")
    done = here("audit", "digits.zarr", "--json", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    audit = json.loads(done.stdout)
    ink = (load_digits().data > 8).astype(np.int64)
    common, size = ink @ ink.T, ink.sum(axis=1)
    pairs = (2 - 2 * common / np.minimum.outer(size, size))[np.triu_indices(len(ink), 1)]
    assert (audit["n_objects"], audit["kind"]) == (1797, "squared-distance")
    assert audit["mean"] == pytest.approx(pairs.mean(), rel=1e-6)
    assert audit["maximum"] == pytest.approx(pairs.max(), rel=1e-6)
    assert audit["zeros"]["count"] == np.count_nonzero(pairs == 0)


@pytest.mark.slow
def test_an_interrupt_is_one_line_and_130(folder: Path) -> None:
    np.save(folder / "many.npy", np.random.default_rng(1).random((6000, 200)))
    line = "pairwise many.npy m.zarr --metric jensenshannon --tile 64 -v --json"
    # A run in the background of a shell ignores interrupts, and hands that on to what it starts.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import dasrel.__main__ as m; m.main()"
    )
    program = [sys.executable, "-c", code, *line.split()]
    with subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert running.stdout is not None
        assert "version" in running.stderr.readline()
        while len(list(folder.glob("m.zarr/progress/c/*/*/0"))) < 3:  # tiles that are finished
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, errors = running.stdout.read(), running.stderr.read()
        assert running.wait(60) == 130
    assert errors.splitlines()[-1] == "dasrel: interrupted"
    assert "Traceback" not in errors
    assert json.loads(out) == {"error": "interrupted"}
    done = command("audit", "m.zarr", "--json", cwd=folder)
    audit = json.loads(done.stdout)
    assert audit["state"] == "writing"
    assert 0 < audit["tiles_written"] < audit["tiles"]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("arguments", [["audit", "d.zarr"], ["audit", "d.zarr", "--json"], ["audit", "none", "--json"]])
def test_a_reader_that_left_is_no_traceback(folder: Path, store: Path, arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = [sys.executable, "-m", "dasrel", *arguments]
    done = subprocess.run(program, cwd=folder, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


# ------------------------------------------------------------------------------------------------------ exact wiring


def caught(monkeypatch: pytest.MonkeyPatch, name: str, arguments: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def fake(*positional: Any, **named: Any) -> None:
        calls.append((positional, named))
        raise InputError("stop here")

    module, _, function = name.rpartition(".")
    monkeypatch.setattr(importlib.import_module(module), function, fake)
    assert app.run(arguments.split()) == 1
    return calls[0]


def test_import_passes_everything_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "names").write_text("a\nb\n")
    line = (
        f"import src d.zarr --kind similarity --format raw --ids {tmp_path}/names --shape 7 --dtype <f8 --columns a,2,v"
        " --dataset m --symmetrize mean --missing fill=0.5 --diagonal zero --clip-negative 1e-6 --duplicates last"
        " --store-dtype float64 --tile 64 --compress lz4 --memory 2GiB --resume --force"
    )
    positional, named = caught(monkeypatch, "dasrel.commands.import_.import_matrix", line)
    assert positional == ("src", "d.zarr")
    assert named == {
        "kind": "similarity",
        "reading": Reading(
            format="raw", ids=f"{tmp_path}/names", shape=7, dtype="<f8", columns=("a", 2, "v"), dataset="m"
        ),
        "policy": Policy(symmetrize="mean", missing=0.5, diagonal="zero", clip_negative=1e-6, duplicates="last"),
        "writing": Writing(dtype="float64", tile=64, compress="lz4", memory="2GiB", resume=True, force=True),
    }


def test_import_asks_for_nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    _, named = caught(monkeypatch, "dasrel.commands.import_.import_matrix", "import src d.zarr --kind kernel")
    assert named == {"kind": "kernel", "reading": Reading(), "policy": Policy(), "writing": Writing()}


def test_missing_max(monkeypatch: pytest.MonkeyPatch) -> None:
    _, named = caught(monkeypatch, "dasrel.commands.import_.import_matrix", "import s d --kind distance --missing max")
    assert named["policy"] == Policy(missing="max")


def test_pairwise_passes_everything_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    line = (
        "pairwise x.npy d.zarr --metric rbf --kind kernel --metric-option gamma=0.1 --packed-bits"
        f" --ids {tmp_path}/names --store-dtype float64 --tile 64 --compress lz4 --memory 2GiB --resume --force"
    )
    positional, named = caught(monkeypatch, "dasrel.commands.pairwise.pairwise", line)
    assert positional == ("x.npy", "d.zarr")
    assert named == {
        "ids": f"{tmp_path}/names",
        "metric": "rbf",
        "kind": "kernel",
        "metric_options": {"gamma": 0.1},
        "packed_bits": True,
        "writing": Writing(dtype="float64", tile=64, compress="lz4", memory="2GiB", resume=True, force=True),
    }


def test_export_and_audit_pass_everything_on(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "export d.zarr out --format lsmat --memory 2GiB --force"
    assert caught(monkeypatch, "dasrel.commands.export.prepare_export", line) == (
        ("d.zarr", "out"),
        {"format": "lsmat", "memory": "2GiB", "force": True},
    )
    line = "audit d.zarr --verify --memory 2GiB"
    assert caught(monkeypatch, "dasrel.commands.audit.audit_store", line) == (
        ("d.zarr",),
        {"verify": True, "memory": "2GiB"},
    )


# --------------------------------------------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("import a", "Missing argument"),
        ("import a b --kind distance --columns a,b", "three columns"),
        ("import a b --kind distance --columns 0,1,2", "number from 1"),
        ("import a b --kind distance --missing 3", "'3' is neither max nor fill=VALUE"),
        ("import a b --kind distance --missing fill=nan", "neither max nor fill=VALUE"),
        ("import a b --kind distance --symmetrize min", "--symmetrize"),
        ("import a b --kind distance --diagonal one", "--diagonal"),
        ("import a b --kind distance --duplicates first", "--duplicates"),
        ("import a b --kind distance --store-dtype int8", "--store-dtype"),
        ("import a b --kind distance --compress zip", "--compress"),
        ("import a b --kind distance --shape many", "--shape"),
        ("import a b --kind distance --no-such", "--no-such"),
        ("pairwise a b", "--metric"),
        ("pairwise a b --metric minkowski --metric-option p", "NAME=NUMBER"),
        ("pairwise a b --metric euclidean --kind nearness", "'--kind': "),
        ("export a b --format xls", "--format"),
        ("audit", "STORE"),
        ("audit a b", "b"),
        ("nonsense", "nonsense"),
    ],
)
def test_usage_errors_exit_2(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([*line.split(), "--json"]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert list(json.loads(out)) == ["error"]
    assert app.run(line.split()) == 2
    assert capsys.readouterr().out == ""


def test_without_a_kind_the_four_words_are_explained(tmp_path: Path, here: Callable[..., Any]) -> None:
    done = here("import", "a.npy", "b.zarr", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    lines = [line.strip().split(maxsplit=1) for line in done.stderr.splitlines()[-4:]]
    assert lines == [[name, meaning] for name, meaning in KINDS.items()]


def test_no_arguments_show_the_help(tmp_path: Path) -> None:
    done = command(cwd=tmp_path)
    assert done.returncode in (0, 2)  # older versions of typer say 0
    for name in ("import", "pairwise", "export", "audit", "cluster", "predict", "demo"):
        assert name in done.stdout + done.stderr


def test_an_error_is_one_line_and_1(tmp_path: Path, here: Callable[..., Any]) -> None:
    done = here("audit", "nowhere", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("dasrel: no store at nowhere;")
    assert done.stderr.count("\n") == 1

    done = here("audit", "nowhere", "--json", "-vv", cwd=tmp_path)
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"].startswith("no store at nowhere;")
    assert "Traceback (most recent call last)" in done.stderr


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FileNotFoundError(2, "No such file or directory", "a\x1b[0m"), r"dasrel: a\x1b[0m: No such file or directory"),
        (
            OSError(28, "No space left on device"),
            "dasrel: the disk is full: what was being written is not there; free some space and run again",
        ),
        (MemoryError(), "dasrel: out of memory; lower --memory or use smaller tiles (--tile)"),
        (InputError("two\nlines"), r"dasrel: two\nlines"),
        (KeyError("x"), "dasrel: unexpected KeyError: 'x' (a defect of dasrel; -vv shows where)"),
    ],
)
def test_any_error_is_one_escaped_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, message: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("dasrel.commands.audit.audit_store", fail)
    assert app.run(["audit", "d.zarr"]) == 1
    assert capsys.readouterr() == ("", message + "\n")


def test_faults_found_by_verify_exit_1(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["audit", str(store), "--verify"]) == 0
    assert "6 tiles read, no faults" in capsys.readouterr().out
    (store / "values" / "c" / "0" / "1").unlink()
    assert app.run(["audit", str(store), "--verify", "--json"]) == 1
    out, err = capsys.readouterr()
    assert [fault["tile"] for fault in json.loads(out)["verified"]["bad"]] == [[0, 1]]
    assert err == "dasrel: 1 fault; restore these tiles from a copy, or import again\n"


# ---------------------------------------------------------------------------------------------------- who hears what


def test_warnings_of_dasrel_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    from dasrel.store.audit import audit_store

    def warn(*positional: Any, **named: Any) -> dict[str, Any]:
        warnings.warn("mind\nthis", DasrelWarning, stacklevel=2)
        return audit_store(*positional, **named)

    monkeypatch.setattr("dasrel.commands.audit.audit_store", warn)
    assert app.run(["audit", str(store), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == "dasrel: warning: mind\\nthis\n"
    assert json.loads(out)["state"] == "complete"


def test_quiet_says_nothing(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["audit", str(store), "--quiet", "--verify"]) == 0
    assert capsys.readouterr() == ("", "")


def test_verbose_counts_on_stderr(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["audit", str(store), "-v", "--verify", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["verified"]["bad"] == []
    assert f"dasrel: version {dasrel.__version__}" in err
    assert "dasrel: 1 scan, 6 tiles" in err


def test_names_cannot_talk_to_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = np.load(folder / "dist.npy")
    matrix[0, 1] = matrix[1, 0] = 0
    np.save(folder / "dist.npy", matrix)
    names = ["\x1b]0;owned\x07", "[red]b[/red]", *(f"n{k}" for k in range(2, N))]
    (folder / "names").write_text("\n".join(names) + "\n")
    line = ["import", str(folder / "dist.npy"), str(folder / "d.zarr"), "--kind", "distance"]
    assert app.run([*line, "--ids", str(folder / "names")]) == 0
    out, err = capsys.readouterr()
    assert r"such as \x1b]0;owned\x07 and [red]b[/red]" in out
    assert "\x1b" not in out + err
    assert [str(name) for name in open_matrix(folder / "d.zarr").ids] == names


def test_an_existing_store_is_only_replaced_by_force(folder: Path, store: Path) -> None:
    line = ["import", str(folder / "dist.npy"), str(store), "--kind", "squared-distance"]
    assert app.run(line) == 1
    assert open_matrix(store).kind == "distance"
    assert app.run([*line, "--force"]) == 0
    assert open_matrix(store).kind == "squared-distance"
