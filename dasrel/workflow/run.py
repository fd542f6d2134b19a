"""Run the stale steps of a workflow, one after another, under a lock.

A step works in a folder of its own below `out/.work`, named by its key. Its outputs are moved into `out` when all of
them are complete:

    state "running" -> work, in .work -> done.json, in .work -> state "putting" -> renames -> state "done"

If the process is killed before done.json is written, the next run resumes in the same folder, with the partial stores
and checkpoints there. If it is killed later, the next run only moves what has not been moved.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dasrel import __version__
from dasrel.commands.base import Target
from dasrel.errors import DasrelError, DasrelWarning, InputError, Stopped
from dasrel.store.audit import audit_store
from dasrel.store.matrix import store_manifest
from dasrel.util import limits, progress
from dasrel.util.files import disk_error_text, exclusive_lock, remove_leftovers
from dasrel.util.reading import load_json
from dasrel.util.text import redacted, shown
from dasrel.workflow import status
from dasrel.workflow.schema import Step, Workflow, as_key, outputs
from dasrel.workflow.status import (
    LOCK,
    STATE,
    TIMES,
    WORK,
    ContentHashes,
    Log,
    StateFile,
    StepStatus,
    appends_of,
    base_of,
    now,
    parameters,
    step_status,
    write_json,
)

Summary = dict[str, Any]
BETWEEN = 4 << 30
"""Bytes read between two checkpoints: about a second or two of work, which an interruption may repeat."""


@dataclass(frozen=True)
class Job:
    """A step to run now."""

    step: Step
    work: Path
    """The folder to write in. It may hold files of an interrupted run of the same step."""
    out: Path
    """The folder that the files are moved to when the step is done."""
    places: Mapping[str, str]
    """For each key that names a step or a file, its path."""
    appends: int = 0
    """Number of appends to the matrix before this step."""

    @property
    def store(self) -> str:
        """The path of the store of this step."""
        return self.places["store"]

    def file(self, suffix: str = "") -> Path:
        """Return the path of an output, in the folder to write in."""
        return self.work / f"{self.step.name}{suffix}"

    def checkpoint(self) -> Any:
        """Return the checkpoint settings; an existing checkpoint is resumed."""
        from dasrel.engine.checkpoint import Checkpoint
        from dasrel.store.matrix import open_matrix

        folder = self.work / "checkpoint"
        scan = open_matrix(self.store).layout.total_bytes
        every = self.step.table.every or max(1, BETWEEN // max(scan, 1 << 20))
        return Checkpoint(folder, every=every, resume=any(folder.glob("*.npz")))


def run_step(job: Job) -> Summary:
    """Run a step, and return a summary of its result in plain values."""
    operation = job.step.operation
    source = None if operation.source is None else job.places[str(operation.source.key)]
    if operation.grows and source is not None and (grown := operation.grown(source, job.appends)) is not None:
        return operation.summary(grown)  # the process was killed after the append
    options = job.step.table.options(job.places)
    suffix = next(iter(operation.outputs(options)), "")
    target = Target(job.file(suffix), force=True, final=job.out / f"{job.step.name}{suffix}")
    if operation.gives_matrix and _is_complete(target.path):  # before the run was interrupted
        return operation.summary(audit_store(target.path))
    with operation.prepare(source, target, options) as prepared:
        result = prepared.run(job.checkpoint() if operation.saves_state(options) else None)
    return operation.summary(result)


def _is_complete(store: Path) -> bool:
    return (store_manifest(store) or {}).get("state") == "complete"


Tell = Callable[[str], None]
LOG_INTERVAL = 30.0
"""Seconds between two progress events of the same step in the log."""

PAGE = "report.html"
"""The page about the results, with `report = true`."""


@dataclass
class StepOutcome:
    """The result of a run."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    """For each step: step, kind, status (done, unchanged, failed, waiting), why, seconds, scans, outputs, result."""

    def having(self, status: str) -> list[str]:
        """Return the names of the steps with a status."""
        return [step["step"] for step in self.steps if step["status"] == status]

    report: str | None = None
    """The page about the results, where one was wanted and could be written."""

    @property
    def not_converged(self) -> list[str]:
        """The names of the steps whose result has not converged, in this run or an earlier one."""
        return [step["step"] for step in self.steps if (step["result"] or {}).get("converged") is False]


def run_workflow(
    workflow: Workflow,
    *,
    log: Log | None = None,
    tell: Tell = lambda text: None,
    connected: Callable[[], Any] | None = None,
    trust: bool = True,
) -> StepOutcome:
    """Run the steps that are not up to date. If one fails, the steps that use it are not run; the others are.

    Parameters
    ----------
    tell
        Called with a line of text when a step begins.
    connected
        Return a context in which the steps run, such as a cluster; entered only if a step has to run.
    trust
        Whether files with the size and times of the last run count as unchanged, without being read.

    Cost: a stat of each file of the steps that are up to date; for the others, the cost of their work.
    """
    log = log or Log(None)
    try:
        workflow.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {shown(workflow.out, limit=200)}: {error.strerror}") from None

    def note(text: str) -> None:
        tell(text)
        log("note", message=text)

    with exclusive_lock(workflow.out / LOCK, lambda owner: f"{owner} is at work on this workflow", note=note):
        remove_leftovers(workflow.out / STATE)  # of a process that was killed while it wrote them
        remove_leftovers((workflow.out / LOCK).with_suffix(""))
        try:
            return _Run(workflow, log, tell, connected, trust).all()
        except limits.Terminated:
            log("run-stopped", message="SIGTERM")
            raise Stopped("stopped by SIGTERM", remedy="run the same again to continue") from None
        except BaseException as error:
            event = "run-stopped" if isinstance(error, (Stopped, KeyboardInterrupt)) else "run-failed"
            log(event, message=str(error) or type(error).__name__)
            raise


class _Run:
    """One run, under the lock."""

    def __init__(
        self, workflow: Workflow, log: Log, tell: Tell, connected: Callable[[], Any] | None, trust: bool
    ) -> None:
        self.workflow, self.log, self.tell, self.connected = workflow, log, tell, connected
        self.state = StateFile(workflow.out / STATE)
        self.known = ContentHashes(self.state.files, trust=trust)
        self.planned: dict[str, StepStatus] = {}
        self.outcome = StepOutcome()

    def all(self) -> StepOutcome:
        """Run the steps in order; connect to the cluster before the first one that has work to do."""
        before = json.dumps(self.state.files)
        began = time.perf_counter()
        self.log("run-begin", workflow=str(self.workflow.path), out=str(self.workflow.out), version=__version__)
        with ExitStack() as place:
            connected = self.connected
            for name, step in self.workflow.steps.items():
                plan = self.planned[name] = step_status(self.workflow, step, self.state, self.known, self.planned)
                if plan.is_done:
                    shutil.rmtree(
                        self.workflow.out / WORK / name, ignore_errors=True
                    )  # left by a process that was killed after its last rename
                    self._report(plan, "unchanged")
                elif plan.key is None:
                    self._report(plan, "failed" if plan.status == "failed" else "waiting")
                else:
                    if connected is not None:
                        place.enter_context(connected())
                        connected = None
                    self.planned[name] = self._step(plan)
        if json.dumps(self.state.files) != before:
            self.state.save()
        self._write_report()
        seconds = round(time.perf_counter() - began, 3)
        counts = {status: len(self.outcome.having(status)) for status in ("done", "unchanged", "failed", "waiting")}
        self.log("run-end", seconds=seconds, **counts)
        return self.outcome

    def _write_report(self) -> None:
        """Write the page about the results, if one is wanted and a step was run, or there is none yet.

        Results are complete by now: a page that cannot be written is a warning.
        """
        target = self.workflow.out / PAGE
        if not self.workflow.report:
            return
        if not (target.is_file() and len(self.outcome.having("unchanged")) == len(self.outcome.steps)):
            from dasrel.commands.report import write_report
            from dasrel.report.page import is_page

            try:
                if os.path.lexists(target) and not is_page(target):
                    raise InputError(
                        f"{shown(target, limit=200)} exists and is no page of dasrel", remedy="move it away"
                    )
                write_report(self.workflow.out, target, force=True)
            except (DasrelError, OSError, MemoryError) as error:
                text = f"the page about the results could not be written: {_plain(error)}"
                self.log("warning", message=text)
                warnings.warn(DasrelWarning(text), stacklevel=2)
                return
            self.log("report-written", out=str(target))
        self.outcome.report = str(target)

    def _report(self, plan: StepStatus, status: str, **more: Any) -> None:
        done = self.state.steps.get(plan.step.name, {}).get("done") or {}
        result = done.get("result") if status in ("done", "unchanged") else None
        values = {"step": plan.step.name, "kind": plan.step.kind, "status": status, "why": redacted(plan.why), **more}
        files = [str(self.workflow.out / name) for name in outputs(plan.step)]
        self.outcome.steps.append({"seconds": 0.0, "scans": 0, **values, "outputs": files, "result": result})
        if status != "done":  # step-done has been logged already
            self.log(f"step-{status}", step=plan.step.name, kind=plan.step.kind, key=plan.key, message=values["why"])

    def _step(self, plan: StepStatus) -> StepStatus:
        """Run a step, and record the result in the state file."""
        step, record = plan.step, self.state.steps.setdefault(plan.step.name, {})
        reason = limits.current().reason()
        if reason:
            raise Stopped(f"stopped by {reason} before the step {step.name}", remedy="run the same again to continue")
        began = time.perf_counter()
        started = {"status": "running", "key": plan.key, "began": now(), "why": plan.why}
        self.tell(f"{step.name} begins: {redacted(plan.why)}")
        self.log("step-begin", step=step.name, kind=step.kind, key=plan.key, message=plan.why)
        with progress.watch(self._progress(step)) as counted, self._warnings_logged(step):
            counted.say(step.name)  # replaces the note of the step before
            try:
                self._check_targets(step, record)
                self._try(record, started)
                work = self._work_folder(plan)
                made = self._made(plan, work)
                record["ours"] = sorted({*record.get("ours", ()), *made["outputs"]})
                self._try(record, {**started, "status": "putting"})
                self._put(plan, record, work, made)
            except (Stopped, limits.Terminated) as error:
                problem = error.problem if isinstance(error, Stopped) else f"stopped by SIGTERM in the step {step.name}"
                stopped = Stopped(problem, remedy="run the same again to continue")
                text = str(stopped)
                self._try(record, {**started, "status": "stopped", "ended": now(), "message": text})
                self.log("step-stopped", step=step.name, key=plan.key, scans=counted.scans, message=text)
                raise stopped from None
            except Exception as error:
                failed = self._failed(plan, record, started, error, time.perf_counter() - began)
                if not isinstance(error, (DasrelError, OSError, MemoryError)):
                    raise  # a defect of dasrel
                return failed
        counted.found_complete("")  # of a part of the step; what was done in this run is reported step by step
        seconds, scans = round(time.perf_counter() - began, 3), counted.scans
        self.log("step-done", step=step.name, kind=step.kind, key=plan.key, seconds=seconds, scans=scans,
                 bytes_read=counted.bytes, outputs=list(outputs(step)), result=record["done"]["result"])  # fmt: skip
        self._report(plan, "done", seconds=seconds, scans=scans)
        made = record["done"]
        return StepStatus(step, "done", plan.why, plan.key, plan.inputs, made["content"], made["ended"], made["parts"])

    def _try(self, record: dict[str, Any], values: dict[str, Any]) -> None:
        record["now"] = redacted(values)
        self.state.save()

    def _failed(
        self, plan: StepStatus, record: dict[str, Any], started: dict[str, Any], error: BaseException, seconds: float
    ) -> StepStatus:
        text = redacted(error.text(as_key) if isinstance(error, DasrelError) else _plain(error))
        self._try(record, {**started, "status": "failed", "ended": now(), "message": text})
        failed = StepStatus(plan.step, "failed", text, plan.key)
        self._report(failed, "failed", seconds=round(seconds, 3))
        return failed

    def _progress(self, step: Step) -> Callable[[progress.Progress], None]:
        """Return a callback that logs progress, at most once per `LOG_INTERVAL`."""
        last = time.monotonic()

        def show(event: progress.Progress) -> None:
            nonlocal last
            if time.monotonic() - last >= LOG_INTERVAL:
                last = time.monotonic()
                self.log("progress", step=step.name, scans=event.scans, tiles_read=event.tiles, tiles=event.tiles_total,
                         message=event.note or None)  # fmt: skip

        return show

    @contextmanager
    def _warnings_logged(self, step: Step) -> Iterator[None]:
        """Log warnings, besides showing them."""
        shows = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if isinstance(message, DasrelWarning):
                message = DasrelWarning(message.text(as_key))
                self.log("warning", step=step.name, message=str(message))
            shows(message, category, *where, **more)

        with warnings.catch_warnings():
            warnings.showwarning = show
            yield

    def _check_targets(self, step: Step, record: Mapping[str, Any]) -> None:
        """Raise if an output exists that this workflow has not written."""
        for name in outputs(step):
            target = self.workflow.out / name
            if name not in record.get("ours", ()) and os.path.lexists(target):
                raise InputError(
                    f"{shown(target, limit=200)} exists and was not written by this workflow",
                    remedy="move it away, or choose another name for the step",
                )

    def _work_folder(self, plan: StepStatus) -> Path:
        """Return the work folder for this key, version and input files; its content can be resumed. Remove others."""
        step = plan.step
        files = {place: status.signature(Path(place)) for place in step.files.values() if "://" not in place}
        name = hashlib.sha256(json.dumps([plan.key, __version__, files], sort_keys=True).encode()).hexdigest()[:16]
        home = self.workflow.out / WORK / step.name
        home.mkdir(parents=True, exist_ok=True)
        for other in home.iterdir():
            if other.name != name:
                shutil.rmtree(other, ignore_errors=True)
        (home / name).mkdir(exist_ok=True)
        return home / name

    def _made(self, plan: StepStatus, work: Path) -> dict[str, Any]:
        """Return the record of the step's work, which is done now unless it was done before an interruption."""
        marker = work / "done.json"
        with suppress(OSError, ValueError):
            before = dict(load_json(marker))
            homes = (work, self.workflow.out)
            if all(any(os.path.lexists(home / name) for home in homes) for name in before["outputs"]):
                return before
        places = dict(plan.step.files)
        for key, name in plan.step.uses.items():
            places[key] = self._place_of(self.workflow.steps[name], plan.step.settings.get(key, ""))
        for key, reads in plan.step.table.READS.items():
            if getattr(plan.step.table, key) is True and self._fits(plan.step, reads.own):
                places[key] = str(self.workflow.out / plan.step.name)
        began = time.perf_counter()
        base = base_of(self.workflow, plan.step)
        earlier = appends_of(self.workflow, base.name).index(plan.step) if plan.step.grows else 0
        result = run_step(Job(plan.step, work, self.workflow.out, places, earlier))
        seconds = round(time.perf_counter() - began, 3)
        hashes = {name: status.read(work / name, verify=False) for name in outputs(plan.step)}
        content = "".join(status.read(work / name, leave_out=TIMES, verify=False) for name in hashes)
        if plan.step.grows:
            content = self.known.of(self.workflow.out / outputs(base)[0])
        parts = {}
        if plan.step.operation.has_settings:
            parts = {name: status.read(work / plan.step.name / name) for name in result["folders"] if name != "."}
        made = {"result": result, "seconds": seconds, "outputs": hashes, "content": content, "parts": parts}
        write_json(marker, made)
        return made

    def _fits(self, step: Step, keys: Iterable[str]) -> bool:
        """Return whether the last result of a step is intact, and of the same values of these keys."""
        done = self.state.steps[step.name].get("done")
        wanted = parameters(step)
        place = self.workflow.out / step.name
        return (
            done is not None
            and all(done["parameters"].get(name) == wanted[name] for name in keys)
            and place.is_dir()
            and self.known.of(place) == done["outputs"].get(step.name)
        )

    def _place_of(self, step: Step, setting: str) -> str:
        """Return the path of another step's output, or of one setting of a result."""
        step = base_of(self.workflow, step)
        return next(iter(step.files.values())) if step.exists else str(self.workflow.out / outputs(step)[0] / setting)

    def _put(self, plan: StepStatus, record: dict[str, Any], work: Path, made: dict[str, Any]) -> None:
        """Move the outputs into `out`, and record that the step is done."""
        out = self.workflow.out
        for name in (record.get("done") or {}).get("outputs", {}):
            if name not in made["outputs"]:
                _remove(out / name)
        record["done"] = None
        for name in made["outputs"]:
            if os.path.lexists(work / name):
                if os.path.lexists(out / name):
                    _remove(work / "old")
                    os.rename(out / name, work / "old")
                os.rename(work / name, out / name)
            self.known.adopt(out / name, made["outputs"][name])
        record["done"] = redacted(
            {
                "kind": plan.step.kind, "key": plan.key, "parameters": parameters(plan.step),
                "inputs": dict(plan.inputs), "files": dict(plan.step.files), **made, "ended": now(),
                "version": __version__,
            }
        )  # fmt: skip
        record["now"] = None
        self.state.save()
        shutil.rmtree(work.parent, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _plain(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "out of memory; lower memory or use smaller tiles"
    return disk_error_text(error) or str(error)
