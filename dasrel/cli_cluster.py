"""The commands `dasrel cluster` and `dasrel predict`. As in `cli`: parse, one library call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dasrel.cli_plan import show_plan
from dasrel.errors import count_text, shown, some
from dasrel.options import (
    READING,
    RUNNING,
    DryRun,
    Force,
    Ids,
    Keeping,
    OldStore,
    Place,
    RunMemory,
    RunOptions,
    command,
    option,
)
from dasrel.talk import Talk, complain

NOT_CONVERGED = 3
"""The exit code of --strict."""


@command
def cluster_command(
    talk: Talk,
    place: Place,
    runs: RunOptions,
    keeping: Keeping,
    store: OldStore,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder for the results.")],
    warm_start: Annotated[
        Path | None,
        option("--warm-start", "Go on from this result, perhaps of fewer objects.", RUNNING, metavar="RESULT"),
    ] = None,
    memory: RunMemory = None,
    strict: Annotated[
        bool, option("--strict", f"Exit {NOT_CONVERGED} if a result has not converged.", RUNNING)
    ] = False,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Cluster the objects of a STORE: all runs together, one scan per iteration."""
    from dasrel.asked import cluster_into

    asked = runs.asked()
    if warm_start is not None:
        asked["warm_start"] = str(warm_start)
    if dry_run:
        show_plan(talk, store, asked, memory=memory, out=out, force=force)
        return
    checkpoint = keeping.made(force=force)
    with talk.at(place):
        result = cluster_into(store, out, asked, memory=memory, checkpoint=checkpoint, force=force)
    if checkpoint is not None:
        checkpoint.clear("euclideanize", "cluster")
    talk.result(result, result_lines(result))
    if strict and not result["converged"]:
        left = [one["folder"] for one in result["settings"] if not one["converged"]]
        where = "" if left == ["."] else f" ({some(left)})"
        complain(f"not converged{where}; the results are written all the same: raise --max-iter or --tol")
        raise typer.Exit(NOT_CONVERGED)


def result_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """A result for people: names and texts."""
    settings = result["settings"]
    lines = [
        ("results", shown(result["out"], limit=400)),
        ("objects", f"{result['n_objects']:,}, kind {result['kind']}"),
        ("runs", f"{result['runs']:,}, of which {result['runs_converged']:,} converged"),
        ("scans", f"{result['scans']:,} in {result['seconds']:.1f} s"),
    ]
    changed = result.get("euclideanized")
    if changed is not None:
        told = f"{changed['method']}, gamma {changed['gamma']:.6g}, {changed['ratio']:.3g} of D was added"
        lines.append(("Euclideanised", told))
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
            told = "" if one["converged"] else ", not converged"
            sizes = " ".join(f"{size:,}" for size in one["sizes"])
            lines.append((one["folder"], f"objective {one['objective']:.6g}, sizes {sizes}{told}"))
        return lines
    one = settings[0]
    weight = one["entropy_weight_used"]
    used = {"fuzzifier": one.get("fuzzifier"), "entropy weight": weight if one["rule"] == "fcm2" else None}
    numbers = "".join(f", {name} {value:.6g}" for name, value in used.items() if value is not None)
    return [
        *lines,
        ("rule", f"{one['rule']}, {count_text(one['n_clusters'], 'cluster')}{numbers}"),
        (
            "converged",
            f"{'yes' if one['converged'] else 'no'}, after {count_text(one['n_iter'], 'iteration')} (run {one['run']})",
        ),
        ("objective", f"{one['objective']:.8g}"),
        ("sizes", " ".join(f"{size:,}" for size in one["sizes"])),
        ("medoids", " ".join(shown(name) for name in one["medoids"])),
    ]


@command
def predict_command(
    talk: Talk,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="model.npz of a result, or the folder it lies in.")],
    rows: Annotated[
        str, typer.Argument(metavar="ROWS", help="One row per new object, one value per old one: npy, npz, CSV, Zarr.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The CSV file to write.")],
    ids: Ids = None,
    self_similarity: Annotated[
        float | None,
        option("--self-similarity", "Of a new object with itself; for similarities and kernels.", READING, metavar="S"),
    ] = None,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Place new objects in the clusters of a MODEL by their values to the old ones."""
    if dry_run:
        from dasrel.forecast import forecast_predict

        talk.forecast(forecast_predict(model, rows, out, force=force))
        return

    import numpy as np

    from dasrel.outputs import check_file, load_model, read_rows, save_predictions
    from dasrel.source import Reading
    from dasrel.spool import given_ids

    check_file(out, force=force)
    known = load_model(model)
    values, names = read_rows(rows, known)
    if ids is not None:
        names = given_ids(Reading(ids=str(ids)))
    memberships = known.predict_memberships(values, self_similarity=self_similarity)
    save_predictions(out, memberships, names, force=force)
    sizes = np.bincount(memberships.argmax(axis=1), minlength=known.n_clusters).tolist()
    result = {"out": str(out), "n_objects": len(memberships), "n_clusters": known.n_clusters, "sizes": sizes}
    lines = [("wrote", shown(out, limit=400)), ("objects", f"{len(memberships):,}")]
    talk.result({**result, "seconds": talk.seconds}, [*lines, ("sizes", " ".join(f"{k:,}" for k in sizes))])
