"""The commands `dasrel cluster` and `dasrel predict`. As in `cli`: parse, one library call, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dasrel.errors import InputError, shown, some
from dasrel.options import READING, RUNNING, Force, Ids, Json, OldStore, Quiet, Verbose, option
from dasrel.talk import Talk, complain

if TYPE_CHECKING:
    from dasrel.runs import Run

# Named here so that the help need not load the rules; a test keeps them equal.
RULES = ("fcm1", "fcm2", "pcm1", "pcm2", "hard")
TAKES = {
    "fuzzifier": ("fcm1", "pcm1"),
    "entropy-weight": ("fcm2", "pcm1", "pcm2"),
    "spread-scale": ("pcm1", "pcm2"),
}
"""Which rules take which number."""
NOT_CONVERGED = 3
"""The exit code of --strict."""

RunMemory = Annotated[
    str | None, option("--memory", "Memory that may be taken; half of the machine's if not given.", RUNNING)
]


def _list(text: str, name: str, number: type[int] | type[float] | None = None, word: str | None = None) -> list[Any]:
    """The values of a comma list; a word may stand among the numbers."""
    values: list[Any] = []
    for part in (piece.strip() for piece in text.split(",")):
        try:
            if not part:
                raise ValueError
            values.append(part if number is None or part == word else number(part))
        except ValueError:
            wanted = {None: "words", int: "whole numbers", float: "numbers"}[number]
            also = f" or {word}" if word else ""
            raise typer.BadParameter(
                f"{text!r}: give {wanted}{also} with commas between them", param_hint=f"--{name}"
            ) from None
    return values


def cluster_command(
    store: OldStore,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder for the results.")],
    rule: Annotated[str, option("--rule", f"Of {', '.join(RULES)}.", RUNNING)],
    clusters: Annotated[str, option("--clusters", "Number of clusters.", RUNNING, metavar="C")],
    fuzzifier: Annotated[
        str | None, option("--fuzzifier", "m of fcm1 and pcm1, above 1; 2 if not given.", RUNNING, metavar="M")
    ] = None,
    entropy_weight: Annotated[
        str | None,
        option("--entropy-weight", "lambda of fcm2, and of what pcm begins with; auto if not given.", RUNNING),
    ] = None,
    spread_scale: Annotated[
        str | None, option("--spread-scale", "Factor of the widths of pcm's clusters; 1 if not given.", RUNNING)
    ] = None,
    n_init: Annotated[int, option("--n-init", "Runs of each, from different starts.", RUNNING, metavar="N")] = 10,
    init: Annotated[
        str, option("--init", "random, rows, k-means++, a model (.npz) or memberships (.npy).", RUNNING)
    ] = "random",
    seed: Annotated[int, option("--seed", "The same seed gives the same bits.", RUNNING)] = 0,
    max_iter: Annotated[int, option("--max-iter", "Most iterations.", RUNNING)] = 300,
    tol: Annotated[float, option("--tol", "Converged when no membership changes by as much.", RUNNING)] = 1e-5,
    on_negative: Annotated[
        Literal["error", "heal"], option("--on-negative", "Negative distances to centres: stop, or heal.", RUNNING)
    ] = "error",
    spread: Annotated[
        str, option("--spread", "Added to squared dissimilarities off the diagonal.", RUNNING, metavar="BETA")
    ] = "0",
    euclideanize: Annotated[
        str | None,
        option(
            "--euclideanize",
            "spread, ultrametric, power, exponential, log, or a file (.npz) of them.",
            RUNNING,
            metavar="METHOD|FILE",
        ),
    ] = None,
    accelerate: Annotated[bool, option("--accelerate", "Fewer iterations, on another path.", RUNNING)] = False,
    memory: RunMemory = None,
    strict: Annotated[
        bool, option("--strict", f"Exit {NOT_CONVERGED} if a result has not converged.", RUNNING)
    ] = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Cluster the objects of a STORE: all runs together, one scan per iteration."""
    rules = _list(rule, "rule")
    unknown = [name for name in rules if name not in RULES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(RULES)}", param_hint="--rule")
    numbers: dict[str, list[Any]] = {}
    for name, text in (("fuzzifier", fuzzifier), ("entropy-weight", entropy_weight), ("spread-scale", spread_scale)):
        if text is None:
            continue
        if not set(rules) & set(TAKES[name]):
            raise typer.BadParameter(f"it is for {' and '.join(TAKES[name])}, not {rule}", param_hint=f"--{name}")
        numbers[name] = _list(text, name, float, "auto" if name == "entropy-weight" else None)
    asked: dict[str, Any] = {
        "rule": rules,
        "n_clusters": _list(clusters, "clusters", int),
        **{name.replace("-", "_"): values for name, values in numbers.items()},
        "init": _list(init, "init"),
        "n_init": n_init,
        "seed": seed,
        "max_iter": max_iter,
        "tol": tol,
        "on_negative": on_negative,
        "spread": _list(spread, "spread", float),
        "euclideanize": euclideanize,
        "accelerate": accelerate,
    }
    with Talk(json=json, quiet=quiet, verbose=verbose) as talk:
        from dasrel.euclidean import as_euclidean
        from dasrel.outputs import check_out, save_clustering
        from dasrel.results import cluster

        runs = make_runs(asked)
        check_out(out, force=force)
        changed = as_euclidean(store, euclideanize, memory=memory)
        found = cluster(store if changed is None else changed.relation, runs, memory=memory)
        about = {
            "store": store,
            "out": str(out),
            "asked": asked,
            "euclideanized": None if changed is None else changed.report(),
        }
        result = save_clustering(found, out, about=about, force=force)
        talk.result(result, result_lines(result))
        if strict and not result["converged"]:
            left = [one["folder"] for one in result["settings"] if not one["converged"]]
            where = "" if left == ["."] else f" ({some(left)})"
            complain(f"not converged{where}; the results are written all the same: raise --max-iter or --tol")
            raise typer.Exit(NOT_CONVERGED)


def make_runs(asked: dict[str, Any]) -> list[Run]:
    """The bundle that was asked for: every rule with the numbers that it takes, from every start."""
    from dasrel.runs import STARTS, grid

    common = {name: asked[name] for name in ("seed", "max_iter", "tol", "on_negative", "spread", "accelerate")}
    runs = []
    for rule in asked["rule"]:
        own = {name: asked[name] for name in (key.replace("-", "_") for key in TAKES) if name in asked}
        own = {name: values for name, values in own.items() if rule in TAKES[name.replace("_", "-")]}
        for init in asked["init"]:
            given = init not in STARTS
            start = _given_start(init) if given else init
            n_init = 1 if given else asked["n_init"]  # a given start twice would be the same run twice
            runs += grid(rule, asked["n_clusters"], n_init=n_init, start=start, **common, **own)
    return runs


def _given_start(init: str) -> Any:
    """A start from a file: a model, or memberships."""
    import numpy as np

    from dasrel.outputs import load_model

    if init.endswith(".npy"):
        try:
            return np.load(init, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise InputError(f"{shown(init, limit=200)} is no .npy file: {shown(error, limit=200)}") from None
    if init.endswith(".npz") or Path(init).is_dir():
        return load_model(init)
    raise InputError(f"init is {shown(init)!r}: use random, rows, k-means++, a model (.npz) or memberships (.npy)")


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
        ("rule", f"{one['rule']}, {one['n_clusters']} clusters{numbers}"),
        (
            "converged",
            f"{'yes' if one['converged'] else 'no'}, after {one['iterations']} iterations (run {one['run']})",
        ),
        ("objective", f"{one['objective']:.8g}"),
        ("sizes", " ".join(f"{size:,}" for size in one["sizes"])),
        ("medoids", " ".join(shown(name) for name in one["medoids"])),
    ]


def predict_command(
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
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Place new objects in the clusters of a MODEL by their values to the old ones."""
    with Talk(json=json, quiet=quiet, verbose=verbose) as talk:
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
        import numpy as np

        sizes = np.bincount(memberships.argmax(axis=1), minlength=known.n_clusters).tolist()
        result = {"out": str(out), "n_objects": len(memberships), "n_clusters": known.n_clusters, "sizes": sizes}
        lines = [("wrote", shown(out, limit=400)), ("objects", f"{len(memberships):,}")]
        talk.result({**result, "seconds": talk.seconds}, [*lines, ("sizes", " ".join(f"{k:,}" for k in sizes))])
