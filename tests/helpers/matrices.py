"""Points and matrices that tests begin with; all by NumPy and SciPy, none by dasrel."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist, squareform

K14 = np.array([[0, 9, 36, 81], [9, 0, 49, 36], [36, 49, 0, 4], [81, 36, 4, 0]], dtype=np.float64)
"""The squared dissimilarities of the 4 x 4 example of K14 (section 2.2), whose eigenvalues it prints."""


def uniform_points(n: int, p: int = 3, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random((n, p))


def normal_points(n: int, p: int = 3, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(n, p))


def grouped_points(n: int, seed: int = 0, groups: int = 3, apart: float = 4.0) -> Any:
    """As many dimensions as groups, each group shifted along one of them; objects of all groups in turn."""
    return normal_points(n, groups, seed) + apart * np.eye(groups)[np.arange(n) % groups]


def blobs(each: int, centres: Sequence[Sequence[float]], seed: int = 0) -> Any:
    """Points around each centre, one group after the other."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(centre, 1.0, (each, len(centre))) for centre in centres])


def distances(points: Any, metric: str = "euclidean", dtype: str = "float64") -> Any:
    """All distances between points, symmetric to the last bit."""
    return squareform(pdist(points, metric)).astype(dtype)


def distances_with_zeros(n: int, dtype: str = "float64", seed: int = 0) -> Any:
    """Two pairs of different objects are at distance 0."""
    square = distances(uniform_points(n, 3, seed))
    square[1, 2] = square[2, 1] = square[0, n - 1] = square[n - 1, 0] = 0.0
    return square.astype(dtype)


def line_distances(n: int, dtype: str = "float32", seed: int = 5) -> Any:
    """Absolute differences of numbers."""
    x = np.random.default_rng(seed).random(n)
    return np.abs(x[:, None] - x).astype(dtype)


def squared(n: int, seed: int = 0) -> Any:
    """Squared distances between grouped points."""
    return distances(grouped_points(n, seed), "sqeuclidean")


def non_metric(n: int, seed: int = 0) -> Any:
    """Distances to the fourth power: the centre of two far objects is at a negative distance from one between."""
    return squared(n, seed) ** 2 / 100


def mirrored(values: Any) -> Any:
    """A symmetric matrix with a zero diagonal from the upper triangle."""
    upper = np.triu(values, 1)
    return upper + upper.T


def symmetric(n: int, seed: int = 0, kind: str = "distance") -> Any:
    """Random values of a kind; for similarities a Gram matrix with a diagonal of its own."""
    if kind in ("similarity", "kernel"):
        points = normal_points(n, 3, seed)
        product = points @ points.T
        return (product + product.T) / 2
    return mirrored(uniform_points(n, n, seed))


def tied(n: int, values: int, seed: int = 0) -> Any:
    """A symmetric matrix of a few whole numbers, zeros among them."""
    return mirrored(np.random.default_rng(seed).integers(0, values, (n, n)).astype(float))


def simpson(n: int) -> Any:
    """Simpson similarities of the binarised digits: common ink over the smaller ink (F09)."""
    from sklearn.datasets import load_digits

    ink = (load_digits().data[:n] > 7.5).astype(float)
    size = ink.sum(axis=1)
    return ink @ ink.T / np.minimum(size[:, None], size[None, :])


def squared_of(values: Any, kind: str) -> Any:
    """The dense matrix of squared dissimilarities, from the definition of each kind."""
    if kind == "squared-distance":
        return values.copy()
    if kind == "distance":
        return values**2
    own = np.diagonal(values)
    return mirrored(own[:, None] + own[None, :] - 2 * values)


def delta_of(D: Any, method: str, alpha: float | None) -> Any:
    """Delta of each method of euclideanisation, as K14 writes them, by NumPy and SciPy."""
    from scipy.cluster.hierarchy import cophenet, linkage

    if method == "spread":
        return 1 - np.eye(len(D))
    if method == "ultrametric":
        return squareform(cophenet(linkage(squareform(D, checks=False), "single")))
    if method == "power":
        return np.where(D > 0, D, 0) ** alpha
    if method == "exponential":
        return (1 - np.exp(-alpha * np.sqrt(D))) ** 2
    return np.log2(1 + np.sqrt(D) ** alpha) ** 2


def gram(D: Any) -> Any:
    """W(D) = -1/2 P D P."""
    P = np.eye(len(D)) - 1 / len(D)
    return -0.5 * P @ D @ P


def memberships(n: int, c: int = 3, seed: int = 3) -> Any:
    """Random memberships whose rows sum to 1."""
    U = np.random.default_rng(seed).uniform(0.01, 1, size=(n, c))
    return U / U.sum(axis=1, keepdims=True)
