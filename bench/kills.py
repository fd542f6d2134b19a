"""Kill commands with SIGKILL at random moments, resume them, and compare all files with those of an undisturbed run.

    python bench/kills.py [--kills 1000] [--seed 0] [--first 0] [--cases import,cluster] [--dir FOLDER]

One JSON line for each kill (the command, the moment, whether the files are the same) and one at the end; the exit code
is 1 if a resumed command failed or a file differs. A kill depends on the seed and its number only: `--first K` with
`--kills 1` repeats one, and pieces of 100 can run one after another.

The commands are import (from .npy, from text, and in place of an earlier store), pairwise, append (rows and features),
cluster, spectrum, embed, euclideanize, tree, tree --linkage, density, outliers, and a workflow of several steps; some
of them also on a local cluster of two worker processes. The moment is drawn from the time that a command takes alone
("time"), or it is just before one of its file operations ("file"), since what is dangerous lies between two of these;
on the cluster a worker may be killed in place of the client ("worker"). Every third command is killed again while it is
being resumed. Then it is run with --resume to its end, and must exit with 0. Files are compared by their bytes; JSON
results and the state file of the workflow without times and versions, as `dasrel.util.results.without_times` says.

Commands run in forks of this process, which has imported dasrel, so that a kill costs about a second.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import pkgutil
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

WORKFLOW = """
out = "out"

[pairwise]
features = "x.npy"
metric = "cityblock"
kind = "squared-distance"
tile = 32

[append.more]
source = "y.npy"

[spectrum]
every = 1

[euclideanize.ultra]
method = "ultrametric"
floor_zeros = 1e-6
every = 1

[cluster.fuzzy]
rule = ["fcm1", "fcm2"]
clusters = [2, 3]
n_init = 2
tol = 1e-3
max_iter = 8
on_negative = "heal"
euclideanize = "ultra"
every = 2

[tree]

[export.all]
format = "npy"
relation = "ultra"
"""
RUNS = "--rule fcm1,hard --clusters 3 --n-init 2 --max-iter 10 --tol 0"
KEPT = "--checkpoint state"
CASES = {
    "import": "import d.npy s.zarr --kind distance --tile 32",
    "import text": "import d.csv s.zarr --kind distance --tile 32",
    "import over": "import d.npy base.zarr --kind distance --tile 24 --force",
    "pairwise": "pairwise x.npy s.zarr --metric euclidean --tile 32",
    "append": "append base.zarr rows.npy",
    "append features": "append made.zarr y.npy --features x.npy",
    "cluster": f"cluster base.zarr out {RUNS} {KEPT}",
    "cluster over": f"cluster base.zarr old {RUNS} --force",
    "spectrum": f"spectrum base.zarr --picture s.png {KEPT}",
    "embed": f"embed base.zarr axes {KEPT}",
    "euclideanize": f"euclideanize base.zarr --method ultrametric --out e.npz {KEPT}",
    "tree": "tree base.zarr tree",
    "linkage": f"tree base.zarr links --linkage average --clusters 3 --no-picture {KEPT}",
    "density": f"density base.zarr dense --min-size 5 {KEPT}",
    "outliers": f"outliers base.zarr odd --reject 0.05 {KEPT}",
    "workflow": "run w.toml",
    "import on workers": "import HERE/d.npy s.zarr --kind distance --tile 32 SCHEDULER",
    "append on workers": "append base.zarr HERE/rows.npy SCHEDULER",
    "cluster on workers": f"cluster base.zarr out {RUNS} {KEPT} SCHEDULER",
}
OPERATIONS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "shutil.rmtree")
RESULTS = ("result.json", "spectrum.json", "run.state.json")
AGAIN = 1 / 3
"""Share of the resumed commands that are killed, too."""
PATIENCE = 300.0
"""Seconds after which a command counts as hung."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first kill")
    parser.add_argument("--n", type=int, default=160, help="objects")
    parser.add_argument("--cases", default=",".join(CASES), help="commands, with commas between them")
    parser.add_argument("--dir", type=Path, help="folder to work in; a temporary one if not given")
    parser.add_argument("--workers", type=Path, help=argparse.SUPPRESS)  # start the cluster, in a process of its own
    options = parser.parse_args()
    if options.workers is not None:
        serve(options.workers)
        return
    names = options.cases.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no cases {', '.join(unknown)}; there are: {', '.join(CASES)}")
    with tempfile.TemporaryDirectory(prefix="dasrel-kills-", dir=options.dir) as folder:
        bench = Bench(Path(folder).resolve(), options.n, names)
        with bench.cluster():
            sys.exit(bench.run(options.seed, options.first, options.kills))


class Bench:
    """The undisturbed runs, and the kills."""

    def __init__(self, home: Path, n: int, names: list[str]) -> None:
        self.home, self.n, self.names = home, n, names
        self.trial = home / "trial"
        self.scheduler = ""
        self.servers: subprocess.Popen[bytes] | None = None
        self.wanted: dict[str, dict[str, bytes]] = {}
        self.alone: dict[str, tuple[float, int]] = {}
        warm_up()

    @contextlib.contextmanager
    def cluster(self) -> Iterator[None]:
        """Start two workers if a case needs them. Their nanny starts those anew that are killed."""
        if not any("SCHEDULER" in CASES[name] for name in self.names):
            yield
            return
        file = self.home / "address"
        line = [sys.executable, __file__, "--workers", str(file)]
        self.servers = subprocess.Popen(line, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            while not file.exists():
                time.sleep(0.1)
            self.scheduler = file.read_text()
            yield
        finally:
            self.servers.communicate()  # the end of its input ends it

    def run(self, seed: int, first: int, kills: int) -> int:
        """Make the kills and print a line for each; return the exit code."""
        began = time.perf_counter()
        self.inputs()
        for name in self.names:
            self.undisturbed(name)
        prepared, began = time.perf_counter() - began, time.perf_counter()
        made, wrong, by_case, by_mode = 0, 0, Counter[str](), Counter[str]()
        number = first
        while made < kills:  # a command that ends before its kill counts as none
            found = self.killed(random.Random(f"{seed}/{number}"))
            made += found["kills"]
            wrong += not found["same"]
            by_case[found["case"]] += found["kills"]
            by_mode[found["mode"]] += found["kills"]
            print(json.dumps({"number": number, "done": made, **found}), flush=True)
            number += 1
        seconds = time.perf_counter() - began
        total = {
            "kills": made, "commands": number - first, "different": wrong, "by command": by_case, "by moment": by_mode,
            "files": sum(map(len, self.wanted.values())), "seconds": round(seconds, 1),
            "seconds a kill": round(seconds / max(made, 1), 2), "prepared in": round(prepared, 1),
        }  # fmt: skip
        print(json.dumps(total), flush=True)
        return 1 if wrong else 0

    def inputs(self) -> None:
        """Write the files that commands read, and the stores and results that they find."""
        given = self.home / "given"
        given.mkdir()
        points = np.random.default_rng(0).normal(size=(self.n, 6)) + 4 * (np.arange(self.n)[:, None] % 3)
        square = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2)).astype(np.float32)
        old = self.n - self.n // 8
        np.save(given / "x.npy", points[:old])
        np.save(given / "y.npy", points[old:])
        np.save(given / "d.npy", square[:old, :old])
        np.save(given / "rows.npy", square[old:])
        np.savetxt(given / "d.csv", square[:old, :old], delimiter=",", fmt="%.9g")
        (given / "w.toml").write_text(WORKFLOW)
        for line in (
            "import d.npy base.zarr --kind distance --tile 32",
            "pairwise x.npy made.zarr --metric cityblock --tile 32",
            "cluster base.zarr old --rule hard --clusters 2",
        ):
            code = self.wait(self.start(line.split(), given))
            assert code == 0, (given.parent / "errors").read_text()

    def undisturbed(self, name: str) -> None:
        """Run a command to its end twice: measure its time, and count its file operations."""
        self.fresh(name)
        began = time.perf_counter()
        self.finish(self.words(name))
        alone = time.perf_counter() - began
        self.wanted[name] = bits(self.trial)
        self.fresh(name)
        counted = self.home / "count"
        assert self.wait(self.start(self.words(name), self.trial, count=counted)) == 0
        again = different(bits(self.trial), self.wanted[name])
        assert not again, f"{name} is not reproducible: {again}"
        self.alone[name] = alone, int(counted.read_text())
        about = {"case": name, "seconds": round(alone, 2), "file operations": self.alone[name][1]}
        print(json.dumps({**about, "files": len(self.wanted[name])}), flush=True)

    def killed(self, chance: random.Random) -> dict[str, object]:
        """Kill a command once or twice, resume it, and compare."""
        name = chance.choice(self.names)
        modes = ["time", "file", "worker"] if "SCHEDULER" in CASES[name] else ["time", "file"]
        mode = chance.choice(modes)
        found: dict[str, object] = {"case": name, "mode": mode, "at": [], "kills": 0, "same": False}
        self.fresh(name)
        kills, words, at = 0, self.words(name), []
        try:
            while not at or (len(at) == 1 and chance.random() < AGAIN):
                moment, code = self.strike(name, mode, words, chance)
                at.append(moment)
                kills += code == -signal.SIGKILL or mode == "worker"
                words = self.words(name, "--resume")
                if code == 0:
                    break  # it came to its end before the kill, or in spite of that of a worker
            found |= {"at": at, "kills": kills}
            self.finish(words)
            wrong = different(bits(self.trial), self.wanted[name])
            found |= {"same": not wrong, **({"different": wrong[:5]} if wrong else {})}
        except AssertionError as error:
            found |= {"at": at, "kills": kills, "same": False, "failed": str(error)}
        return found

    def strike(self, name: str, mode: str, words: list[str], chance: random.Random) -> tuple[float, int]:
        """Start a command and kill it or a worker; return the moment, and its exit code, -9 if it was killed."""
        alone, operations = self.alone[name]
        if mode == "file":
            place = chance.randint(1, operations)
            return place, self.wait(self.start(words, self.trial, die_at=place))
        moment = round(chance.uniform(0, alone), 4)
        process = self.start(words, self.trial)
        time.sleep(moment)
        if mode == "worker":
            os.kill(chance.choice(self.worker_processes()), signal.SIGKILL)
            code = self.wait(process)
            assert code in (0, 1), f"exit code {code} after the death of a worker"
            return moment, code
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        return moment, self.wait(process)

    def worker_processes(self) -> list[int]:
        """Return the worker processes, waiting for one that is being started."""
        import psutil

        assert self.servers is not None
        while True:
            children = psutil.Process(self.servers.pid).children(recursive=True)
            with contextlib.suppress(psutil.Error):
                found = [one.pid for one in children if any("spawn_main" in word for word in one.cmdline())]
                if len(found) >= 2:
                    return sorted(found)
            time.sleep(0.02)

    def fresh(self, name: str) -> None:
        """Make the folder that a command runs in; it always has the same path."""
        shutil.rmtree(self.trial, ignore_errors=True)
        shutil.copytree(self.home / "given", self.trial)

    def words(self, name: str, *more: str) -> list[str]:
        # Workers have another current folder: what they read has an absolute path.
        line = CASES[name].replace("SCHEDULER", f"--scheduler {self.scheduler}").replace("HERE", str(self.trial))
        return [*line.split(), *more, "--quiet"]

    def finish(self, words: list[str]) -> None:
        """Run a command to its end, which must be a good one."""
        code = self.wait(self.start(words, self.trial))
        assert code == 0, f"exit code {code}: {(self.home / 'errors').read_text().strip()}"

    def start(self, words: list[str], folder: Path, *, count: Path | None = None, die_at: int = 0) -> int:
        """Fork a process that runs a command; return its number.

        Parameters
        ----------
        count
            A file for the number of its file operations.
        die_at
            The number of the file operation before which it kills itself.
        """
        process = os.fork()
        if process:
            with contextlib.suppress(OSError):
                os.setpgid(process, process)
            return process
        code = 1
        try:
            os.setpgid(0, 0)
            os.chdir(folder)
            errors = os.open(self.home / "errors", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(errors, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            operations = hooked(die_at) if die_at or count is not None else []
            from dasrel.cli import app

            code = app.run(words)
            if count is not None:
                count.write_text(str(len(operations)))
        finally:
            os._exit(code)

    @staticmethod
    def wait(process: int) -> int:
        """Wait for a process; return its exit code, or the negative number of the signal that ended it."""
        until = time.monotonic() + PATIENCE
        while True:
            pid, status = os.waitpid(process, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > until:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
                raise AssertionError(f"hung for {PATIENCE:.0f} s")
            time.sleep(0.002)


def hooked(die_at: int) -> list[None]:
    """Count the operations of this process that change files, and kill it before one of them."""
    operations: list[None] = []

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            flags = arguments[2]
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR):
                return
        elif event not in OPERATIONS:
            return
        operations.append(None)
        if len(operations) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    return operations


def warm_up() -> None:
    """Import all that commands import, without starting a thread."""
    import dasrel

    for module in pkgutil.walk_packages(dasrel.__path__, "dasrel."):
        if not module.name.endswith(("__main__", "_native")):
            importlib.import_module(module.name)
    for name in ("distributed", "matplotlib.pyplot", "pyarrow.csv", "scipy.sparse.linalg", "sklearn.metrics", "zarr"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def bits(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder, without times and versions."""
    from dasrel.util.results import without_times

    found = {}
    for file in folder.rglob("*"):
        if file.is_dir() and not file.is_symlink():
            found[f"{file.relative_to(folder)}/"] = b""
        else:
            raw = file.read_bytes()
            if file.name in RESULTS:
                raw = json.dumps(without_times(json.loads(raw)), sort_keys=True).encode()
            found[str(file.relative_to(folder))] = raw
    return found


def different(found: dict[str, bytes], wanted: dict[str, bytes]) -> list[str]:
    """Name the files that are missing, left behind or different."""
    missing = [f"missing: {name}" for name in sorted(wanted.keys() - found.keys())]
    left = [f"left behind: {name}" for name in sorted(found.keys() - wanted.keys())]
    other = [f"different: {name}" for name in sorted(found.keys() & wanted.keys()) if found[name] != wanted[name]]
    return [*missing, *other, *left]


def serve(file: Path) -> None:
    """Run a scheduler and two worker processes until the input ends."""
    from distributed import LocalCluster

    quiet = {"dashboard_address": "127.0.0.1:0", "worker_dashboard_address": None, "silence_logs": 50}
    with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", scheduler_port=0, **quiet) as cluster:
        partial = file.with_suffix(".partial")
        partial.write_text(str(cluster.scheduler_address))
        partial.rename(file)
        sys.stdin.read()


if __name__ == "__main__":
    main()
