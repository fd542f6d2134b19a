"""Where work runs: real schedulers and worker processes, real certificates, MPI, and what is said of failures."""

import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pydantic
import pytest

import dasrel
from dasrel.cli import app
from dasrel.engine.cluster_settings import parsed_cluster
from dasrel.engine.launch import kubernetes_arguments
from dasrel.engine.runtime import Runtime, connect, environment, is_loopback
from dasrel.errors import InputError
from dasrel.util import parallel
from tests.helpers.processes import refused, unmoved

pytestmark = pytest.mark.usefixtures("patience")


# -------------------------------------------------------------------------------------------------------- what is asked


@pytest.mark.parametrize(
    ("values", "output"),
    [
        ({"scheduler": "tcp://a:1", "dask": "local"}, "scheduler and dask are given"),
        ({"scheduler": "tcp://a:1", "scheduler_file": "b"}, "scheduler and scheduler file are given"),
        ({"dask": "locl"}, r"dask 'locl' is unknown; did you mean local\?"),
        ({"dask": "local:worker=2"}, r"no setting 'worker'; .*did you mean workers"),
        ({"dask": "local:workers=0"}, "workers is '0'"),
        ({"dask": "local:workers"}, "'workers' is not NAME=VALUE"),
        ({"dask": "local:workers=2,workers=3"}, "given twice"),
        ({"dask": "local:workers=2", "workers": 3}, "would never come"),
        ({"scheduler": "tcp://a:1", "wait": 0.0}, "wait is 0"),
        ({"scheduler": "tcp://a:1", "stall": -1.0}, "stall is -1"),
        (
            {"scheduler": "tls://a:1", "tls_ca": "ca.pem", "tls_key": "k.pem"},
            r"tls cert is missing; TLS takes Runtime\(tls_ca=...\)",
        ),
        ({"dask": "mpi", "tls_ca": "a", "tls_cert": "b", "tls_key": "c"}, "mpi takes no TLS"),
    ],
)
def test_what_cannot_be_meant_is_refused(values: dict[str, Any], output: str) -> None:
    with pytest.raises(InputError, match=output):
        Runtime(**values)
    # The same in a workflow's file, by pydantic; and on the command line, where it is a wrong use.
    with pytest.raises(pydantic.ValidationError, match=output):
        pydantic.TypeAdapter(Runtime).validate_python(values)


def test_a_password_in_an_address_is_never_shown(store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    secret = "tcp://me:geheim@127.0.0.1:9"
    assert "geheim" not in refused(["spectrum", store, "--scheduler", secret], capfd, 2)
    (tmp_path / "s.json").write_text(json.dumps({"address": secret}))
    assert "geheim" not in refused(["spectrum", store, "--scheduler-file", str(tmp_path / "s.json")], capfd)


def test_settings_of_a_cluster() -> None:
    text = "slurm:queue=debug,jobs=2,memory=1GB,walltime=00:10:00,directive=--qos=high,directive=--exclusive"
    assert parsed_cluster(text) == (
        "slurm",
        {
            **{"queue": "debug", "jobs": 2, "memory": "1GB", "walltime": "00:10:00"},
            "directive": ["--qos=high", "--exclusive"],
        },
    )
    assert parsed_cluster("mpi") == ("mpi", {})


def test_the_command_line_goes_before_the_environment_and_that_before_a_file() -> None:
    there = environment({"DASREL_DASK": "local:workers=2", "DASREL_WORKERS": "2", "DASREL_SCHEDULER": ""})
    assert there == Runtime(dask="local:workers=2", workers=2)
    assert Runtime(scheduler="tcp://a:1").over(there) == Runtime(scheduler="tcp://a:1", workers=2)
    file = Runtime(**tomllib.loads('[runtime]\nscheduler_file = "s.json"\nwait = 5.5')["runtime"])
    assert there.over(file) == Runtime(dask="local:workers=2", workers=2, wait=5.5)
    assert Runtime().over(file) == file
    with pytest.raises(InputError, match="DASREL_WAIT is 'soon', which is no number"):
        environment({"DASREL_WAIT": "soon"})
    assert environment({"DASREL_STALL": "7"}).over(Runtime(stall=5.0, wait=2.0)) == Runtime(stall=7.0, wait=2.0)
    with pytest.raises(InputError, match=r"in the environment .*known: local"):
        environment({"DASREL_DASK": "cloud"})
    with pytest.raises(InputError, match="did you mean DASREL_DASK"):
        environment({"DASREL_CLUSTER": "local:workers=2"})


def test_workers_without_a_cluster_are_no_silent_wish(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert "workers is given, but no cluster; add --scheduler, " in refused(
        ["spectrum", store, "--workers", "2"], capfd
    )


# -------------------------------------------------------------------------------------------------------- local threads


@pytest.mark.slow
def test_without_a_cluster_no_socket_is_made(store: str, tmp_path: Path) -> None:
    """Python tells of every socket that a process makes; tiles are read, written, computed and drawn without any."""
    code = (
        "import sys, socket\n"
        "def hook(event, arguments):\n"
        "    if event.startswith('socket.') and (event != 'socket.__new__' or arguments[1] != socket.AF_UNIX):\n"
        "        print(event, arguments, file=sys.stderr)\n"
        "sys.addaudithook(hook)\n"
        "from dasrel.cli.app import run\n"
        "if sys.argv[1] == 'try': socket.socket().bind(('127.0.0.1', 0))\n"
        "else: raise SystemExit(run(sys.argv[1:]))\n"
    )

    def seen(*arguments: str) -> str:
        line = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "socket.bind" in seen("try")  # such a hook would notice
    assert (
        seen("cluster", store, "out", "--rule", "fcm2", "--clusters", "2", "--n-init", "2", "-q", "--tol", "0.1") == ""
    )


# ------------------------------------------------------------------------------------------------------ a local cluster


@pytest.mark.slow
@pytest.mark.cluster
def test_a_local_cluster_is_on_loopback_has_a_dashboard_and_leaves_nothing(store: str) -> None:
    pytest.importorskip("bokeh", reason="the dashboard is drawn by bokeh: dasrel[dashboard]")
    output: list[str] = []
    here = dasrel.spectrum(store)
    before = set(psutil.Process().children(recursive=True))
    with connect(Runtime(dask="local:workers=2,memory=1GB"), tell=output.append) as client:
        assert dasrel.spectrum(store).lowest == here.lowest
        workers = client.run(os.getpid)
        assert len({*workers.values(), os.getpid()}) == 3  # each in a process of its own
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        open_ports = [
            found.laddr.ip
            for process in processes
            for found in process.net_connections("inet")
            if found.status == psutil.CONN_LISTEN
        ]
        assert len(open_ports) >= 4
        assert set(open_ports) == {"127.0.0.1"}
        link = re.fullmatch(r"scheduler tcp://127\.0\.0\.1:\d+, dashboard (http://127\.0\.0\.1:\d+/status)", output[0])
        assert link is not None
        with urllib.request.urlopen(link[1], timeout=20) as page:
            assert page.status == 200
        assert output[1] == "workers 2, threads 2"
    assert parallel.active_client() is None
    assert [
        child for child in set(psutil.Process().children(recursive=True)) - before if "spawn_main" in child.cmdline()
    ] == []


@pytest.mark.slow
@pytest.mark.cluster
def test_memory_is_checked_before_the_first_tile(store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A run of 20 clusters takes more than such a worker has left; nothing is read, nothing is written."""
    requested = ["--rule", "hard", "--clusters", "20", "--dask", "local:workers=2,memory=100010kB"]
    line = refused(["cluster", store, str(tmp_path / "out"), *requested], capfd)
    assert re.search(
        r"needs .* on worker tcp://127\.0\.0\.1:\d+ .* which has 1 byte for them; give workers more memory", line
    )
    assert not (tmp_path / "out").exists()
    line = refused(["spectrum", store, "--dask", "local:workers=1,memory=2MB"], capfd)
    assert "memory is 2MB for a worker, and an idle one takes 100 MB already" in line
    assert "or such as 2GB" in refused(["spectrum", store, "--dask", "local:memory=much"], capfd, 2)


@pytest.mark.slow
@pytest.mark.cluster
def test_small_workers_get_narrower_bundles_and_come_to_the_end(store: str, tmp_path: Path) -> None:
    """They have 20 MB for work; an estimate without what they take themselves paused them for ever."""
    requested = [
        "--rule",
        "hard",
        "--clusters",
        "20",
        "--n-init",
        "500",
        "--max-iter",
        "2",
        "--init",
        "random",
        "--json",
    ]
    out = tmp_path / "out"
    assert app.run(["cluster", store, str(out), *requested, "--dask", "local:workers=2,memory=150MB"]) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["bundles"] > 1
    assert result["runs"] == 500


@pytest.mark.cluster
def test_the_environment_names_the_cluster(store: str, monkeypatch: Any, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DASREL_DASK", "local:workers=1")
    assert app.run(["tree", store, "tree", "--dry-run"]) == 0
    assert unmoved(capfd.readouterr().err) == []  # nothing is started to say what would be done
    assert app.run(["audit", store, "--verify", "--json"]) == 0
    assert unmoved(capfd.readouterr().err)[1:] == ["dasrel: workers 1, threads 1"]


@pytest.mark.parametrize(
    ("where", "output"),
    [
        (["--scheduler", "tcp://127.0.0.1:9"], "cannot reach the scheduler tcp://127.0.0.1:9: .*; is it running"),
        (["--scheduler", "127.0.0.1"], "missing port number"),
        (["--scheduler", "ftp://127.0.0.1:9"], "unknown address scheme 'ftp'"),
        (["--scheduler", "tls://127.0.0.1:9"], "asks for TLS; give --tls-ca"),
        (["--scheduler-file", "absent.json"], "no scheduler has written this file"),
        (["--scheduler-file", __file__], "is no scheduler file"),
    ],
)
def test_what_cannot_be_reached(where: list[str], output: str, store: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert re.search(output, refused(["spectrum", store, *where, "--wait", "0.5"], capfd))


def test_addresses_of_this_machine_only() -> None:
    inside = ("tcp://127.0.0.1:8786", "tcp://127.8.9.1:1", "tcp://[::1]:8786", "tcp://localhost:8786")
    outside = ("tcp://10.1.2.3:8786", "tcp://[2001:db8::1]:1", "tcp://head.cluster:8786", "tcp://0.0.0.0:1")
    assert [is_loopback(address) for address in (*inside, *outside)] == [True] * 4 + [False] * 4


def test_pods() -> None:
    requested = parsed_cluster("kubernetes:image=lab/dasrel:1,workers=3,memory=4GiB,cpus=2,namespace=lab,name=night")[1]
    amounts = {"cpu": "2", "memory": str(4 * 2**30)}
    assert kubernetes_arguments(requested) == {
        **{"image": "lab/dasrel:1", "n_workers": 3, "namespace": "lab", "name": "night"},
        "resources": {"limits": amounts, "requests": amounts},
    }
    assert kubernetes_arguments({"spec": "c.yaml"}) == {"custom_cluster_spec": "c.yaml"}
    with pytest.raises(InputError, match="memory is given beside spec"):
        kubernetes_arguments({"spec": "c.yaml", "memory": "1GB"})
    with pytest.raises(InputError, match="image is missing"):
        kubernetes_arguments({"workers": 2})
