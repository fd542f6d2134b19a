"""Commands that analyse a store: cluster, plan, predict, validity, compare, spectrum, euclideanize, tree, image."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dasrel.cli.console import Console, as_option, complain
from dasrel.cli.options import DryRun, Force, OldStore, comma_list, command, option
from dasrel.engine.checkpoint import Checkpoint
from dasrel.engine.runtime import Runtime
from dasrel.errors import InputError
from dasrel.io.options import IDS
from dasrel.options import (
    NOT_CONVERGED,
    READING,
    ClusterOptions,
    ImageOptions,
    Reading,
    RunOptions,
    Selection,
)
from dasrel.util.results import check_not_input
from dasrel.util.text import count_text, shown, size_text, some, time_text

if TYPE_CHECKING:
    from dasrel.cmeans.job import ClusterJob
    from dasrel.cmeans.plan import ClusteringPlan, OnWorkers
    from dasrel.cmeans.result import Clustering
    from dasrel.util.limits import Range


@command("dasrel cluster distances.zarr out --clusters 2-10")
def cluster_command(
    console: Console,
    *,
    store: OldStore,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder for the results.")],
    runs: RunOptions,
    options: ClusterOptions,
    force: Force = False,
    dry_run: DryRun = False,
    checkpoint: Checkpoint | None,
    runtime: Runtime,
) -> None:
    """Cluster the objects of a STORE: all runs together, one scan per iteration."""
    from dasrel.cmeans.job import prepare_job

    check_not_input(out, store, options.warm_start)
    requested = runs.as_dict()
    if options.warm_start is not None:
        requested["warm_start"] = options.warm_start
    requested |= {"choose": options.choose, "border": options.border}
    if dry_run:
        show_plan(console, prepare_job(store, requested, out, memory=options.memory, force=force))
        return
    checkpoint = checkpoint and replace(checkpoint, force=force)
    job = prepare_job(store, requested, out, memory=options.memory, force=force, resume=console.resume)
    with nullcontext() if job.finished else console.at(runtime):
        result = job.run(checkpoint=checkpoint, draw=pictures if options.picture else None)
    console.finish(checkpoint, out, "euclideanize", "cluster")
    console.result(result, result_lines(result))
    if options.strict and not result["converged"]:
        left = [one["folder"] for one in result["settings"] if not one["converged"]]
        where = "" if left == ["."] else f" ({some(left)})"
        complain(f"not converged{where}; the results are written nevertheless: raise --max-iter or --tol")
        raise typer.Exit(NOT_CONVERGED)


def pictures(found: Clustering, folder: Path, choose: str) -> None:
    """Draw a clustering into its folder; matplotlib is imported only here, after the work."""
    from dasrel.report.figures.clustering import clustering_pictures

    clustering_pictures(found, folder, choose)


def result_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that print a clustering result."""
    settings = result["settings"]
    sample, recommended = result["sample"], result["recommended"]
    began = ""
    if sample is not None:
        began = f", the best of {sample['runs']:,} on a sample of {count_text(sample['objects'], 'object')}"
    unsound = [one for one in settings if one["flat"] or one["coincident_clusters"] or one["empty"]]
    lines = [("results", shown(result["out"], limit=400))]
    if len(unsound) == len(settings):
        advice = "try fewer clusters, or smaller values of --entropy-weight, --fuzzifier or --eta-scale"
        lines.append(("caution", f"clusters coincide or are empty: {advice}"))
    lines += [
        ("objects", f"{result['n_objects']:,}, kind {result['kind']}"),
        ("runs", f"{result['runs']:,}{began}; {result['runs_converged']:,} converged"),
        ("scans", f"{result['scans']:,} in {result['seconds']:.1f} s"),
    ]
    changed = result.get("euclideanized")
    if changed is not None:
        text = f"{changed['method']}, gamma {changed['gamma']:.6g}, {changed['ratio']:.3g} of D was added"
        lines.append(("Euclideanised", text))
    warm = result.get("warm_start")
    if warm is not None:
        named = f": {some([shown(name) for name in warm['moved_ids']], total=warm['moved'])}" if warm["moved"] else ""
        lines.append(
            (
                "moved",
                f"{warm['moved']:,} of {count_text(warm['objects_before'], 'object')} changed their cluster{named}",
            )
        )
        shares = " ".join(f"{count:,}" for count in warm["new_per_cluster"])
        lines.append(
            ("new", count_text(warm["new_objects"], "object") + (f": {shares}" if warm["new_objects"] else ""))
        )
    if len(settings) > 1:
        for one in settings:
            suffix = "" if one["converged"] else ", not converged"
            suffix += ", clusters coincide or are empty" if one in unsound else ""
            quality = one["validity"] or {}
            indices = [name for name in ("fuzzy_silhouette", "silhouette", "xie_beni") if quality.get(name) is not None]
            texts = [f"{name.replace('_', ' ')} {quality[name]:.3f}" for name in indices]
            lines.append((one["folder"], ", ".join([*texts, f"sizes {_sizes(one)}{suffix}"])))
        if recommended is not None:
            lines.append(("recommended", f"{recommended['folder']}: {recommended['reason']}"))
        return lines
    one = settings[0]
    border = result["requested"]["border"]
    chosen = [
        (ladder["parameter"].replace("_", " "), f"{ladder['chosen']:.6g}: {ladder['reason']}")
        for ladder in one["ladders"]
    ]
    weight = one["entropy_weight_used"]
    used = {"fuzzifier": one.get("fuzzifier"), "entropy weight": weight if one["rule"] == "fcm2" else None}
    numbers = "".join(f", {name} {value:.6g}" for name, value in used.items() if value is not None)
    return [
        *lines,
        ("rule", f"{one['rule']}, {count_text(one['n_clusters'], 'cluster')}{numbers}"),
        *chosen,
        (
            "converged",
            f"{'yes' if one['converged'] else 'no'}, after {one['n_iter']:,} of at most {_most(one):,} iterations"
            f" (run {one['run']})",
        ),
        ("objective", f"{one['objective']:.8g}"),
        *_silhouette_line(one, recommended),
        *_modes_line(one),
        ("sizes", _sizes(one)),
        ("medoids", " ".join(shown(name) for name in one["medoids"])),
        ("border", f"{count_text(one['border'], 'object')} with a largest membership below {border:g}"),
    ]


def _most(one: dict[str, Any]) -> int:
    """Return the most iterations of a run, with those of the fcm2 run before pcm1 and pcm2."""
    twice = one["rule"].startswith("pcm") and one["init"] not in ("memberships", "model")
    return int(one["max_iter"]) * (2 if twice else 1)


def _modes_line(one: dict[str, Any]) -> list[tuple[str, str]]:
    count = one.get("n_modes")  # not in results of earlier versions
    if count is None or count == one["n_clusters"]:
        return []
    return [("modes", f"{one['n_clusters']} clusters ended in {count_text(count, 'mode')}")]


def _sizes(one: dict[str, Any]) -> str:
    """Return the sizes of the clusters; clusters in one mode count once."""
    modes = one.get("modes") or range(one["n_clusters"])
    return " ".join(f"{size:,}" for k, (size, mode) in enumerate(zip(one["sizes"], modes, strict=True)) if k == mode)


def _silhouette_line(one: dict[str, Any], recommended: dict[str, Any] | None) -> list[tuple[str, str]]:
    quality = one["validity"] or {}
    if quality.get("silhouette") is None:
        return []
    doubt = "" if recommended is None or recommended["is_good"] else ": low, perhaps there are no clusters"
    return [("silhouette", f"{quality['silhouette']:.3f}{doubt}")]


@command("dasrel predict out rows.csv new.csv")
def predict_command(
    console: Console,
    *,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="model.npz of a result, or its folder.")],
    rows: Annotated[
        str,
        typer.Argument(
            metavar="ROWS",
            help="One row per new object, with a value for every object of the model: npy, npz, CSV, Zarr.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The CSV file to write.")],
    reading: Annotated[Reading, IDS],
    self_similarity: Annotated[
        float | None,
        option(
            "--self-similarity",
            "Value of a new object with itself; for similarities and kernels.",
            READING,
            metavar="S",
        ),
    ] = None,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Assign new objects to the clusters of a MODEL, or tell outliers, from their values to its objects."""
    check_not_input(out, model, rows, reading.ids)
    if dry_run:
        from dasrel.cmeans.output import estimate_predict

        console.cost(estimate_predict(model, rows, out, force=force))
        return

    import numpy as np

    from dasrel.cmeans.output import load_model, save_outliers, save_predictions
    from dasrel.io.features import read_rows
    from dasrel.io.readers.stream import given_ids
    from dasrel.util.results import check_file

    check_file(out, force=force)
    known = load_model(model)
    found = read_rows(rows, checksum=False)
    names = found.ids if reading.ids is None else given_ids(reading.ids)
    lines = [("wrote", shown(out, limit=400))]
    if known.threshold is not None:
        scores = known.score_samples(found, self_similarity=self_similarity)
        rejected = save_outliers(out, scores, known.threshold, names, force=force)
        result = {"out": str(out), "n_objects": len(scores), "outliers": rejected}
        lines += [("objects", f"{len(scores):,}"), ("outliers", f"{rejected:,}")]
        console.result({**result, "seconds": console.seconds}, lines)
        return
    memberships = known.predict_memberships(found, self_similarity=self_similarity)
    labels = known.labels(memberships)
    save_predictions(out, memberships, labels, names, force=force)
    sizes = np.bincount(labels, minlength=known.n_clusters).tolist()
    result = {"out": str(out), "n_objects": len(memberships), "n_clusters": known.n_clusters, "sizes": sizes}
    lines.append(("objects", f"{len(memberships):,}"))
    console.result({**result, "seconds": console.seconds}, [*lines, ("sizes", " ".join(f"{k:,}" for k in sizes))])


WORKERS = "Workers to plan for"


@command("dasrel plan distances.zarr --clusters 2-10")
def plan_command(
    console: Console,
    *,
    store: OldStore,
    runs: RunOptions,
    options: Annotated[ClusterOptions, Selection(ClusterOptions, "memory")],
    workers: Annotated[
        str, option("--workers", "Number of workers; a list such as 4,16 plans for each.", WORKERS, metavar="W")
    ] = "1,2,4,8,16",
    worker_memory: Annotated[
        str, option("--worker-memory", "Memory of each worker.", WORKERS, metavar="SIZE")
    ] = "8GiB",
    worker_threads: Annotated[
        int, option("--worker-threads", "Threads of each worker.", WORKERS, min=1, metavar="N")
    ] = 1,
    probe: Annotated[
        float,
        option("--probe", "Time to spend on measuring the speed of the store.", WORKERS, metavar="SECONDS", min=0.01),
    ] = 2.0,
) -> None:
    """Estimate what `dasrel cluster` would cost, here and on a cluster: scans, bytes, memory and time."""
    from dasrel.cmeans.job import prepare_job
    from dasrel.cmeans.plan import Fleet

    wanted: dict[str, Any] = {"counts": _workers(workers), "memory": worker_memory, "threads": worker_threads}
    try:
        Fleet(**wanted)
    except InputError as error:
        raise typer.BadParameter(error.text(as_option)) from None
    show_plan(console, prepare_job(store, runs.as_dict(), memory=options.memory), workers=wanted, probe=probe)


def _workers(text: str) -> list[int]:
    try:
        return comma_list(text, int)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint="--workers") from None


def show_plan(console: Console, job: ClusterJob, *, workers: dict[str, Any] | None = None, probe: float = 2.0) -> None:
    """Print the estimated cost of a clustering."""
    plan, out = job.plan(workers=workers, probe_seconds=probe), job.out
    values = {"dry_run": True, "out": None if out is None else str(out), **plan.as_dict(), "seconds": console.seconds}
    lines = plan_lines(plan)
    if out is not None:
        lines.append(("would write", shown(out, limit=400)))
    console.result(values, lines)


def plan_lines(plan: ClusteringPlan) -> list[tuple[str, str]]:
    """Return the lines that print a plan."""
    from dasrel.util.limits import memory_limit, range_text

    several = (
        ""
        if plan.bundles == 1
        else f", in {count_text(plan.bundles, 'bundle')}: memory does not allow them all at once"
    )
    parts = [("iterations", plan.n_iter), ("before them", plan.first_scans), ("validity indices", plan.judging_scans)]
    parts += [("euclideanize", plan.euclideanize_scans)]
    listed = [f"{name} {range_text(part)}" for name, part in parts if part.most]
    of = f": {'; '.join(listed)}" if len(listed) > 1 else ""
    cold = {True: ", cold", False: ", from the page cache, which could not be emptied", None: ""}[plan.speed.cold]
    then = (
        "from memory"
        if plan.stays_in_memory
        else "read again: the tiles do not fit into the free memory of this machine"
    )
    lines = [
        ("objects", f"{plan.n_objects:,}, kind {plan.kind}"),
        (
            "tiles",
            f"{plan.tiles:,}, {count_text(plan.tile, 'object')} per side, {plan.dtype};"
            f" {count_text(plan.tasks, 'task')} per scan",
        ),
        (
            "runs",
            f"{plan.runs:,} of {count_text(plan.n_settings, 'setting')}, {count_text(plan.columns, 'column')} at"
            f" most{several}",
        ),
        ("scans", range_text(plan.scans) + of),
        ("one scan reads", size_text(plan.bytes_per_scan)),
        ("memory", f"{size_text(plan.memory)} here, {size_text(plan.task_memory)} of it per task"),
        (
            "measured",
            f"reading {size_text(int(plan.speed.read))}/s{cold}; products {size_text(int(plan.speed.product))}/s",
        ),
        ("a scan", f"{time_text(plan.first_scan_seconds)} at first, then {time_text(plan.scan_seconds)}, {then}"),
        ("time", times_text(plan.total_seconds)),
    ]
    if plan.start_reads:
        lines.insert(4, ("starts", f"read at most as much as {count_text(plan.start_reads, 'scan')} in addition"))
    each = size_text(memory_limit(plan.fleet.memory))
    for row in plan.workers:
        lines.append((count_text(row.workers, "worker"), _worker_text(row, each)))
    return lines


def _worker_text(row: OnWorkers, each: str) -> str:

    if not row.fits or row.scan_seconds is None or row.total_seconds is None:
        return f"of {each}: no; {row.trouble}"
    held = (
        "all tiles in memory"
        if row.held == 1
        else f"{row.held:.0%} of the tiles in memory, all of them with {size_text(row.memory_for_all)}"
    )
    return (
        f"of {each}: {held}; {size_text(row.travel_bytes)} sent; {time_text(row.scan_seconds)} per scan,"
        f" {time_text(row.total_seconds.typical)} in total"
    )


def times_text(seconds: Range) -> str:
    """Return a range of times as text."""
    if seconds.least == seconds.most:
        return time_text(seconds.most)
    return f"{time_text(seconds.typical)} or so, {time_text(seconds.least)} to {time_text(seconds.most)}"


@command("dasrel image distances.zarr matrix.png --order ivat")
def image_command(
    console: Console,
    *,
    store: OldStore,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The image to write: .png, .pdf or .svg.")],
    options: ImageOptions,
    force: Force = False,
    dry_run: DryRun = False,
    runtime: Runtime,
) -> None:
    """Draw a STORE of any size as an image, in its own, VAT, iVAT, cluster or eigenvector order."""
    check_not_input(out, store, options.result)
    from dasrel.report.figures.matrix import prepare_image

    if dry_run:
        console.cost(prepare_image(store, out, options, force=force).cost())
        return
    with console.at(runtime):
        drawn = prepare_image(store, out, options, force=force).run()
    drawn["scans"] = console.meter.scans
    console.result(
        {"store": store, **drawn, "seconds": console.seconds},
        [
            ("image", shown(out, limit=400)),
            ("shows", drawn["title"]),
            ("pixels per side", str(drawn["side"])),
            ("scans", str(drawn["scans"])),
        ],
    )
