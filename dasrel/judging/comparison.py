"""Compare two partitions of the same objects: `dasrel compare`.

Clusters have no natural numbers, so those of the second partition U' are first matched to those of the first, U: one to
one, with the largest total overlap sum_k u_ik u'_jk, which is also the least sum of squared differences between U and
U' (an assignment problem). Then, with natural logarithms,

    KL     = sum u log(u / u')                  F09 eq. 44; infinite where u' is 0 and u is not
    max |u - u'|                                F09 eq. 42
    O(U)   = - sum u log u                      F09 eq. 43
    A(U)   = sum u^m                            F09 eq. 40; m is the fuzzifier, 1 for rules without one
    B(U)   = sum_i (sum_h u_ih^2m / sum_h u_ih^m)    F09 eq. 41; A - B is what a shift of the dissimilarities weighs

An object has moved if its cluster in the second partition is not the match of its cluster in the first. The adjusted
Rand index is of the labels and needs no matching. KL and max |u - u'| need equal numbers of clusters. KL is not
symmetric, and of memberships that do not sum to one, as those of pcm1 and pcm2, it may be negative.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.errors import InputError, MemoryLimitError
from dasrel.judging.groupings import Grouping, MembershipOptions, adjusted_rand_index, of_labels
from dasrel.partition import rules
from dasrel.partition.files import PartitionFile, positions, read_partition_file
from dasrel.partition.model import mode_labels
from dasrel.partition.result import Partition
from dasrel.util import Array, Float, limits
from dasrel.util.option_fields import check_fields
from dasrel.util.results import MOST_IDS
from dasrel.util.text import count_text, size_text


@dataclass(frozen=True, eq=False)
class ComparedPartition:
    """One of the two partitions."""

    name: str
    U: Float
    """Memberships (n, c); those of labels are 0 and 1."""
    clusters: tuple[str, ...]
    """Names of the clusters: their numbers, or the labels that were given."""
    ids: list[str] | None
    theta: float
    """Exponent m of the memberships."""
    eta: tuple[float, ...] | None
    """Widths of the clusters of pcm1 and pcm2."""
    modes: tuple[int, ...] | None = None
    """For each cluster of pcm1 and pcm2 the first cluster in the same position; see `Model.modes`."""

    @property
    def labels(self) -> NDArray[np.intp]:
        """The cluster of largest membership of each object, (n,)."""
        return mode_labels(self.U, self.modes)

    @property
    def entropy(self) -> float:
        """O(U) = - sum u log u."""
        return float(rules.entropy(self.U.T[None])[0])

    @property
    def shift_terms(self) -> tuple[float, float]:
        """A(U) and B(U)."""
        A, B = rules.shift_terms(rules.weights(np.ascontiguousarray(self.U.T)[None], self.theta))
        return float(A[0]), float(B[0])

    def report(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        A, B = self.shift_terms
        count = len(self.clusters)
        return {
            "partition": self.name, "n_clusters": count, "fuzzifier": self.theta,
            "sizes": np.bincount(self.labels, minlength=count).tolist(),
            "entropy": self.entropy, "shift_a": A, "shift_b": B,
            "eta": None if self.eta is None else list(self.eta),
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two partitions of the same objects, in the order of the first; returned by `compare`."""

    a: ComparedPartition
    b: ComparedPartition
    ids: list[str]
    """Names of the objects; their positions where neither partition has names."""
    matched_by: str
    """How objects were matched: "id", or "order" where one of the partitions has no names."""
    match: tuple[int | None, ...]
    """For each cluster of `a` the cluster of `b` that is matched to it, or None where `b` has too few."""
    kl: float | None
    """KL of `a` relative to `b`; infinite where it is so by definition, None if numbers of clusters differ."""
    kl_reversed: float | None
    """KL of `b` relative to `a`."""
    changes: Float | None
    """(n,) the largest |u - u'| of each object, None if numbers of clusters differ."""
    adjusted_rand_index: float
    moved: NDArray[np.intp]
    """Positions of the objects that moved."""

    def __repr__(self) -> str:
        counts = " and ".join(count_text(len(partition.clusters), "cluster") for partition in (self.a, self.b))
        return (
            f"<Comparison: {counts}, adjusted Rand index {self.adjusted_rand_index:.4f},"
            f" {len(self.moved):,} of {count_text(len(self.ids), 'object')} moved>"
        )

    def report(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        largest = None
        if self.changes is not None:
            worst = int(self.changes.argmax())
            largest = {"membership": float(self.changes[worst]), "id": self.ids[worst]}
        counts = len(self.a.clusters), len(self.b.clusters)
        differ = f"{counts[0]} and {counts[1]} clusters: kl and largest_change need equal numbers"
        shared = np.zeros(counts, dtype=np.intp)
        np.add.at(shared, (self.a.labels, self.b.labels), 1)
        matches = [
            {
                "label_a": self.a.clusters[i], "label_b": None if j is None else self.b.clusters[j],
                "objects": 0 if j is None else int(shared[i, j]),
            }
            for i, j in enumerate(self.match)
        ]  # fmt: skip
        return {
            "partitions": [self.a.report(), self.b.report()],
            "n_objects": len(self.ids),
            "matched_by": self.matched_by,
            "matches": matches,
            "kl": self.kl,
            "kl_reversed": self.kl_reversed,
            "largest_change": largest,
            "adjusted_rand_index": self.adjusted_rand_index,
            "moved": len(self.moved),
            "moved_ids": [self.ids[k] for k in self.moved[:MOST_IDS]],
            "note": None if self.changes is not None else differ,
        }

    def table(self) -> tuple[list[str], Iterator[list[Any]]]:
        """Return all objects that moved: a header, and a line for each.

        `matched_label` is the cluster of the first partition that `label_b` is matched to.
        """
        header = ["id", "label_a", "label_b", "matched_label", "membership_a", "membership_b"]
        back = {j: self.a.clusters[i] for i, j in enumerate(self.match) if j is not None}
        moves = (labels[self.moved].tolist() for labels in (self.a.labels, self.b.labels))
        return header, (
            [self.ids[k], self.a.clusters[i], self.b.clusters[j], back.get(j, ""), self.a.U[k, i], self.b.U[k, j]]
            for k, i, j in zip(self.moved.tolist(), *moves, strict=True)
        )


def compare(a: Any, b: Any, *, fuzzifier: float = MembershipOptions.fuzzifier) -> Comparison:
    """Compare two partitions of the same objects, of dasrel or not; see the module for the equations.

    Objects are matched by their names where both partitions have some, else by their order. Partitions of different
    objects are refused.

    Parameters
    ----------
    a, b
        A result folder of `dasrel cluster`, such as OUT or OUT/best; its memberships.npy or labels.csv, or other such
        files; a `Clustering`, of which the best partition counts; a `Partition`; n labels; or memberships (n, c), which
        need not sum to one.
    fuzzifier
        The exponent of memberships that are given without a model, in A and B.

    Cost: no scan; about 6 n c numbers, c the clusters of both.
    """
    first, second = _given(a, "the first partition", fuzzifier), _given(b, "the second partition", fuzzifier)
    n = len(first.U)
    ids, matched_by = first.ids or second.ids, "order"
    if first.ids is not None and second.ids is not None:
        _refuse_repeated(first)
        second = _taken(second, positions(second.name, second.ids, first.ids, first.name))
        matched_by = "id"
    elif len(second.U) != n:
        raise InputError(
            f"{first.name} has {count_text(n, 'object')} and {second.name} {len(second.U):,}",
            remedy="compare partitions of the same objects",
        )
    if ids is None:
        ids = [str(k) for k in range(n)]

    match = _matched(first.U, second.U)
    kl = kl_reversed = changes = None
    if first.U.shape == second.U.shape:
        V = second.U[:, [j for j in match if j is not None]]
        kl, kl_reversed = _divergence(first.U, V), _divergence(V, first.U)
        changes = np.abs(first.U - V).max(axis=1)
    partner = np.array([-1 if j is None else j for j in match], dtype=np.intp)
    labels = first.labels, second.labels
    return Comparison(
        first, second, ids, matched_by, match, kl, kl_reversed, changes, adjusted_rand_index(*labels),
        np.flatnonzero(partner[labels[0]] != labels[1]),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- arguments


def _given(given: Any, name: str, fuzzifier: float) -> ComparedPartition:
    """Return a partition that a user has given, checked."""
    if isinstance(given, (str, os.PathLike)):
        file = Path(given)
        beside = file.name == "memberships.npy" and (file.parent / "model.npz").is_file()
        return _of_file(read_partition_file(file.parent if beside else given), fuzzifier)
    given = getattr(given, "best", given)  # of a `Clustering`
    if isinstance(given, Partition):
        model, names = given.model, [str(object_id) for object_id in given.model.ids]
        return _of_file(PartitionFile(name, given.memberships, names, model), fuzzifier)
    return _of_file(PartitionFile(name, np.asarray(given)), fuzzifier)


def _of_file(file: PartitionFile, fuzzifier: float) -> ComparedPartition:
    where, values = file.where, file.values
    if values.ndim not in (1, 2) or not values.size:
        raise InputError(f"{where} has shape {values.shape}", remedy="give labels (n,), or memberships (n, clusters)")
    if values.ndim == 1:
        grouping = of_labels(where, values)
        _check_memory(grouping)
        U = np.eye(grouping.n_clusters)[grouping.labels]
        return ComparedPartition(where, U, grouping.clusters or (), file.ids, 1.0, None)
    if values.dtype.kind not in "fiub":
        raise InputError(f"{where} has memberships of type {values.dtype}", remedy="give numbers")
    U = np.ascontiguousarray(values, dtype=np.float64)
    wrong = ~(np.isfinite(U) & (U >= 0) & (U <= 1 + 1e-9))
    if wrong.any():
        k, i = (int(x) for x in np.argwhere(wrong)[0])
        count = int(wrong.sum())
        raise InputError(
            f"{where}: the membership of object {k} in cluster {i} is {U[k, i]:g} ({count} such)", remedy="give 0 to 1"
        )
    theta, eta, modes = float(fuzzifier), None, None
    if file.model is not None:
        theta = float(file.model.fuzzifier or 1.0)
        eta = None if file.model.eta is None else tuple(file.model.eta.tolist())
        modes = file.model.modes
    else:
        check_fields(MembershipOptions(fuzzifier))
    return ComparedPartition(where, U, tuple(str(i) for i in range(U.shape[1])), file.ids, theta, eta, modes)


def _check_memory(grouping: Grouping) -> None:
    """Raise if so many labels, such as an id for each object, do not fit into memory as memberships."""
    n, c = len(grouping.labels), grouping.n_clusters
    needed, limit = 48 * n * c, limits.memory_limit(None)
    if needed > limit:
        raise MemoryLimitError(
            f"{grouping.name} has {c:,} different labels of {count_text(n, 'object')}, which need {size_text(needed)},"
            f" and the limit is {size_text(limit)}",
            remedy="give labels of fewer clusters",
        )


def _refuse_repeated(partition: ComparedPartition) -> None:
    assert partition.ids is not None
    positions(partition.name, partition.ids, partition.ids)


def _taken(partition: ComparedPartition, at: Array) -> ComparedPartition:
    """Return the partition with its objects in another order."""
    ids = None if partition.ids is None else [partition.ids[k] for k in at]
    return replace(partition, U=partition.U[at], ids=ids)


# ----------------------------------------------------------------------------------------------------------- measures


def _matched(U: Float, V: Float) -> tuple[int | None, ...]:
    """Return for each cluster of U the cluster of V that is matched to it; None where V has too few."""
    most = max(U.shape[1], V.shape[1])
    before, now = (np.pad(memberships, ((0, 0), (0, most - memberships.shape[1]))) for memberships in (U, V))
    order = rules.matching_order(before, now)[: U.shape[1]].tolist()
    return tuple(j if j < V.shape[1] else None for j in order)


def _divergence(U: Float, V: Float) -> float:
    """Return sum u log(u / v). Where v is 0, memberships u below the rounding of 1 count as 0 too."""
    zero = V == 0
    if (U[zero] > np.finfo(np.float64).eps).any():
        return float("inf")
    both = ~zero & (U > 0)
    u = U[both]
    return float((u * (np.log(u) - np.log(V[both]))).sum())
