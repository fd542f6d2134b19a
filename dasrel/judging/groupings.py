"""Partitions to be judged or compared, as users give them and as computations use them; measures of labels alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.errors import InputError
from dasrel.partition.model import mode_labels
from dasrel.util import Array, Float, Names
from dasrel.util.labelled import column_order, row_names
from dasrel.util.option_fields import check_fields, option
from dasrel.util.text import count_text, some

INDEX_PANEL = "Indices"


@dataclass(frozen=True)
class MembershipOptions:
    """What is not known of memberships that are given without a model."""

    fuzzifier: float = option(
        2.0, "Exponent of memberships that are given without a model.", INDEX_PANEL, metavar="M", least=1
    )


SUM_TOLERANCE = 1e-3
"""How far the memberships of an object that were given by hand may be from a sum of one."""


@dataclass(frozen=True, eq=False)
class Grouping:
    """One partition to be judged, in the form that all computations use."""

    name: str
    labels: NDArray[np.int32]
    """(n,) from 0 to below `n_clusters`; some clusters may have no object."""
    n_clusters: int
    U: Float | None = None
    """Memberships (c, n); None where they are the one-hot labels."""
    theta: float = 1.0
    """Exponent m of the memberships in the centres."""
    clusters: tuple[str, ...] | None = None
    """Names of the clusters, if they have some."""

    @staticmethod
    def of_memberships(name: str, U: Float, theta: float, modes: tuple[int, ...] | None = None) -> Grouping:
        """Return the grouping of memberships (c, n): labels are clusters of largest membership, or their `modes`."""
        return Grouping(name, mode_labels(U.T, modes).astype(np.int32), len(U), U, theta)

    @property
    def sizes(self) -> NDArray[np.intp]:
        """Number of objects with each label."""
        return np.bincount(self.labels, minlength=self.n_clusters).astype(np.intp)

    def packed_labels(self) -> tuple[NDArray[np.int32], int]:
        """Return the labels without numbers for clusters that have no object, and the number of the others."""
        used = self.sizes > 0
        return (np.cumsum(used) - 1).astype(np.int32)[self.labels], int(used.sum())


def given_groupings(partitions: Any, ids: Names, fuzzifier: float) -> list[Grouping]:
    """Return the partitions of the objects with these ids that a user has given, checked; see `validity`."""
    check_fields(MembershipOptions(fuzzifier))
    if isinstance(partitions, Mapping):
        named = [(str(name), partition) for name, partition in partitions.items()]
    else:
        several = getattr(partitions, "partitions", None)
        if several is None and isinstance(partitions, (list, tuple)) and _are_several(partitions):
            several = partitions
        listed = [partitions] if several is None else list(several)
        names = ["the partition"] if len(listed) == 1 else [f"partition {k}" for k in range(len(listed))]
        named = list(zip(names, listed, strict=True))
    if not named:
        raise InputError("there is no partition", remedy="give labels or memberships")
    groupings = [_grouping(name, partition, ids, fuzzifier) for name, partition in named]
    for grouping in groupings:
        if grouping.packed_labels()[1] < 2:
            raise InputError(f"{grouping.name} has one cluster only", remedy="give at least two")
    return groupings


def _are_several(partitions: Sequence[Any]) -> bool:
    return not partitions or hasattr(partitions[0], "memberships") or np.ndim(partitions[0]) > 0


def _grouping(name: str, given: Any, ids: Names, fuzzifier: float) -> Grouping:
    n = len(ids)
    if hasattr(given, "memberships") and hasattr(given, "result"):
        U, theta = np.asarray(given.memberships).T, given.result.run.theta
        if U.shape[1] != n:
            raise InputError(f"{name} is of {count_text(U.shape[1], 'object')} and the matrix has {n}")
        return Grouping.of_memberships(name, U, theta, given.model.modes)
    array = np.asarray(given)
    if array.ndim not in (1, 2) or len(array) != n:
        raise InputError(
            f"{name} has shape {array.shape}", remedy=f"give {n} labels, or memberships of shape ({n}, clusters)"
        )
    names, objects = row_names(given), [str(object_id) for object_id in ids]
    numbered = objects == [str(k) for k in range(n)]  # the matrix has no names: others say nothing about the order
    if names is not None and (set(names) == set(objects) or not numbered):
        order = column_order(names, objects, name, "the matrix", part="label")
        array = array if order is None else array[order]
    return of_labels(name, array) if array.ndim == 1 else _of_given_memberships(name, array, fuzzifier)


def of_labels(name: str, labels: Array) -> Grouping:
    """Return the grouping of any labels, numbers or text; clusters are in the sorted order of their labels."""
    if labels.dtype.kind == "O":
        labels = np.array([str(label) for label in labels.tolist()])
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        missing = np.flatnonzero(~np.isfinite(labels))
        raise InputError(f"{name} has no label (NaN) for {count_text(len(missing), 'object')}: {some(missing)}")
    if labels.dtype.kind not in "fiubUS":
        raise InputError(f"{name} has labels of type {labels.dtype}", remedy="give numbers or text")
    known, inverse = np.unique(labels, return_inverse=True)
    return Grouping(name, inverse.astype(np.int32), len(known), clusters=tuple(str(label) for label in known))


def _of_given_memberships(name: str, U: Array, fuzzifier: float) -> Grouping:
    if U.dtype.kind not in "fiub":
        raise InputError(f"{name} has memberships of type {U.dtype}", remedy="give numbers")
    U = U.astype(np.float64, order="C")
    wrong = ~(np.isfinite(U) & (U >= 0) & (U <= 1 + SUM_TOLERANCE))
    if wrong.any():
        k, i = (int(x) for x in np.argwhere(wrong)[0])
        raise InputError(
            f"{name}: the membership of object {k} in cluster {i} is {U[k, i]:g} ({int(wrong.sum())} such)",
            remedy="give 0 to 1",
        )
    sums = U.sum(axis=1)
    off = np.flatnonzero(np.abs(sums - 1) > SUM_TOLERANCE)
    if off.size:
        raise InputError(
            f"{name}: the memberships of object {off[0]} sum to {sums[off[0]]:g}, not to 1 ({off.size} such objects)",
            remedy="divide each row by its sum",
        )
    return Grouping.of_memberships(name, np.ascontiguousarray(U.T), float(fuzzifier))


def silhouettes(labels: NDArray[Any], sizes: Float, sums: Float) -> Float:
    """Return the silhouette of each object, (n,), given d Z, (c, n), which is overwritten; no cluster is empty."""
    everyone, own = np.arange(labels.size), sizes[labels]
    a = sums[labels, everyone] / np.maximum(own - 1, 1)
    sums /= sizes[:, None]
    sums[labels, everyone] = np.inf
    b = sums.min(axis=0)
    larger = np.maximum(a, b)
    result: Float = np.divide(b - a, larger, out=np.zeros_like(a), where=(larger > 0) & (own > 1))
    return result


def adjusted_rand_index(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Return the share of pairs that two labelings agree on, above chance: 1 if they are equal (Hubert and Arabie).

    scikit-learn has it too, and takes two seconds to import.
    """
    (_, a), (_, b) = (np.unique(labels, return_inverse=True) for labels in (first, second))
    # No table of all pairs of labels: there may be as many labels as objects.
    together = np.unique(a.astype(np.int64) * (int(b.max()) + 1) + b, return_counts=True)[1]
    both, in_a, in_b = (int((of * (of - 1) // 2).sum()) for of in (together, np.bincount(a), np.bincount(b)))
    by_chance, most = in_a * in_b / max(1, len(a) * (len(a) - 1) // 2), (in_a + in_b) / 2
    return (both - by_chance) / (most - by_chance) if most != by_chance else 1.0
