"""PERMANOVA (Anderson 2001): do groups of objects differ by more than chance? All permutations from few scans.

With D the squared dissimilarities of n objects in g groups of sizes n_k,

    T = sum_{i<j} D_ij / n                           all of the variation
    W = sum_k sum_{i<j in k} D_ij / n_k              the variation within groups
    F = ((T - W) / (g - 1)) / (W / (n - g))          pseudo-F; the Calinski-Harabasz index of the groups
    p = (1 + permutations with F at least as large) / (1 + permutations)

T, g and the sizes are the same for all permutations of the labels, so that F is at least as large where W is at most as
large. A permutation is a partition like any other: one scan sums D within the groups of all of them, which adds every
number once per permutation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.engine.label_products import Squares, within_consumer
from dasrel.engine.reduce import Plan
from dasrel.engine.relation import Relation, as_dissimilarity
from dasrel.engine.scan import brought_here, needed_memory, needed_on_worker, prepare_scan
from dasrel.errors import InputError, MemoryLimitError
from dasrel.judging.groupings import Grouping, given_groupings
from dasrel.kernels.within_sums import MOST_CLUSTERS
from dasrel.util import Float, html, limits, parallel
from dasrel.util.option_fields import check_number
from dasrel.util.text import count_text, size_text

ROUNDING = 8.0
"""Times eps / sqrt(n) of the stored numbers: sums W of equal partitions differ by less than this part of T."""


@dataclass(frozen=True, eq=False)
class Permanova:
    """The test of one grouping; returned by `permanova`."""

    name: str
    n_objects: int
    n_groups: int
    sizes: tuple[int, ...]
    """Objects of each group, in the sorted order of the labels."""
    pseudo_f: float
    r_squared: float
    """(T - W) / T: the share of the variation that is between groups."""
    p_value: float
    permutations: int
    permuted: Float = field(repr=False)
    """(permutations,) pseudo-F of each permutation."""
    random_state: int
    scans: int
    """Of all groupings that were tested together."""

    def __repr__(self) -> str:
        groups, objects = count_text(self.n_groups, "group"), count_text(self.n_objects, "object")
        return f"<Permanova of {groups} of {objects}: pseudo-F {self.pseudo_f:.6g}, p {self.p_value:.4g}>"

    def _repr_html_(self) -> str:
        facts = [
            ("objects", f"{self.n_objects:,}"),
            ("groups", f"{self.n_groups:,}"),
            ("pseudo-F", f"{self.pseudo_f:.6g}"),
            ("R squared", f"{self.r_squared:.4g}"),
            ("p-value", f"{self.p_value:.4g}, of {count_text(self.permutations, 'permutation')}"),
            ("scans", str(self.scans)),
        ]
        return html.card("PERMANOVA", facts)

    def report(self) -> dict[str, Any]:
        """Return the numbers without those of single permutations, for JSON."""
        names = ("pseudo_f", "r_squared", "p_value", "permutations", "random_state")
        return {name: getattr(self, name) for name in names}


def permanova(
    matrix: Any,
    labels: Any,
    *,
    permutations: int = 999,
    random_state: int = 0,
    kind: str | None = None,
    memory: int | str | None = None,
) -> Permanova:
    """Test whether groups of objects differ by more than random groups of the same sizes (PERMANOVA, one factor).

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, an array with its `kind`, or a relation.
    labels
        The group of each object: numbers or names; a series whose index has the ids may have them in any order.
    permutations
        Number of random permutations, at least 1. The smallest possible p-value is 1 / (permutations + 1).
    random_state
        Seed of the permutations, an integer of at least 0. The same seed gives the same permutations, however much
        memory and however many cores there are.
    memory
        As for every scan. Permutations that do not fit together are divided into several scans.

    Cost: one scan, unless memory divides the permutations; 4 n bytes for each permutation.
    """
    relation = as_dissimilarity(matrix, kind)
    groupings = given_groupings(labels, relation.matrix.ids, 1.0)
    if len(groupings) != 1:
        raise InputError(f"these are {count_text(len(groupings), 'partition')}", remedy="give the labels of one")
    return prepare_permanova(relation, groupings, permutations, random_state, memory=memory).run()[0]


def prepare_permanova(
    relation: Relation,
    groupings: Sequence[Grouping],
    permutations: int,
    random_state: int = 0,
    *,
    memory: int | str | None = None,
) -> PermanovaJob:
    """Check groupings that are tested together, and divide their permutations into scans. Cost: no scan."""
    check_number("permutations", permutations, whole=True, least=1)
    check_number("random_state", random_state, whole=True, least=0)
    n = relation.n_objects
    tested = []
    for grouping in groupings:
        labels, groups = grouping.packed_labels()
        if not 2 <= groups < n:
            what = "one group only" if groups < 2 else "as many groups as objects, and so no pair within a group"
            raise InputError(f"{grouping.name} has {what}", remedy="give at least two groups, and fewer than objects")
        if groups > MOST_CLUSTERS:
            raise InputError(f"{grouping.name} has {groups:,} groups", remedy=f"give at most {MOST_CLUSTERS:,}")
        tested.append((grouping.name, labels.astype(np.uint16)))
    step, needed = _largest_batch(relation, tested, permutations, memory)
    return PermanovaJob(relation, tested, int(permutations), int(random_state), memory, step, needed)


@dataclass(frozen=True, eq=False)
class PermanovaJob:
    """Groupings to be tested, the arguments checked."""

    relation: Relation
    groupings: list[tuple[str, NDArray[np.uint16]]]
    """Name, and labels from 0 to below the number of groups, all of which have objects."""
    permutations: int
    random_state: int
    memory: int | str | None
    step: int
    """Partitions of one scan, given ones and permuted ones."""
    needed: int
    """Bytes of a scan, at most."""

    @property
    def scans(self) -> int:
        """How often `run` reads the matrix."""
        return math.ceil(len(self.groupings) * (self.permutations + 1) / self.step)

    def run(self) -> list[Permanova]:
        """Return the test of each grouping. Cost: `scans`."""
        relation, each, n = self.relation, self.permutations + 1, self.relation.n_objects
        clusters = _most_groups(self.groupings)
        count = len(self.groupings) * each
        within, total = np.empty((count, clusters)), 0.0
        for at in range(0, count, self.step):
            batch = range(at, min(at + self.step, count))
            labels = np.empty((len(batch), n), dtype=np.uint16)
            for row, number in enumerate(batch):
                of, permutation = divmod(number, each)
                labels[row] = self.groupings[of][1]
                if permutation:
                    np.random.default_rng((self.random_state, permutation)).shuffle(labels[row])
            consumer = within_consumer(relation.matrix, _squares(relation), labels, clusters)
            (sums,) = prepare_scan(relation.matrix, [consumer], memory=self.memory).run()
            within[at : batch.stop], total = sums.within, sums.total
        return [
            self._described(name, labels, within[k * each : (k + 1) * each], total)
            for k, (name, labels) in enumerate(self.groupings)
        ]

    def _described(self, name: str, labels: NDArray[np.uint16], within: Float, total: float) -> Permanova:
        n, sizes = self.relation.n_objects, np.bincount(labels)
        g = len(sizes)
        T, W = total / (2 * n), (within[:, :g] / (2 * sizes)).sum(axis=1)
        above, below = (T - W) / (g - 1), W / (n - g)
        with np.errstate(divide="ignore", invalid="ignore"):  # infinite where groups are at one place
            F = above / below
        rounding = ROUNDING * float(np.finfo(self.relation.matrix.dtype).eps) / math.sqrt(n) * abs(T)
        larger = int((W[1:] <= W[0] + rounding).sum())
        return Permanova(
            name=name, n_objects=n, n_groups=g, sizes=tuple(sizes.tolist()), pseudo_f=float(F[0]),
            r_squared=float((T - W[0]) / T) if T else math.nan, p_value=(larger + 1) / (self.permutations + 1),
            permutations=self.permutations, permuted=F[1:], random_state=self.random_state, scans=self.scans,
        )  # fmt: skip


def _squares(relation: Relation) -> Squares:
    return Squares(relation.view.then("spread", relation.beta) if relation.beta else relation.view, relation.terms)


def _most_groups(groupings: Sequence[tuple[str, NDArray[np.uint16]]]) -> int:
    return max(int(labels.max()) + 1 for _, labels in groupings)


def _largest_batch(
    relation: Relation,
    groupings: Sequence[tuple[str, NDArray[np.uint16]]],
    permutations: int,
    memory: int | str | None,
) -> tuple[int, int]:
    """Return how many partitions fit into the memory of one scan, and the bytes that they take."""
    limit, source, clusters = limits.memory_limit(memory), relation.matrix, _most_groups(groupings)
    client = parallel.active_client()
    workers = {} if client is None else limits.worker_memory(client)
    plan, count = Plan(source.layout), len(groupings) * (permutations + 1)
    kept = 8 * count * (clusters + 4)

    def need(partitions: int) -> tuple[int, bool, int]:
        """Return the bytes in the caller with one task, whether workers have room, and the bytes of other threads."""
        made = [within_consumer(source, _squares(relation), np.empty((partitions, 0), np.uint16), clusters)]
        fixed, task = needed_memory(source, made)
        there, beside = needed_on_worker(source, made)
        room = all(not most or there * threads + beside <= most for most, threads in workers.values())
        others = 0 if workers else (limits.thread_count() - 1) * task
        return kept + fixed + (brought_here(plan, made) if workers else task), room, others

    step = count
    while step > 1 and not (need(step)[1] and need(step)[0] <= limit):
        step = -(-step // 2)
    bytes_needed, _, others = need(step)
    if bytes_needed > limit:
        raise MemoryLimitError(
            f"permutations of the labels of {count_text(relation.n_objects, 'object')} need {size_text(bytes_needed)}"
            f" and the limit is {size_text(limit)}",
            remedy="raise {memory}, or use smaller tiles",
        )
    return step, min(bytes_needed + others, limit)
