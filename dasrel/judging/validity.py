"""Validity indices of partitions: how well clusters fit the matrix, for any number of partitions in one scan.

With d the dissimilarities, D = d^2, Z the one-hot labels of a partition and V the weights of its centres,
v_ik = u_ik^m / sum_k u_ik^m, the products d Z, D Z and D V give

    s_k              (b - a) / max(a, b): a the mean d of object k to its own cluster, b to the nearest other cluster
    ||x_k - v_i||^2  = (D v_i)_k - v_i'D v_i / 2
    ||v_i - v_j||^2  = v_i'D v_j - v_i'D v_i / 2 - v_j'D v_j / 2
    J                = sum_ik u_ik^m ||x_k - v_i||^2,  v_0 the mean of all objects

    silhouette               mean of s_k; 0 for the object of a cluster of one (Rousseeuw 1987)
    fuzzy_silhouette         mean of s_k with the weights u_first - u_second (Campello and Hruschka 2006)
    xie_beni                 J / (n min ||v_i - v_j||^2) (Xie and Beni 1991)
    kwon                     (J + sum_i ||v_i - v_0||^2 / c) / min ||v_i - v_j||^2 (Kwon 1998)
    pbm                      (E_1 max ||v_i - v_j|| / (c E_c))^2 with E_c = sum_ik u_ik^m ||x_k - v_i|| and
                             E_1 = sum_k ||x_k - v_0|| (Pakhira, Bandyopadhyay and Maulik 2004)
    davies_bouldin           mean of max_j (S_i + S_j) / ||v_i - v_j||, S_i = sum_k v_ik ||x_k - v_i||
    calinski_harabasz        ((T - W) / (c - 1)) / (W / (n - c)), W = sum_k sum_{i,j in k} D_ij / (2 n_k) and
                             T = sum D / (2n); also the pseudo-F of PERMANOVA
    partition_coefficient    sum u^2 / n; modified: 1 - c (1 - sum u^2 / n) / (c - 1)
    partition_entropy        - sum u log u / n
    within_between           mean d of pairs within clusters / mean d of pairs between clusters
    pearson_gamma            correlation over pairs of d with 0 for the same and 1 for different clusters
    dunn                     smallest d between clusters / largest d within a cluster

Silhouettes, Calinski-Harabasz, within_between, pearson_gamma and dunn are of the labels, the others of the
memberships. On Euclidean distances all are those of the points. Where a relation is not Euclidean, a negative
||x - v||^2 counts as it is in J, and as 0 where its root is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dasrel.engine.label_products import LabelSums, Squares, diameter_consumer, label_consumer
from dasrel.engine.reduce import Consumer, Plan
from dasrel.engine.relation import Relation, as_dissimilarity, product_consumer, product_shape
from dasrel.engine.sampled_pairs import add_terms, pairs_consumer
from dasrel.engine.scan import brought_here, needed_memory, needed_on_worker, prepare_scan
from dasrel.errors import InputError, MemoryLimitError
from dasrel.judging.groupings import Grouping, MembershipOptions, given_groupings, silhouettes
from dasrel.judging.medoids import Medoids
from dasrel.kernels.products import View
from dasrel.names import INDICES
from dasrel.partition import rules
from dasrel.store.layout import TileSource
from dasrel.util import Float, limits, parallel
from dasrel.util.text import count_text, did_you_mean, shown, size_text

if TYPE_CHECKING:
    from dasrel.kernels.forest import Forest  # scipy.sparse, needed for one index only

OF_MEMBERSHIPS = ("partition_coefficient", "modified_partition_coefficient", "partition_entropy")
"""Indices that need no matrix."""
OF_DISTANCES = ("silhouette", "fuzzy_silhouette", "within_between", "dunn")
"""Indices that need d only."""
DEFAULT = tuple(name for name in INDICES if name != "dunn")


class Pairs(NamedTuple):
    """Some objects and the dissimilarities between them."""

    positions: NDArray[np.intp]
    """In the order of the matrix."""
    D: Float
    """Squared dissimilarities without spread, (m, m)."""


@dataclass(frozen=True, eq=False)
class Validity:
    """Validity indices of partitions, one row for each; returned by `validity`."""

    names: tuple[str, ...]
    """Of the partitions."""
    n_clusters: tuple[int, ...]
    """Clusters of each partition that have objects."""
    values: dict[str, Float]
    """Each index with its values, one per partition; NaN where it is not defined, as with one cluster only."""
    cluster_silhouettes: tuple[Float, ...]
    """(c,) mean silhouette of each cluster, NaN for one without objects."""
    silhouettes: tuple[Float, ...]
    """(n,) silhouette of each object; empty without `samples`."""
    medoids: tuple[Medoids, ...]
    """Of each partition; empty where no index was computed that needs dissimilarities."""
    scans: int
    pairs: Pairs | None = None
    """Some objects and what is between them, if they were asked for: of all partitions the same."""

    def __repr__(self) -> str:
        return f"<Validity of {count_text(len(self.names), 'partition')}: {', '.join(self.values)}>"

    def __getitem__(self, index: str) -> Float:
        if index not in self.values:
            raise InputError(f"no index {shown(index)!r} here", remedy=did_you_mean(index, self.values))
        return self.values[index]

    def best(self, index: str = "fuzzy_silhouette") -> int:
        """Return the position of the partition that is best by an index, the first one on a tie."""
        values = self[index] if INDICES[index] else -self[index]
        if np.isnan(values).all():
            raise InputError(f"{index} is not defined for any of the {count_text(len(values), 'partition')}")
        return int(np.nanargmax(values))

    def take(self, which: Sequence[int]) -> Validity:
        """Return the rows at these positions, as if only those partitions had been judged."""
        return Validity(
            tuple(self.names[k] for k in which),
            tuple(self.n_clusters[k] for k in which),
            {index: of[list(which)] for index, of in self.values.items()},
            tuple(self.cluster_silhouettes[k] for k in which),
            tuple(self.silhouettes[k] for k in which) if self.silhouettes else (),
            tuple(self.medoids[k] for k in which) if self.medoids else (),
            self.scans,
            self.pairs,
        )

    def table(self) -> list[dict[str, Any]]:
        """Return one row per partition, plain values; None where an index is not defined."""
        return [
            {
                "partition": name,
                "n_clusters": self.n_clusters[k],
                **{index: None if math.isnan(of[k]) else float(of[k]) for index, of in self.values.items()},
            }
            for k, name in enumerate(self.names)
        ]


def joined(parts: Sequence[Validity]) -> Validity:
    """Return the rows of several tables with the same indices as one."""
    return Validity(
        tuple(name for part in parts for name in part.names),
        tuple(count for part in parts for count in part.n_clusters),
        {index: np.concatenate([part.values[index] for part in parts]) for index in parts[0].values},
        tuple(of for part in parts for of in part.cluster_silhouettes),
        tuple(of for part in parts for of in part.silhouettes),
        tuple(of for part in parts for of in part.medoids),
        max(part.scans for part in parts),
        next((part.pairs for part in parts if part.pairs is not None), None),
    )


def validity(
    matrix: Any,
    partitions: Any,
    *,
    kind: str | None = None,
    fuzzifier: float = MembershipOptions.fuzzifier,
    indices: Sequence[str] | None = None,
    samples: bool = True,
    memory: int | str | None = None,
) -> Validity:
    """Compute validity indices of one partition or of many, of dasrel or not; see the module for the equations.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, an array with its `kind`, or a relation.
    partitions
        Labels of the n objects (numbers or names), memberships (n, c), a `Partition`, a `Clustering`, or a list or a
        dictionary of these. A series or a data frame whose index has the ids may have them in any order.
    fuzzifier
        Exponent of memberships that are given as an array; a `Partition` knows its own, and for labels it is 1.
    indices
        Names of indices (`dasrel.names.INDICES`); by default all except dunn.
    samples
        Whether the silhouette of every object is returned.
    memory
        As for every scan. Partitions that do not fit together are divided into several scans.

    Cost: one scan, unless memory divides the partitions; for all clusters c of all partitions 16 n c bytes for
    silhouettes, 32 n c for all indices of labels, 60 n c for memberships; 8 n bytes for each partition in the result.
    """
    relation = as_dissimilarity(matrix, kind)
    groupings = given_groupings(partitions, relation.matrix.ids, fuzzifier)
    return compute_indices(relation, groupings, indices=indices, samples=samples, memory=memory)


def silhouette_samples(matrix: Any, labels: Any, *, kind: str | None = None, memory: int | str | None = None) -> Float:
    """Return the silhouette of every object, n float64, for labels or memberships of the n objects.

    As `sklearn.metrics.silhouette_samples` of precomputed distances, for a matrix of any kind and size.

    Cost: one scan; about 16 n c bytes.
    """
    judged = validity(matrix, labels, kind=kind, indices=["silhouette"], memory=memory)
    if len(judged.silhouettes) != 1:
        raise InputError(f"these are {count_text(len(judged.silhouettes), 'partition')}", remedy="give one")
    return judged.silhouettes[0]


# ------------------------------------------------------------------------------------------------------------ the scan


def compute_indices(
    relation: Relation,
    partitions: Sequence[Grouping],
    *,
    indices: Sequence[str] | None = None,
    samples: bool = True,
    positions: NDArray[np.intp] | None = None,
    memory: int | str | None = None,
) -> Validity:
    """Compute the indices of partitions that are checked; see `validity`. Those of a single cluster have NaN.

    The first scan also brings the dissimilarities between the objects at `positions`, if these are given.
    """
    wanted = wanted_indices(relation, indices)
    batches, _ = division(relation, partitions, wanted, samples, memory, positions)
    results: list[_Judged] = []
    scans, pairs = 0, None
    for k, batch in enumerate(batches):
        judged, scanned, brought = _judge_batch(relation, batch, wanted, samples, memory, None if k else positions)
        results += judged
        scans += scanned
        pairs = brought or pairs
    values = {name: np.array([judged.values[name] for judged in results]) for name in wanted}
    return Validity(
        tuple(grouping.name for grouping in partitions),
        tuple(grouping.packed_labels()[1] for grouping in partitions),
        values,
        tuple(judged.cluster_silhouettes for judged in results),
        tuple(judged.silhouettes for judged in results if judged.silhouettes is not None),
        tuple(judged.medoids for judged in results if judged.medoids is not None),
        scans,
        pairs,
    )


def wanted_indices(relation: Relation, indices: Sequence[str] | None) -> list[str]:
    """Return the names of the indices to be computed, checked."""
    wanted = list(DEFAULT if indices is None else dict.fromkeys(indices))
    for name in wanted:
        if name not in INDICES:
            raise InputError(f"no validity index {shown(name)!r}", remedy=did_you_mean(name, INDICES))
    if "dunn" in wanted and relation.terms:
        raise InputError("the index dunn needs the spanning tree, and a relation with an added ultrametric has none")
    return wanted


@dataclass(frozen=True, eq=False)
class _Judged:
    values: dict[str, float]
    cluster_silhouettes: Float
    silhouettes: Float | None
    medoids: Medoids | None


def _needs_squares(wanted: Sequence[str]) -> bool:
    return any(name not in OF_MEMBERSHIPS + OF_DISTANCES for name in wanted)


def _needs_centres(wanted: Sequence[str]) -> bool:
    return any(name in ("xie_beni", "kwon", "pbm", "davies_bouldin") for name in wanted)


def division(
    relation: Relation,
    partitions: Sequence[Grouping],
    wanted: Sequence[str],
    samples: bool,
    memory: int | str | None,
    positions: NDArray[np.intp] | None = None,
) -> tuple[list[list[Grouping]], int]:
    """Divide partitions into batches, in order, that fit into memory for one scan; return the bytes they take, too."""
    limit, n, source = limits.memory_limit(memory), relation.n_objects, relation.matrix
    client = parallel.active_client()
    workers = {} if client is None else limits.worker_memory(client)
    kept = 8 * n * len(partitions) * samples
    widest = max(grouping.n_clusters for grouping in partitions)
    working = 4 * 8 * n * widest

    def need(count: int, clusters: int, columns: int) -> tuple[int, bool, int]:
        """Return the bytes in the caller with one task, whether workers have room, and the bytes of other threads."""
        consumers = _consumers(relation, np.empty((count, 0), np.int32), [0, clusters], columns, wanted, positions)
        fixed, task = needed_memory(source, consumers)
        there, beside = needed_on_worker(source, consumers)
        room = all(not most or there * threads + beside <= most for most, threads in workers.values())
        others = 0 if workers else (limits.thread_count() - 1) * task
        task = brought_here(Plan(source.layout), consumers) if workers else task
        return fixed + task + kept + working + 8 * n * columns, room, others

    batches: list[list[Grouping]] = [[]]
    clusters = columns = most = 0
    for grouping in partitions:
        more = grouping.packed_labels()[1]
        fuzzy = grouping.n_clusters if grouping.U is not None and _needs_centres(wanted) else 0
        bytes_needed, room, others = need(len(batches[-1]) + 1, clusters + more, columns + fuzzy)
        if batches[-1] and not (room and bytes_needed <= limit):
            batches.append([])
            clusters = columns = 0
            bytes_needed, _, others = need(1, more, fuzzy)
        if not batches[-1] and bytes_needed > limit:
            raise MemoryLimitError(
                f"validity indices of a partition into {count_text(more, 'cluster')} of {count_text(n, 'object')} need"
                f" {size_text(bytes_needed)} and the limit is {size_text(limit)}",
                remedy="raise {memory}, ask for fewer indices, or use smaller tiles",
            )
        batches[-1].append(grouping)
        clusters, columns, most = clusters + more, columns + fuzzy, max(most, min(bytes_needed + others, limit))
    return batches, most


def _consumers(
    relation: Relation,
    labels: NDArray[np.int32],
    first: Sequence[int],
    columns: int,
    wanted: Sequence[str],
    positions: NDArray[np.intp] | None,
) -> list[Consumer]:
    """Return consumers whose memory is that of the scan; the last has no columns yet."""
    source: TileSource = relation.matrix
    squares = Squares(relation.view.then("spread", relation.beta) if relation.beta else relation.view, relation.terms)
    consumers = [label_consumer(source, squares, labels, first, squared=_needs_squares(wanted))]
    if "dunn" in wanted:
        from dasrel.geometry.tree import forest_consumer  # half of the geometry room, needed for this index only

        consumers += [diameter_consumer(source, squares, labels, first), forest_consumer(source)]
    if positions is not None:
        consumers.append(pairs_consumer(relation, positions))
    if columns:
        consumers.append(product_shape(source, [(relation.view, columns)]))
    return consumers


def _judge_batch(
    relation: Relation,
    batch: Sequence[Grouping],
    wanted: Sequence[str],
    samples: bool,
    memory: int | str | None,
    positions: NDArray[np.intp] | None,
) -> tuple[list[_Judged], int, Pairs | None]:
    """Judge partitions that fit into memory together; return its scans, and what is between positions, too."""
    packed = [grouping.packed_labels() for grouping in batch]
    first = np.concatenate([[0], np.cumsum([clusters for _, clusters in packed])]).tolist()
    centred = [_needs_centres(wanted) and grouping.U is not None for grouping in batch]
    weights = [
        rules.weights(np.asarray(grouping.U, dtype=np.float64)[None], grouping.theta) if fuzzy else None
        for grouping, fuzzy in zip(batch, centred, strict=True)
    ]
    sums: LabelSums | None = None
    product: Float | None = None
    pairs: Pairs | None = None
    results: list[Any] = []
    scans = 0
    if any(name not in OF_MEMBERSHIPS for name in wanted):
        labels = np.stack([mine + start for (mine, _), start in zip(packed, first[:-1], strict=True)]).astype(np.int32)
        consumers = _consumers(relation, labels, first, 0, wanted, positions)
        source = relation.matrix
        if any(centred):
            dtype = np.float64 if relation.terms else source.layout.dtype
            V = np.concatenate([W.V[0] for W in weights if W is not None], dtype=dtype, casting="same_kind")
            consumers.append(product_consumer(source, [(relation.view, V)]))
        results = prepare_scan(source, consumers, memory=memory).run()
        sums, scans = results[0], 1
        if positions is not None:
            pairs = Pairs(positions, results[3 if "dunn" in wanted else 1])
            add_terms(pairs.D, relation, positions)
        if any(centred):
            (product,) = results[-1]
            relation.complete_product(product, V)
            del V
    judged, at = [], 0
    for k, (grouping, W) in enumerate(zip(batch, weights, strict=True)):
        values = _of_memberships(grouping)
        of_objects, medoids = np.full(grouping.labels.size, np.nan), None
        if sums is not None:
            mine = _LabelProducts.of(*packed[k], sums, slice(first[k], first[k + 1]))
            medoids = Medoids.of_sums(grouping.labels, grouping.n_clusters, mine.own(mine.plain))
        if sums is not None and packed[k][1] > 1:
            values |= _of_pairs(mine)
            if "dunn" in wanted:
                largest = float(results[1][first[k] : first[k + 1]].max())
                values["dunn"] = _ratio(_separation(relation, results[2], packed[k][0]), math.sqrt(largest))
            if _needs_centres(wanted) and W is None:
                values |= _of_centres(mine.centres(), mine)
            elif _needs_centres(wanted) and W is not None and product is not None:
                centres = _Centres.of(W, product[at : at + grouping.n_clusters], mine.to_mean())
                values |= _of_centres(centres, mine)
            of_objects = silhouettes(mine.labels, mine.sizes, mine.plain)  # overwrites d Z
            values |= _of_silhouettes(grouping, of_objects)
        at += grouping.n_clusters if W is not None else 0
        values = {name: values.get(name, math.nan) for name in wanted}
        judged.append(_Judged(values, _cluster_means(grouping, of_objects), of_objects if samples else None,
                              medoids))  # fmt: skip
    return judged, scans, pairs


# ---------------------------------------------------------------------------------------------------------- equations


@dataclass(frozen=True, eq=False)
class _LabelProducts:
    """The products of one partition with d and D, and what follows from them for its clusters, all with objects."""

    labels: NDArray[np.int32]
    """(n,)."""
    sizes: Float
    """(c,)."""
    plain: Float
    """d Z, (c, n)."""
    squared: Float | None
    """D Z, (c, n)."""
    below: float
    """Sum of the negative values of D."""

    @staticmethod
    def of(labels: NDArray[np.int32], clusters: int, sums: LabelSums, span: slice) -> _LabelProducts:
        sizes = np.bincount(labels, minlength=clusters).astype(np.float64)
        squared = None if sums.squared is None else sums.squared[span]
        return _LabelProducts(labels, sizes, sums.plain[span], squared, sums.below)

    def own(self, sums: Float) -> Float:
        """Return the value of each object in its own cluster, (n,)."""
        chosen: Float = sums[self.labels, np.arange(self.labels.size)]
        return chosen

    def centres(self) -> _Centres:
        """Return what is known of the clusters' means; faster than from their weights."""
        assert self.squared is not None
        c, labels, sizes = len(self.sizes), self.labels, self.sizes
        Y = self.squared / sizes[:, None]
        cross = np.stack([np.bincount(labels, row, minlength=c) for row in Y]) / sizes
        own = self.own(Y) - 0.5 * np.diag(cross)[labels]
        roots = np.bincount(labels, np.sqrt(np.maximum(own, 0)), minlength=c) / sizes
        return _Centres(sizes, cross, float(own.sum()), roots, np.bincount(labels, self.to_mean(), minlength=c) / sizes)

    def to_mean(self) -> Float:
        """Return D v_0, (n,), v_0 the mean of all objects."""
        assert self.squared is not None
        product: Float = self.squared.sum(axis=0) / self.labels.size
        return product


class _Centres(NamedTuple):
    """Centres V of clusters that have a mass."""

    mass: Float
    """sum_k u_ik^m, (c,)."""
    cross: Float
    """v_i'D v_j, (c, c)."""
    J: float
    spreads: Float
    """sum_k v_ik ||x_k - v_i||, (c,)."""
    to_mean: Float
    """v_i'D v_0, (c,)."""

    @staticmethod
    def of(W: rules.Weights, Y: Float, to_mean: Float) -> _Centres:
        """Return them for weights of one partition, given Y = D V (c, n), which is overwritten, and D v_0 (n,)."""
        real = W.mass[0] > 0
        V, mass = (W.V[0], W.mass[0]) if real.all() else (W.V[0][real], W.mass[0][real])
        d = Y if real.all() else Y[real]
        with parallel.single_threaded_blas():
            cross = V @ d.T
            toward = V @ to_mean
        d -= 0.5 * np.diag(cross)[:, None]
        J = float((mass * np.einsum("ij,ij->i", V, d)).sum())
        np.sqrt(np.maximum(d, 0, out=d), out=d)
        return _Centres(mass, cross, J, np.einsum("ij,ij->i", V, d), toward)


def _of_memberships(grouping: Grouping) -> dict[str, float]:
    c, n = grouping.n_clusters, grouping.labels.size
    coefficient, entropy = 1.0, 0.0
    if grouping.U is not None:
        coefficient = float((grouping.U * grouping.U).sum() / n)
        entropy = abs(float(rules.entropy(grouping.U[None])[0] / n))  # not -0
    modified = math.nan if c < 2 else 1 - c / (c - 1) * (1 - coefficient)
    return dict(zip(OF_MEMBERSHIPS, (coefficient, modified, entropy), strict=True))


def _of_silhouettes(grouping: Grouping, silhouettes: Float) -> dict[str, float]:
    mean = float(silhouettes.mean())
    if grouping.U is None:
        return {"silhouette": mean, "fuzzy_silhouette": mean}
    second, largest = np.partition(grouping.U, -2, axis=0)[-2:]
    certain = largest - second
    total = float(certain.sum())
    fuzzy = float((certain * silhouettes).sum() / total) if total > 0 else math.nan
    return {"silhouette": mean, "fuzzy_silhouette": fuzzy}


def _cluster_means(grouping: Grouping, silhouettes: Float) -> Float:
    """Return the mean silhouette of each cluster, NaN for one without objects."""
    means: Float = np.full(grouping.n_clusters, np.nan)
    sums, sizes = np.bincount(grouping.labels, silhouettes, minlength=grouping.n_clusters), grouping.sizes
    return np.divide(sums, sizes, out=means, where=sizes > 0)


def _of_pairs(mine: _LabelProducts) -> dict[str, float]:
    """Return the indices that compare pairs within and between clusters."""
    n, c = mine.labels.size, len(mine.sizes)
    pairs, pairs_within = n * (n - 1.0), float((mine.sizes * (mine.sizes - 1)).sum())
    total, within = float(mine.plain.sum()), float(mine.own(mine.plain).sum())
    pairs_between, between = pairs - pairs_within, total - within
    mean_within = within / pairs_within if pairs_within else math.nan
    values = {"within_between": _ratio(mean_within, between / pairs_between)}
    if mine.squared is None:
        return values
    squares = float(mine.squared.sum())
    W = float((mine.own(mine.squared) / (2 * mine.sizes[mine.labels])).sum())
    T = squares / (2 * n)
    values["calinski_harabasz"] = _ratio((T - W) / (c - 1), W / (n - c)) if n > c else math.nan
    variance = (squares - mine.below) / pairs - (total / pairs) ** 2
    covariance = (between - total * pairs_between / pairs) / pairs
    marks = pairs_between / pairs * (pairs_within / pairs)
    values["pearson_gamma"] = covariance / math.sqrt(variance * marks) if variance > 0 and marks > 0 else math.nan
    return values


def _separation(relation: Relation, forest: Forest, labels: NDArray[np.int32]) -> float:
    """Return the smallest d between two clusters: that of an edge of the minimum spanning tree.

    Views keep the order of dissimilarities, so that the tree of the stored values serves.
    """
    crossing = labels[forest.i] != labels[forest.j]
    least = np.full((1, 1), forest.weights[crossing].min(), dtype=np.float64)
    kind = "distance" if relation.matrix.kind == "distance" else "squared-distance"
    seen = View(kind, relation.view.steps).apply(least, np.empty((1, 1)), row_self=None, column_self=None)
    return math.sqrt(max(float(seen[0, 0]) + relation.beta, 0.0))


def _of_centres(centres: _Centres, mine: _LabelProducts) -> dict[str, float]:
    """Return the indices that compare centres."""
    c, n = len(centres.mass), mine.labels.size
    if c < 2:
        return {}
    half = 0.5 * np.diag(centres.cross)
    apart = 0.5 * (centres.cross + centres.cross.T) - half[:, None] - half[None, :]
    others = ~np.eye(c, dtype=bool)
    least, most = float(apart[others].min()), float(apart[others].max())
    to_mean = mine.to_mean()
    half_of_mean = 0.5 * float(to_mean.mean())
    E_1 = float(np.sqrt(np.maximum(to_mean - half_of_mean, 0)).sum())
    E_c = float((centres.mass * centres.spreads).sum())
    around = float((centres.to_mean - half - half_of_mean).sum())
    ratio = _ratio(E_1 * math.sqrt(max(most, 0)), c * E_c)
    S = centres.spreads
    worst = [max(_ratio(S[i] + S[j], math.sqrt(max(apart[i, j], 0))) for j in range(c) if j != i) for i in range(c)]
    return {
        "xie_beni": _ratio(centres.J, n * max(least, 0)),
        "kwon": _ratio(centres.J + around / c, max(least, 0)),
        "pbm": ratio * ratio,  # ** raises where the square is infinite
        "davies_bouldin": float(np.mean(worst)),
    }


def _ratio(above: float, below: float) -> float:
    """Return above / below: infinite over 0, NaN for 0 / 0."""
    if below == 0:
        return math.nan if above == 0 or math.isnan(above) else math.copysign(math.inf, above)
    return float(above / below)
