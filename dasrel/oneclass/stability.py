"""How stable outliers are (F10, table II): found on one half of the objects, and predicted from the other half.

A repeat draws two halves. Each half has a centre of its own, whose distances to all objects come from the same product:
those to its own half give its outliers and the cut, those to the other half the predictions. All repeats and widths are
columns of one bundle. The first product is the kernel density estimate of each half, so that this peer costs nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.engine.relation import Relation
from dasrel.errors import DasrelWarning, InputError
from dasrel.oneclass.fit import Column, iterate, kernel_view, prepare_one_class, split_columns
from dasrel.oneclass.run import MOST_REJECTED, OneClassRun, rejected_count
from dasrel.util import Float, limits, progress
from dasrel.util.option_fields import check_number
from dasrel.util.text import count_text, shown, some

METHODS = ("pcm", "kde", "svm")
"""The detectors that can be compared: one possibilistic cluster, a kernel density, scikit-learn's one-class SVM."""
MOST_FOR_SVM = 5000
"""Objects up to which the complete kernel is held for the SVM."""
Mask = NDArray[np.bool_]
Scores = dict[tuple[str, float | None, float, float], list[float]]
Counts = dict[tuple[float, float], list[tuple[int, int]]]
"""By width and share: for each repeat, how many objects of either half the SVM rejects."""


@dataclass(frozen=True, eq=False)
class Stability:
    """The result of `stability`."""

    scores: dict[tuple[str, float | None, float, float], Float]
    """Jaccard coefficients (37) of all repeats, by detector, width, gamma and rejected share."""
    scans: int

    def table(self) -> list[dict[str, Any]]:
        """Return the quartiles of each detector, plain values."""
        rows = []
        for (method, width, scale, share), values in self.scores.items():
            low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
            rows.append(
                {
                    "detector": method, "width": width, "eta_scale": scale, "reject": share, "repeats": len(values),
                    "lower_quartile": low, "median": middle, "upper_quartile": high,
                }
            )  # fmt: skip
        return rows


def stability(
    matrix: Any,
    detector: OneClassRun | Sequence[OneClassRun],
    *,
    reject: float | Sequence[float] = 0.05,
    repeats: int = 500,
    methods: Sequence[str] = ("pcm", "kde"),
    random_state: int = 0,
    memory: int | str | None = None,
) -> Stability:
    """Measure how far outliers that are predicted from one half of the objects agree with those of the other half.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, or a `Relation`; `dasrel.relation(array, kind=...)` of an array.
    detector
        One or more `OneClassRun`, each with a width that is given.
    reject
        Shares of each half that are rejected: exactly that many.
    repeats
        Number of times that halves are drawn.
    methods
        "pcm", and to compare it "kde", a kernel density of the same width, and "svm", scikit-learn's one-class SVM with
        nu = reject, for at most 5,000 objects. It rejects what its own boundary excludes, and with it among the methods
        the others reject as many objects of each half, as in F10.
    random_state
        Seed of the halves, which are the same for all detectors.

    Cost: as many scans as the slowest of all columns has iterations, two columns for each repeat and run; more where
    memory divides them. 80 n bytes for each repeat and run of a bundle.
    """
    prepared = prepare_one_class(matrix, detector, memory=memory)
    runs, relation = prepared.runs, prepared.relation
    shares = [reject] if isinstance(reject, (int, float)) else list(reject)
    unknown = [name for name in methods if name not in METHODS]
    if unknown or not methods:
        raise InputError(f"methods are among {', '.join(METHODS)}, not {shown(some(unknown))}")
    if any(run.width == "auto" for run in runs):
        raise InputError(
            "halves have widths of their own", remedy="give a number for width, such as that of `one_class`"
        )
    check_number("repeats", repeats, whole=True, least=1)
    n = relation.n_objects
    if n < 4:
        raise InputError(f"there are {count_text(n, 'object')}: halves need at least two objects each")
    for share in shares:
        check_number("reject", share, above=0, most=MOST_REJECTED)
    if "svm" in methods and n > MOST_FOR_SVM:
        raise InputError(f"the SVM holds the complete kernel, for at most {MOST_FOR_SVM:,} objects, not {n:,}")

    scores: Scores = {}
    counts: Counts = {}
    halves = _halves(n, repeats, random_state)
    limit = limits.memory_limit(memory)
    with progress.watch() as counted:
        for run in runs if "svm" in methods else ():
            _score_svm(relation, run, halves, shares, scores, counts)
        done = 0
        while done < repeats:
            size = _repeats_that_fit(relation, runs, repeats - done, limit)
            some_counts = {key: each[done : done + size] for key, each in counts.items()}
            _score_pcm(relation, runs, halves[done : done + size], shares, methods, limit, scores, some_counts)
            done += size
    arrays = {key: np.array(values) for key, values in scores.items()}
    return Stability(arrays, counted.scans)


def _halves(n: int, repeats: int, seed: int) -> list[tuple[Mask, Mask]]:
    """Draw halves of equal size for each repeat; an odd object is in neither."""
    rng = np.random.default_rng(seed)
    halves = []
    for _ in range(repeats):
        order = rng.permutation(n)
        both = np.zeros((2, n), dtype=bool)
        both[0, order[: n // 2]] = True
        both[1, order[n // 2 : 2 * (n // 2)]] = True
        halves.append((both[0], both[1]))
    return halves


def _repeats_that_fit(relation: Relation, runs: Sequence[OneClassRun], count: int, memory: int) -> int:
    """Return how many repeats are made in one bundle."""
    widths: list[Any] = [run.width for run in runs for _ in range(2)]
    while count > 1 and len(split_columns(relation, widths * count, memory)) > 1:
        count = -(-count // 2)
    return count


def _score_pcm(
    relation: Relation,
    runs: Sequence[OneClassRun],
    halves: Sequence[tuple[Mask, Mask]],
    shares: Sequence[float],
    methods: Sequence[str],
    memory: int,
    scores: Scores,
    counts: Counts,
) -> None:
    """Add the scores of the possibilistic cluster and of the density for some repeats."""
    columns = [
        Column(k, run, members=half, keep_first="kde" in methods)
        for k, (run, half) in enumerate((run, half) for run in runs for pair in halves for half in pair)
    ]
    done: dict[int, Column] = {}
    iterate(relation, columns, memory=memory, deliver=lambda column: done.__setitem__(column.index, column))
    late = sum(column.history[-1] >= column.run.tol for column in columns)
    if late:
        problem = f"{late:,} of {count_text(len(columns), 'half', 'halves')} did not converge"
        warnings.warn(DasrelWarning(problem, remedy="raise {max_iter} or {tol}"), stacklevel=3)
    pairs = [(run, pair) for run in runs for pair in halves]
    for at, (run, (first, second)) in enumerate(pairs):
        column, other = columns[2 * at], columns[2 * at + 1]
        assert column.log_u is not None
        assert other.log_u is not None
        measured = {"pcm": (column.log_u, other.log_u)} if "pcm" in methods else {}
        repeated = any(earlier.width == run.width for earlier in runs[: at // len(halves)])
        if "kde" in methods and run.width is not None and not repeated:  # a density has no gamma
            assert column.first is not None
            assert other.first is not None
            measured["kde"] = (column.first, other.first)
        for method, (of_first, of_second) in measured.items():
            width: Any = run.width
            for share in shares:
                key = (method, width, run.eta_scale if method == "pcm" else 0.0, share)
                usual = rejected_count(share, int(first.sum()))
                rejected = counts[width, share][at % len(halves)] if (width, share) in counts else (usual, usual)
                scores.setdefault(key, []).append(_agreement(of_first, of_second, first, second, rejected))


def _agreement(of_first: Float, of_second: Float, first: Mask, second: Mask, rejected: tuple[int, int]) -> float:
    """Return the Jaccard coefficient of the second half's outliers, predicted from the first and found by itself.

    `rejected` are the objects that are rejected of the first half, which is the threshold, and of the second.
    """
    count = rejected[0]
    threshold = np.partition(of_first[first], count - 1)[count - 1] if count else -np.inf
    predicted = of_first[second] <= threshold
    own = of_second[second]
    own_outliers = np.zeros(len(own), dtype=bool)
    own_outliers[np.lexsort((-np.arange(len(own)), own))[: rejected[1]]] = True
    return jaccard(predicted, own_outliers)


def jaccard(first: Mask, second: Mask) -> float:
    """Return the Jaccard coefficient (37) of two selections; 1 if both are empty.

    >>> jaccard(np.array([True, True, False]), np.array([True, False, False]))
    0.5
    """
    either = int((first | second).sum())
    return int((first & second).sum()) / either if either else 1.0


def _score_svm(
    relation: Relation,
    run: OneClassRun,
    halves: Sequence[tuple[Mask, Mask]],
    shares: Sequence[float],
    scores: Scores,
    counts: Counts,
) -> None:
    """Add the scores of the SVM for all repeats, and how many objects it rejects."""
    from sklearn.svm import OneClassSVM

    if run.width is None:
        return
    K = kernel_view(relation, float(run.width)).rows(range(relation.n_objects))
    for share in shares:
        key = ("svm", float(run.width), 0.0, share)
        if key in scores:
            continue
        values = []
        for first, second in halves:
            limits.check()
            svm, other = (OneClassSVM(kernel="precomputed", nu=share) for _ in range(2))
            predicted = svm.fit(K[np.ix_(first, first)]).predict(K[np.ix_(second, first)]) < 0
            own = other.fit(K[np.ix_(second, second)]).predict(K[np.ix_(second, second)]) < 0
            values.append(jaccard(predicted, own))
            before = int((svm.predict(K[np.ix_(first, first)]) < 0).sum())
            counts.setdefault((float(run.width), share), []).append((before, int(own.sum())))
        scores[key] = values
