"""How sure clusters are: whether chance makes such ones, whether they are found again, what average linkage says.

All from the dissimilarities between some objects in memory:

- **Chance.** The objects' first principal coordinates are divided by k-means, and the mean of 1 - |x - v_1| / |x - v_2|
  over the objects, v_1 and v_2 the nearest centres, is compared with that of points without groups, treated alike: from
  one normal distribution, and from a uniform one in a box, both with the same spread along each axis. Uniform points
  look more like clusters than normal ones; the larger of the two p values counts. It is the share of draws at least as
  good as the data (the data included), as in the tests of Tibshirani, Walther and Hastie (2001, the gap statistic) and
  Liu et al. (2008, SigClust). The draws of one distribution end where `EXCEEDED` of them are as good as the data
  (Besag and Clifford 1991).
- **Agreement.** Two halves of the objects are divided independently, each by k-means on its own principal coordinates;
  all objects are assigned to the centres of either half by their dissimilarities, and the two partitions compared by
  the adjusted Rand index: the mean of `SPLITS` divisions into halves.
- **Average linkage**, cut into as many clusters of at least `SMALL` of the objects; smaller ones are left aside. It
  disagrees where its clusters are others, and are found again in halves of the objects: c-means divides large groups
  that lie beside small ones.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.judging.groupings import adjusted_rand_index, silhouettes
from dasrel.util import Float, parallel

Labels = NDArray[np.intp]
OBJECTS = 1_000
"""Objects of the sample, at most."""
NULL_OBJECTS = 500
"""Of them, those that are compared with draws."""
DRAWS = 99
"""Draws of each distribution."""
EXCEEDED = 5
"""Draws as good as the data after which there is no doubt."""
AXES = 10
"""Principal coordinates, at most."""
STARTS = 3
"""Starts of each k-means."""
ITERATIONS, NULL_ITERATIONS = 20, 10
"""Iterations of each k-means at most; those of data and draws are equally many."""
SPLITS = 3
SMALL = 0.02
"""Share of the objects below which a cluster of average linkage is left aside."""
MORE_CLUSTERS = 30
"""Clusters of average linkage that may be left aside, at most."""
OTHER, AGAIN = 0.6, 0.9
"""Average linkage disagrees if the adjusted Rand index with it is below the first, and that between halves above the
second."""
PER_CLUSTER = 8
"""Objects for each cluster below which nothing is said."""


@dataclass(frozen=True)
class Linked:
    """What average linkage says of the same objects."""

    adjusted_rand_index: float
    """With the partition that is judged."""
    silhouette: float
    """Mean silhouette of its clusters; those that are left aside are in none."""
    silhouette_here: float
    """Mean silhouette of the partition that is judged, of the same objects."""
    cut: int
    """Clusters of the cut, those that are left aside included."""
    sizes: tuple[int, ...]
    """Objects of its clusters, the largest first."""
    agreement: float | None
    """Adjusted Rand index between halves; None where its clusters are not others."""
    disagrees: bool


@dataclass(frozen=True)
class Structure:
    """How sure it is that there are such clusters."""

    objects: int
    """In the sample."""
    n_clusters: int
    p_value: float
    draws: int
    """Data sets without groups that were drawn."""
    quality: float
    """Mean of 1 - |x - v_1| / |x - v_2| of the data; 1 for clusters that are points."""
    expected: float
    """Its mean over draws of the distribution that comes nearer to the data."""
    agreement: float
    """Adjusted Rand index between partitions found in halves."""
    linked: Linked | None
    """None where average linkage has not so many clusters."""

    def report(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        values = asdict(self)
        if self.linked is not None:
            values["linked"]["sizes"] = list(self.linked.sizes)
        return values


def sampled_positions(n_objects: int, random_state: int) -> Labels:
    """Return the positions of the objects that partitions are judged by, in order: at most 1,000, drawn at random."""
    size = min(n_objects, OBJECTS)
    rng = np.random.default_rng(np.random.SeedSequence((random_state, size, 1)))
    return np.sort(rng.choice(n_objects, size, replace=False)).astype(np.intp)


def judge_structure(D: Float, labels: Labels, n_clusters: int, *, random_state: int = 0) -> Structure | None:
    """Return how sure clusters are, given squared dissimilarities (m, m) of some objects, and labels of those.

    None where there are fewer than two clusters, or fewer than eight objects for each.

    Cost: no scan; some 0.5 s for 1,000 objects and 10 clusters, independent of the size of the matrix.
    """
    import scipy.linalg  # noqa: F401 - it has its own BLAS, which is limited to one thread only if it is loaded before

    m = len(D)
    if n_clusters < 2 or m < PER_CLUSTER * n_clusters or not float(D.max()) > 0:
        return None
    rng = np.random.default_rng(np.random.SeedSequence((random_state, m, 2)))
    with parallel.single_threaded_blas():  # the same bits on any machine with this library
        few = np.sort(rng.permutation(m)[: max(NULL_OBJECTS, PER_CLUSTER * n_clusters)])
        p_value, draws, quality, expected = _chance(_coordinates(D[np.ix_(few, few)], n_clusters), n_clusters, rng)
        agreement = _agreement(D, n_clusters, rng)
        linked = _linked(np.sqrt(np.maximum(D, 0)), labels, n_clusters, rng)
    return Structure(m, n_clusters, p_value, draws, quality, expected, agreement, linked)


# ---------------------------------------------------------------------------------------------------------- chance


def _coordinates(D: Float, n_clusters: int) -> Float:
    """Return principal coordinates (m, q), those without spread left out."""
    from scipy.linalg import eigh

    m, q = len(D), min(max(2, n_clusters), AXES, len(D))
    mean = D.mean(axis=0)
    gram = -0.5 * (D - mean - mean[:, None] + mean.mean())
    values, vectors = eigh(gram, subset_by_index=[m - q, m - 1])
    kept = values > 1e-9 * max(float(values.max()), 0.0)
    coordinates: Float = np.ascontiguousarray(vectors[:, kept] * np.sqrt(values[kept]))
    return coordinates


def _chance(X: Float, c: int, rng: np.random.Generator) -> tuple[float, int, float, float]:
    """Return the p value, the draws it took, the quality of the data, and that expected without groups."""
    spread = np.sqrt((X * X).sum(axis=0))
    quality = _quality(X, c, rng)
    p_value, total, expected = 0.0, 0, -np.inf
    for uniform in (True, False):
        reached, values = 1, []
        for _ in range(DRAWS):
            Y = rng.random(X.shape) if uniform else rng.standard_normal(X.shape)
            Y -= Y.mean(axis=0)
            Y = Y / np.sqrt((Y * Y).sum(axis=0)) if uniform else np.linalg.qr(Y)[0]
            values.append(_quality(Y * spread, c, rng))
            reached += values[-1] >= quality
            if reached > EXCEEDED:
                break
        total += len(values)
        p = reached / (len(values) + 1) if reached <= EXCEEDED else (reached - 1) / len(values)
        p_value, expected = max(p_value, p), max(expected, float(np.mean(values)))
        if reached > EXCEEDED:
            break
    return p_value, total, quality, expected


def _quality(X: Float, c: int, rng: np.random.Generator) -> float:
    """Return the mean of 1 - |x - v_1| / |x - v_2| over points divided by k-means."""
    distances = _squared(X, _kmeans(X, c, rng, iterations=NULL_ITERATIONS))
    first, second = np.partition(distances, 1, axis=0)[:2]
    ratio = np.divide(first, second, out=np.zeros_like(first), where=second > 0)
    return 1.0 - float(np.sqrt(ratio).mean())


def _squared(X: Float, centres: Float) -> Float:
    """Return squared distances to centres, (c, m)."""
    products = (X * X).sum(axis=1) - 2 * centres @ X.T + (centres * centres).sum(axis=1)[:, None]
    distances: Float = np.maximum(products, 0)
    return distances


def _kmeans(X: Float, c: int, rng: np.random.Generator, *, iterations: int = ITERATIONS) -> Float:
    """Return the centres (c, q) of the best of a few runs of k-means from k-means++ starts, all runs together."""
    m = len(X)
    squares = (X * X).sum(axis=1)
    centres = np.empty((STARTS, c, X.shape[1]))
    nearest = np.full((STARTS, m), np.inf)
    for k in range(c):
        if k == 0:
            chosen = rng.integers(m, size=STARTS)
        else:
            sums = np.cumsum(nearest, axis=1)
            targets = rng.random(STARTS) * sums[:, -1]
            chosen = np.minimum((sums <= targets[:, None]).sum(axis=1), m - 1)
        new = X[chosen]
        centres[:, k] = new
        distances = squares - 2 * new @ X.T + (new * new).sum(axis=1)[:, None]
        np.minimum(nearest, np.maximum(distances, 0), out=nearest)
    before: Labels | None = None
    for _ in range(iterations):
        flat = centres.reshape(STARTS * c, -1)
        distances = ((flat * flat).sum(axis=1)[:, None] - 2 * flat @ X.T).reshape(STARTS, c, m)
        labels = distances.argmin(axis=1)
        if before is not None and np.array_equal(labels, before):
            break
        before = labels
        members = (labels[:, None, :] == np.arange(c)[:, None]).astype(np.float64)
        sizes = members.sum(axis=2)[:, :, None]
        sums = (members.reshape(STARTS * c, m) @ X).reshape(centres.shape)
        centres = np.where(sizes > 0, sums / np.maximum(sizes, 1), centres)
    best = int(distances.min(axis=1).sum(axis=1).argmin())
    chosen_centres: Float = centres[best]
    return chosen_centres


# ------------------------------------------------------------------------------------------------------- agreement


def _halves(m: int, rng: np.random.Generator) -> tuple[Labels, Labels]:
    order = rng.permutation(m)
    return np.sort(order[: m // 2]), np.sort(order[m // 2 :])


def _agreement(D: Float, c: int, rng: np.random.Generator) -> float:
    """Return the mean adjusted Rand index of partitions of all objects that were found in either half."""

    def extended(half: Labels) -> Labels:
        X = _coordinates(D[np.ix_(half, half)], c)
        own = _squared(X, _kmeans(X, c, rng)).argmin(axis=0)
        return _nearest_means(D, half, own)

    values = []
    for _ in range(SPLITS):
        first, second = _halves(len(D), rng)
        values.append(adjusted_rand_index(extended(first), extended(second)))
    return float(np.mean(values))


def _nearest_means(D: Float, half: Labels, own: Labels) -> Labels:
    """Assign all objects to the nearest mean of clusters of a half: D v_i - v_i' D v_i / 2."""
    used, own = np.unique(own, return_inverse=True)
    V = (own == np.arange(len(used))[:, None]).astype(np.float64)
    V /= V.sum(axis=1, keepdims=True)
    products = V @ D[half]
    own_terms = np.einsum("ij,ij->i", products[:, half], V)
    result: Labels = (products - 0.5 * own_terms[:, None]).argmin(axis=0)
    return result


# -------------------------------------------------------------------------------------------------- average linkage


def _linked(d: Float, labels: Labels, c: int, rng: np.random.Generator) -> Linked | None:
    """Compare a partition with average linkage; None where that has not so many clusters."""
    cut, groups = _average_linkage(d, c)
    if groups is None:
        return None
    inside = np.flatnonzero(groups >= 0)
    own, linked = labels[inside], groups[inside]
    among = d[np.ix_(inside, inside)]
    same = adjusted_rand_index(own, linked)
    agreement = _linkage_agreement(d, c, rng) if same < OTHER else None
    sizes = np.sort(np.bincount(linked, minlength=c))[::-1].tolist()
    return Linked(
        same, _silhouette(among, linked), _silhouette(among, own), cut, tuple(sizes), agreement,
        agreement is not None and agreement >= AGAIN,
    )  # fmt: skip


def _average_linkage(d: Float, c: int) -> tuple[int, Labels | None]:
    """Return the first cut that has c clusters of some size, and its labels, -1 in smaller ones; None without."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    m = len(d)
    least = max(3, int(SMALL * m))
    merges = linkage(squareform(d, checks=False), "average")
    for count in range(c, min(c + MORE_CLUSTERS, m) + 1):
        groups = fcluster(merges, count, "maxclust") - 1
        sizes = np.bincount(groups)
        large = np.flatnonzero(sizes >= least)
        if len(large) == c:
            numbers = np.full(len(sizes), -1, dtype=np.intp)
            numbers[large] = np.arange(c)
            return count, numbers[groups]
    return 0, None


def _linkage_agreement(d: Float, c: int, rng: np.random.Generator) -> float:
    """Return the mean adjusted Rand index of clusters found in halves; others join the cluster nearest on average."""
    values = []
    for _ in range(SPLITS):
        labels = []
        for half in _halves(len(d), rng):
            _, groups = _average_linkage(d[np.ix_(half, half)], c)
            if groups is None:
                return 0.0
            members = (groups == np.arange(c)[:, None]).astype(np.float64)
            members /= members.sum(axis=1, keepdims=True)
            labels.append((members @ d[half]).argmin(axis=0))
        values.append(adjusted_rand_index(*labels))
    return float(np.mean(values))


def _silhouette(d: Float, labels: Labels) -> float:
    used, labels = np.unique(labels, return_inverse=True)
    if len(used) < 2:
        return -1.0
    sizes = np.bincount(labels).astype(np.float64)
    return float(silhouettes(labels, sizes, np.eye(len(sizes))[:, labels] @ d).mean())
