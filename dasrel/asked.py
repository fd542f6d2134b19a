"""What `dasrel cluster` and a cluster step of a workflow do: runs from words, the clustering, and its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dasrel.checkpoint import Checkpoint, watched
from dasrel.errors import InputError, shown
from dasrel.euclidean import as_euclidean
from dasrel.matching import Previous, keep_numbers, load_previous
from dasrel.outputs import check_out, load_model, save_clustering
from dasrel.relation import relation
from dasrel.results import cluster
from dasrel.runs import Run, grid
from dasrel.vocabulary import INITS, TAKES


def make_runs(asked: dict[str, Any]) -> list[Run]:
    """The bundle that was asked for: every rule with the numbers that it takes, from every start.

    Parameters
    ----------
    asked
        Lists of `rule`, `n_clusters` and `init`, lists of the numbers that rules take where they are given, and
        `n_init`, `random_state`, `max_iter`, `tol`, `on_negative`, `spread`, `accelerate`.
    """
    common = {name: asked[name] for name in ("random_state", "max_iter", "tol", "on_negative", "spread", "accelerate")}
    runs = []
    for rule in asked["rule"]:
        own = {name: asked[name] for name, takers in TAKES.items() if name in asked and rule in takers}
        for init in asked["init"]:
            given = init not in INITS
            start = _given_start(init) if given else init
            n_init = 1 if given else asked["n_init"]  # a given start twice would be the same run twice
            runs += grid(rule, asked["n_clusters"], n_init=n_init, init=start, **common, **own)
    return runs


def _given_start(init: str) -> Any:
    """A start from a file: a model, or memberships."""
    if init.endswith(".npy"):
        try:
            return np.load(init, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise InputError(f"{shown(init, limit=200)} is no .npy file: {shown(error, limit=200)}") from None
    if init.endswith(".npz") or Path(init).is_dir():
        return load_model(init)
    raise InputError(f"init is {shown(init)!r}: use {', '.join(INITS)}, a model (.npz) or memberships (.npy)")


def runs_asked(asked: dict[str, Any]) -> tuple[list[Run], Previous | None]:
    """The runs to be made, and what they go on from with `warm_start`."""
    previous = None if asked.get("warm_start") is None else load_previous(asked["warm_start"])
    return (make_runs(asked) if previous is None else [_warm_run(asked, previous)]), previous


def cluster_into(
    store: str,
    out: str | Path,
    asked: dict[str, Any],
    *,
    memory: str | None = None,
    checkpoint: Checkpoint | None = None,
    about: dict[str, Any] | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Cluster a store as asked, write the folder of results, and return what its result.json says.

    Parameters
    ----------
    asked
        As for `make_runs`, and `euclideanize`: a method, a file, or None. With `warm_start`, an earlier result of the
        store or of a smaller one, there is one run, which goes on from it; clusters keep their numbers.
    about
        Added to what result.json says of store, out and what was asked for.

    Cost: that of `cluster` and, where a method is named, of `euclideanize`.
    """
    runs, previous = runs_asked(asked)
    check_out(out, force=force)
    with watched(checkpoint, "euclideanize", "cluster"):
        changed = as_euclidean(store, asked["euclideanize"], memory=memory, checkpoint=checkpoint)
        matrix: Any = store if changed is None else changed.relation
        if previous is not None and changed is None:
            matrix = relation(store)  # opened once, so that what is told belongs to what was clustered
        found = cluster(matrix, runs, memory=memory, checkpoint=checkpoint)
        said = {
            "store": store, "out": str(out), "requested": asked,
            "euclideanized": None if changed is None else changed.report(),
        }  # fmt: skip
        tables = None
        if previous is not None:
            found, moves = keep_numbers(found, previous, matrix, memory=memory)
            said["warm_start"] = {"from": previous.path, **moves.report()}
            tables = {"moved.csv": moves.table()}
        return save_clustering(found, out, about={**said, **(about or {})}, tables=tables, force=force)


def _warm_run(asked: dict[str, Any], previous: Previous) -> Run:
    """The one run that goes on from an earlier result, with its numbers where no others are asked for."""
    if asked["init"] != ["random"]:
        raise InputError("a warm start is where the run begins: leave init out")
    model = previous.model
    numbers = {"fuzzifier": model.fuzzifier, "entropy_weight": model.entropy_weight}
    given = {name: [value] for name, value in numbers.items() if value is not None}
    idle = [name for name in ("entropy_weight", "spread_scale") if model.eta is not None and name in asked]
    if idle:
        raise InputError(f"{idle[0]} is of no use here: a warm start keeps the widths of the clusters of {model.rule}")
    runs = make_runs({**given, **asked, "n_init": 1})
    if len(runs) != 1:
        raise InputError(f"a warm start goes on with one run, and {len(runs)} were asked for: give no lists")
    return previous.run(runs[0])
