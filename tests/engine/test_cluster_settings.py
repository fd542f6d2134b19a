"""Settings of clusters: what each may be, and that none of them is run by the shell of a job."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from dasrel.engine.cluster_settings import SETTINGS, parsed_cluster, shell_word
from dasrel.engine.runtime import Runtime, connect
from dasrel.errors import ClusterError, InputError

WORDS = (
    *("$(touch x)", "`touch x`", "a;touch x", "a&touch x", "a|touch x", "a\ntouch x", "a\rtouch x", "a touch", "a>x"),
    *("'a'", '"a"', "a\\", "a$((1))", "${a:-$(touch x)}", "$", "\x1b[2Ja", "a\u2028b"),
)
RUN = ("prologue", "directive", "spec")
"""What the user says is run, or read as a file."""


def test_what_the_shell_would_read_is_refused_or_quoted() -> None:
    quoted = set()
    for kind, known in SETTINGS.items():
        for name in known:
            for word in (word for word in WORDS if name not in RUN or not word.isprintable()):
                text = f"{kind}:{name}={word}"
                if name in ("python", "scratch") and (kind, fit_for_a_place(word)) == ("slurm", True):
                    assert parsed_cluster(text)[1][name] == word
                    quoted.add(shell_word(word))
                    continue
                with pytest.raises(InputError) as raised:
                    parsed_cluster(text)
                assert re.fullmatch(rf"dask {kind}: {name} is .+; .+", str(raised.value)), text
    assert quoted == {'"a;touch x"', '"a&touch x"', '"a|touch x"', '"a touch"', '"a>x"', "\"'a'\""}


def fit_for_a_place(word: str) -> bool:
    """Whether double quotes hold this word together."""
    return word.isprintable() and not {*word} & {*'$`"\\'}


def test_usual_values_are_taken() -> None:
    for setting in (
        *("queue=cpu-long", "account=lab_7.x", "walltime=90", "walltime=1-12:00:00", "walltime=02:00:00"),
        *("interface=ib0", "interface=eth0.100", "logs=/home/a.b/job-1", "logs=~/logs", "scratch=$TMPDIR/dasrel"),
        *("scratch=/scratch/${USER}/my files", "python=$HOME/env/bin/python", "memory=1.5 GiB", "jobs=12"),
    ):
        name, _, value = setting.partition("=")
        assert str(parsed_cluster(f"slurm:{setting}")[1][name]) == value
    for setting in ("image=quay.io/lab/dasrel:1.2@sha256:ab", "cpus=500m", "namespace=lab-1", "name={user}-night"):
        name, _, value = setting.partition("=")
        assert parsed_cluster(f"kubernetes:{setting}")[1][name] == value
    for setting in ("jobs=0", "jobs=-1", "jobs=1.5", "memory=much", "walltime=soon", "queue=-p", "logs=a b"):
        with pytest.raises(InputError, match=f"dask slurm: {setting.partition('=')[0]} is "):
            parsed_cluster(f"slurm:{setting}")


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an sbatch that runs the script of a job, and waits for its end."""
    pytest.importorskip("dask_jobqueue", reason="it is an extra: dasrel[slurm]")
    for name, body in (
        ("sbatch", f'cp "$1" {tmp_path}/script; bash "$1" >&2; echo "Submitted batch job 1"'),
        ("scancel", "exit 0"),
        ("its python", f'printf "%s\\n" "$@" > {tmp_path}/arguments'),
    ):
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def submitted(settings: str, **more: Any) -> None:
    with pytest.raises(ClusterError, match="0 of 1 worker"), connect(Runtime(dask=settings, wait=0.1, **more)):
        pass


@pytest.mark.slow
def test_every_setting_in_the_script_of_a_job(batch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell has run the script: the program got each value as one word, and nothing else was run."""
    monkeypatch.setenv("NODE_DISK", "$(touch x)")  # what a variable holds is no text of the shell
    submitted(
        f"slurm:queue=cpu,account=lab,memory=1GB,walltime=00:10:00,python={batch}/its python,logs=logs,interface=lo,"
        "processes=2,cores=4,scratch=/disk/$NODE_DISK/a b;touch x & (touch x) #,directive=--qos=high,"
        "prologue=touch ready"
    )
    arguments = (batch / "arguments").read_text().splitlines()
    assert arguments[arguments.index("--local-directory") + 1] == "/disk/$(touch x)/a b;touch x & (touch x) #"
    assert arguments[arguments.index("--interface") + 1] == "lo"
    assert arguments[arguments.index("--nthreads") + 1] == arguments[arguments.index("--nworkers") + 1] == "2"
    header = re.findall(r"#SBATCH (.+)", (batch / "script").read_text())
    assert {"-p cpu", "-A lab", "-t 00:10:00", "--mem=954M", "-e logs/dask-worker-%J.err", "--qos=high"} <= {*header}
    assert (batch / "ready").exists()  # a prologue is there to be run
    assert not (batch / "x").exists()


def test_the_paths_of_certificates_are_no_text_of_the_shell(tmp_path: Path) -> None:
    """Dask writes them into the script as they are. A workflow file may name them."""
    files = {f"tls_{name}": f"{tmp_path}/{name}.pem" for name in ("ca", "cert", "key")}
    Runtime(dask="slurm:memory=1GB", **files)
    for name in files:
        with pytest.raises(InputError, match=f"{name.replace('_', ' ')} is .* for jobs it must be a path of letters"):
            Runtime(dask="slurm:memory=1GB", **{**files, name: f"{tmp_path}/$(touch x)/{name}.pem"})


def test_a_word_of_a_script() -> None:
    assert shell_word("~/a") == '"$HOME/a"'
    assert shell_word("/a/~") == '"/a/~"'
    with pytest.raises(InputError, match="cannot be written into a script"):
        shell_word("$(touch x)")
