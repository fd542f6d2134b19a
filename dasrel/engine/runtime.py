"""Connect to a Dask cluster or start one: local, Slurm, Kubernetes, MPI.

Work runs on this process's threads or on a Dask cluster. At most one of these options is given; without any of them no
server is started and no port is opened:

    --scheduler tcp://host:8786            a scheduler that runs already (tls://host:8786 with the --tls options)
    --scheduler-file scheduler.json        the same, found by the file that it has written
    --dask local[:workers=4,memory=4GB,threads=1]
    --dask slurm:queue=debug,jobs=2,cores=1,memory=1GB,walltime=00:10:00
    --dask kubernetes:image=NAME,workers=2,memory=4GB
    --dask mpi                             under mpirun -n N: a scheduler, this program, and N - 2 workers

Settings after the colon are NAME=VALUE with commas between them. For slurm: queue, account, jobs (1), cores (1),
processes (1), memory (needed), walltime, interface, python, logs (a folder for the jobs' output), scratch (a folder on
the nodes), and, as often as wanted, directive (such as directive=--qos=high) and prologue (a line of shell). For
kubernetes: image, workers (1), memory, cpus, namespace, name, and spec (a DaskCluster resource as a YAML or JSON file,
for volumes and the like, instead of image, memory and cpus). For mpi: threads (1), memory, interface.

Memory is that of one worker, for slurm that of one job. `--workers N` begins the work when N workers are there: if not
given, all of a local cluster or of MPI, one of any other. `--wait SECONDS` is how long to wait for them, and for a
scheduler or its file to be there at all. `--stall SECONDS`: a worker that gives no sign of life for so long is given
up, and others get its work; a scheduler that gives none ends the command, which can be resumed.

Dask unpickles what a scheduler and its workers send, so that they can run code in this process, and whoever can reach a
scheduler without TLS can run code on its workers and here. Name only schedulers that you trust, by any of these ways;
workflow files may name none unless the command line allows it.

In the environment: DASREL_SCHEDULER, DASREL_SCHEDULER_FILE, DASREL_DASK, DASREL_WORKERS, DASREL_WAIT,
DASREL_STALL, DASREL_TLS_CA, DASREL_TLS_CERT, DASREL_TLS_KEY. Options of the command line override them.
"""

from __future__ import annotations

import dataclasses
import gc
import ipaddress
import logging
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dasrel.engine.cluster_settings import parsed_cluster, plain_path
from dasrel.engine.launch import has_dashboard, one_line, start
from dasrel.errors import ClusterError, DasrelError, DasrelWarning, InputError
from dasrel.util import limits, stalls
from dasrel.util.option_fields import PLACE, option
from dasrel.util.reading import load_json
from dasrel.util.text import count_text, redacted, shown, some

WAIT = 60.0
"""Default of the most seconds to wait for workers."""
REACH = 10.0
"""Default of the most seconds to wait for a scheduler to answer."""
PLACES = ("scheduler", "scheduler_file", "dask")
TLS = ("tls_ca", "tls_cert", "tls_key")
_TLS_FILES = "{Runtime.tls_ca}, {Runtime.tls_cert} and {Runtime.tls_key}"
PATIENT = {"distributed.deploy.lost-worker-timeout": "1 day"}
"""Otherwise a local cluster does not restart a worker that dies twice within about 15 seconds."""
WITH_TLS = ("local", "slurm")
"""Kinds of cluster whose scheduler is started here with the TLS files."""


_at = partial(option, panel=PLACE, rare=True)


@dataclass(frozen=True)
class Runtime:
    """Where to run; without a place, on the threads of this process."""

    scheduler: str | None = _at(
        None, "A Dask scheduler, such as tcp://host:8786. It can run code here: name only one that you trust.",
        metavar="ADDRESS",
    )  # fmt: skip
    scheduler_file: str | None = _at(
        None, "The file that a Dask scheduler has written. It can run code here: trust it, and who may write the file.",
        metavar="FILE",
    )  # fmt: skip
    dask: str | None = _at(None, "Start a cluster: local:workers=4,memory=4GB, slurm:..., kubernetes:..., mpi.")
    """A cluster to start, such as local:workers=4."""
    workers: int | None = _at(None, "Begin when N workers have connected.", metavar="N", least=1)
    """Begin when this many have connected. If not given: all of a local cluster, one of any other."""
    wait: float | None = _at(None, f"Maximum time to wait for them; {WAIT:g} if not given.", metavar="SECONDS", above=0)
    stall: float | None = _at(
        None,
        f"Give up a worker, or a scheduler, that gives no sign of life for so long; {limits.STALL:g} if not given.",
        metavar="SECONDS", above=0,
    )  # fmt: skip
    """Seconds without a sign of life after which a worker's work is given to others, and a scheduler is given up."""
    tls_ca: str | None = _at(None, "Certificate of the authority that signs all certificates.", metavar="FILE")
    tls_cert: str | None = _at(None, "Certificate of this process.", metavar="FILE")
    tls_key: str | None = _at(None, "Private key of that certificate.", metavar="FILE")

    def __post_init__(self) -> None:
        named = [name for name in PLACES if getattr(self, name) is not None]
        if len(named) > 1:
            raise InputError(f"{' and '.join(map(_words, named))} are given", remedy="name one place to run at")
        for name in ("workers", "wait", "stall"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} is {value}", remedy="it must be above 0")
        given = [name for name in TLS if getattr(self, name) is not None]
        if given and len(given) < len(TLS):
            missing = next(name for name in TLS if name not in given)
            raise InputError(f"{_words(missing)} is missing", remedy=f"TLS takes {_TLS_FILES}")
        if "@" in (self.scheduler or ""):
            raise InputError(
                "the scheduler's address has a user or a password in it, which Dask does not know",
                remedy=f"use TLS: {_TLS_FILES}",
            )
        if self.dask is None:
            return
        kind, settings = parsed_cluster(self.dask)
        if given and kind not in WITH_TLS:
            raise InputError(f"{_words(given[0])} is given, but a cluster on {kind} takes no TLS files from here")
        for name in given if kind == "slurm" else ():
            plain_path(getattr(self, name), _words(name))
        if kind == "local" and (self.workers or 0) > settings.get("workers", self.workers or 0):
            raise InputError(f"{self.workers} workers would never come: the cluster has {settings['workers']}")

    @property
    def place(self) -> str | None:
        """Which of scheduler, scheduler_file and dask is given."""
        return next((name for name in PLACES if getattr(self, name) is not None), None)

    def over(self, other: Runtime) -> Runtime:
        """Return this runtime with unset fields taken from another; the place and the TLS files as one group each."""
        values = dataclasses.asdict(self)
        for group in (PLACES, TLS, ("workers",), ("wait",), ("stall",)):
            if all(values[name] is None for name in group):
                values |= {name: getattr(other, name) for name in group}
        return Runtime(**values)


def environment(variables: Mapping[str, str] | None = None) -> Runtime:
    """Read where to run from the environment.

    >>> environment({"DASREL_DASK": "local:workers=2", "DASREL_WAIT": "30"}).wait
    30.0
    """
    variables = os.environ if variables is None else variables
    if variables.get("DASREL_CLUSTER"):  # to run on this machine's threads in silence would be worse
        raise InputError("DASREL_CLUSTER is not known", remedy="did you mean DASREL_DASK?")
    given: dict[str, Any] = {}
    for field in dataclasses.fields(Runtime):
        name = f"DASREL_{field.name.upper()}"
        text = variables.get(name)
        if not text:
            continue
        number = {"workers": int, "wait": float, "stall": float}.get(field.name, str)
        try:
            given[field.name] = number(text)
        except ValueError:
            raise InputError(f"{name} is {shown(text)!r}, which is no number") from None
    try:
        return Runtime(**given)
    except InputError as error:
        problem = f"in the environment (DASREL_...): {error.problem}"
        raise InputError(problem, where=error.where, remedy=error.remedy) from None


def _words(name: str) -> str:
    return name.replace("_", " ")


def _silent(text: str) -> None:
    """Report nothing."""


@contextmanager
def connect(runtime: Runtime, *, tell: Callable[[str], None] = _silent, logs: bool = False) -> Iterator[Any]:
    """Run the block on the requested cluster; close the cluster at the end if it was started here.

    Parameters
    ----------
    runtime
        Where to run. Unset fields are taken from the environment.
    tell
        Called with lines for people: the address, the link of the dashboard, the workers.
    logs
        Show the log messages of Dask itself.

    Yields
    ------
    The Dask client, which is the active one inside the block; None on local threads.

    Raises
    ------
    ClusterError
        If the cluster cannot be reached or started, or is lost before the block ends.
    """
    whole = runtime.over(environment())
    if whole.place is None:
        idle = [_words(field.name) for field in dataclasses.fields(runtime) if getattr(runtime, field.name) is not None]
        if idle:
            raise InputError(
                f"{idle[0]} is given, but no cluster",
                remedy="add {Runtime.scheduler}, {Runtime.scheduler_file} or {Runtime.dask}",
            )
        yield None
        return
    from dasrel.util import parallel

    with ExitStack() as stack:
        stack.enter_context(_hushed(logs))
        stack.enter_context(limits.stalling(whole.stall))
        kind = None if whole.dask is None else parsed_cluster(whole.dask)[0]
        if kind == "local":
            import dask

            stack.enter_context(dask.config.set(PATIENT))
        client, wanted = _reached(whole, stack, logs)
        at = redacted(client.scheduler.address)
        link = client.dashboard_link if has_dashboard(kind) else None
        shows = f"dashboard {redacted(link)}" if link else "no dashboard (dasrel[dashboard] has one)"
        tell(f"scheduler {at}, {shows}")
        _warn_of_plain_tcp(client.scheduler.address)
        _wait(client, wanted, WAIT if whole.wait is None else whole.wait)
        workers = limits.worker_memory(client)
        tell(f"workers {len(workers)}, threads {sum(threads for _, threads in workers.values())}")
        _check_versions(client)
        stack.enter_context(parallel.bound_to(client))
        try:
            yield client
        except DasrelError:
            raise
        except Exception as error:
            explained = _explained(error, client)
            if explained is None:
                raise
            raise explained from error


@contextmanager
def _hushed(logs: bool) -> Iterator[None]:
    """Silence the log messages of Dask: our errors report what matters."""
    import distributed  # noqa: F401 - sets the levels of its loggers when it is first imported

    names = ("distributed", "distributed.client", "distributed.gc", "tornado", "tornado.application", "asyncio")
    loggers = [] if logs else [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# ----------------------------------------------------------------------------------------------------------- reaching


def _reached(runtime: Runtime, stack: ExitStack, logs: bool) -> tuple[Any, int]:
    """Return a client of the cluster, which the stack closes, and the number of workers to wait for."""
    import dask
    from distributed import Client

    security = _security(runtime)
    if runtime.dask is not None:
        kind, settings = parsed_cluster(runtime.dask)
        if kind == "local" and runtime.workers is not None:
            settings.setdefault("workers", runtime.workers)
        started = start(kind, settings, security=security, level=logging.INFO if logs else logging.CRITICAL)
        stack.callback(_quietly, started.close)
        limits.check()
        target, wanted, limit, name = started.target, started.workers, REACH, f"the cluster's scheduler ({kind})"
        ends = started.shuts_down
    else:
        limit = REACH if runtime.wait is None else runtime.wait
        target = runtime.scheduler or _address_in(Path(runtime.scheduler_file or ""), limit)
        name, wanted, ends = f"the scheduler {redacted(target)}", 1, False
    if str(target).startswith("tls://") and security is None and not dask.config.get("distributed.comm.tls.ca-file"):
        raise ClusterError(f"{name} asks for TLS", remedy=f"give {_TLS_FILES}")
    failure = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # different versions are reported below, with those of dasrel
        try:
            client = limits.waited(Client, target, security=security, timeout=limit, name="dasrel")
        except Exception as error:
            failure = _unreachable(error, name, runtime)
            traceback.clear_frames(error.__traceback__)
    if failure is not None:
        # Collect a half-made client now: collected while the next one starts, both would wait for the same lock.
        gc.collect()
        raise failure
    stack.callback(_quietly, client.shutdown if ends else lambda: client.close(timeout=10))
    return client, runtime.workers or wanted


def _quietly(close: Callable[[], None]) -> None:
    """Close without errors: a lost cluster cannot be closed, and another error is reported for it."""
    with suppress(Exception), limits.closing():
        close()


def _security(runtime: Runtime) -> Any | None:
    """Check the TLS files and return them for Dask."""
    if runtime.tls_ca is None:
        return None
    from distributed import Security

    for name in TLS:
        path = Path(getattr(runtime, name))
        if not path.is_file():
            raise InputError(f"{_words(name)} {shown(path, limit=200)} is no file")
    pair = {"cert": runtime.tls_cert, "key": runtime.tls_key}
    roles = {f"tls_{role}_{part}": path for role in ("client", "scheduler", "worker") for part, path in pair.items()}
    security = Security(require_encryption=True, tls_ca_file=runtime.tls_ca, **roles)
    try:
        security.get_connection_args("client")
    except OSError as error:
        raise InputError(
            f"the TLS files cannot be used ({one_line(error)})", remedy="are they PEM, and do they belong together?"
        ) from None
    return security


def _address_in(path: Path, limit: float) -> str:
    """Read the address from a scheduler's file, which may be written a little later."""
    until = time.monotonic() + limit
    while not path.exists():
        if time.monotonic() > until:
            raise ClusterError(
                f"{shown(path, limit=200)}: no scheduler has written this file in {limit:g} s", remedy="does it run?"
            )
        limits.check()
        time.sleep(0.1)
    try:
        address = load_json(path)["address"]
    except (OSError, ValueError, KeyError, TypeError):
        address = None
    if not isinstance(address, str) or "@" in address:
        raise ClusterError(
            f"{shown(path, limit=200)} is no scheduler file: JSON with an address, as dask scheduler writes it"
        )
    return address


def _unreachable(error: Exception, name: str, runtime: Runtime) -> ClusterError:
    """Return the error for a failed connection."""
    problem = redacted(one_line(error))
    if "SSL" in problem or "TLS" in problem or "encryption" in problem:
        hint = f"check {_TLS_FILES} against those of the scheduler, and that its address is tls://"
    elif runtime.tls_ca is None:
        hint = f"is it running, and does it ask for TLS ({_TLS_FILES})?"
    else:
        hint = "is it running, with TLS?"
    return ClusterError(f"cannot reach {name}: {problem}", remedy=hint)


def _warn_of_plain_tcp(address: str) -> None:
    """Warn of a connection to another machine without encryption and without a check of who is there."""
    if address.startswith("tcp://") and not is_loopback(address):
        warnings.warn(
            DasrelWarning(
                f"the connection to {redacted(address)} is neither encrypted nor authenticated: whoever can reach that"
                " port can run code on the workers and here",
                remedy=f"use TLS ({_TLS_FILES}), or a network of your own",
            ),
            stacklevel=3,
        )


def is_loopback(address: str) -> bool:
    """Tell whether an address such as tcp://127.0.0.1:8786 is of this machine only.

    >>> is_loopback("tcp://[::1]:8786"), is_loopback("tcp://10.1.2.3:8786"), is_loopback("tcp://localhost:1")
    (True, False, True)
    """
    host = address.partition("://")[2].rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _wait(client: Any, wanted: int, limit: float) -> None:
    """Wait until enough workers are connected."""
    from dasrel.util.limits import worker_memory
    from dasrel.util.parallel import lost

    try:
        with stalls.watching(client) as watch:
            watch.waited(client.wait_for_workers, wanted, limit)
    except ClusterError:
        raise
    except Exception as error:
        if client.status != "running":
            raise lost(client) from error
        have = len(worker_memory(client, wait=0))
        raise ClusterError(
            f"{have} of {count_text(wanted, 'worker')} came in {limit:g} s",
            remedy="see why they do not start, or wait longer ({Runtime.wait}) or for fewer ({Runtime.workers})",
        ) from None


def _check_versions(client: Any) -> None:
    """Raise if a worker has no dasrel, or would give other bits; warn of other versions that differ."""
    from dasrel.engine.workers import REMEDIES, check_alike

    with stalls.watching(client) as watch:
        answers = watch.waited(partial(client.get_versions, packages=["dasrel", "zarr"]))
    here = answers["client"]["packages"]
    differ: dict[str, dict[str, list[str]]] = {}
    for who, other in {"the scheduler": answers["scheduler"], **answers["workers"]}.items():
        for name, version in (other or {}).get("packages", {}).items():
            if version != here.get(name):
                differ.setdefault(name, {}).setdefault(str(version), []).append(who)
    missing = differ.get("dasrel", {}).get("None")
    if missing:
        raise ClusterError(
            f"dasrel is not installed at {some(missing)}", remedy="install the same version there as here"
        )
    for name in ("dasrel", "numpy"):
        for version, who in differ.get(name, {}).items():
            at_work = [address for address in who if address in answers["workers"]]
            if at_work:
                raise ClusterError(
                    f"results would have other bits: {name} {version} at {some(at_work, show=2)} and"
                    f" {here.get(name)} here",
                    remedy=REMEDIES[name],
                )
    check_alike(client, list(answers["workers"]))
    if differ:
        parts = [
            f"{name} {here.get(name)} here and {version} at {some(who, show=1)}"
            for name, versions in sorted(differ.items())
            for version, who in versions.items()
        ]
        warnings.warn(f"versions differ: {'; '.join(parts)}", DasrelWarning, stacklevel=2)


# -------------------------------------------------------------------------------------------------------------- losing


def _explained(error: Exception, client: Any) -> ClusterError | None:
    """Translate an error of Dask into one with a remedy; None if it is no such error."""
    from distributed.comm import CommClosedError
    from distributed.scheduler import KilledWorker

    from dasrel.util.limits import AGAIN
    from dasrel.util.parallel import lost

    if isinstance(error, KilledWorker):
        return ClusterError(
            f"{count_text(error.allowed_failures + 1, 'worker')} died over the same piece of work, the last at"
            f" {error.last_worker.address}",
            remedy="most often they lack memory: give them more, or fewer threads, or use smaller tiles, and " + AGAIN,
        )
    if client.status != "running" or isinstance(error, CommClosedError):
        return lost(client)
    if isinstance(error, CancelledError):
        return ClusterError(f"the cluster dropped the work ({one_line(error)})", remedy=AGAIN)
    return None
