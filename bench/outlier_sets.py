"""Measure how well outliers are ranked and cut: planted outliers, rare classes, and data without outliers.

    python bench/outlier_sets.py [--sets 41] [--seeds 3] [--clean 12]

One JSON line for each set: the area under the ROC curve (AUC) of the typicality at the automatic width, at the width
that was automatic in earlier versions (the 0.9-quantile of the distances to the nearest neighbour), of the distance to
the 20th neighbour, of scikit-learn's local outlier factor (20 neighbours), isolation forest (features, else principal
coordinates) and one-class SVM. Then their means over all sets, and over either half: what the automatic width has as
constants was chosen by the first half (even lines) alone. Last, how often `reject="auto"` rejects anything of data
without outliers, and how many planted ones it finds. An odd object is one of a rare class at 5 %, a row whose values
are shuffled within columns, or a planted one.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist, squareform
from sklearn import datasets
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import EfficiencyWarning
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor
from sklearn.preprocessing import scale
from sklearn.svm import OneClassSVM

import dasrel

Drawn = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Distances, whether each object is odd, and features where there are any."""
Draw = Callable[[np.random.Generator], Drawn]


def say(**line: Any) -> None:
    print(json.dumps({"bench": "outlier_sets", **line}), flush=True)


def of_points(points: np.ndarray, odd: np.ndarray, metric: str = "euclidean") -> Drawn:
    return squareform(pdist(points, metric)), odd, points if metric == "euclidean" else None


def last_odd(usual: np.ndarray, odd: np.ndarray) -> Drawn:
    return of_points(np.vstack([usual, odd]), np.arange(len(usual) + len(odd)) >= len(usual))


def rare(X: np.ndarray, y: np.ndarray, odd: int, usual: Any = None, metric: str = "euclidean") -> Draw:
    """Draw at most 600 objects of the usual classes, by default all others, and 5 % of an odd one."""

    def draw(rng: np.random.Generator) -> Drawn:
        inside = rng.permutation(np.flatnonzero(y != odd if usual is None else np.isin(y, usual)))[:600]
        outside = rng.permutation(np.flatnonzero(y == odd))[: max(3, round(len(inside) / 19))]
        return of_points(X[np.r_[inside, outside]], np.arange(len(inside) + len(outside)) >= len(inside), metric)

    return draw


def shuffled(X: np.ndarray) -> Draw:
    """Draw at most 600 rows; the values of 5 % come from all rows, each column by itself."""

    def draw(rng: np.random.Generator) -> Drawn:
        rows = X[rng.permutation(len(X))[:600]]
        odd = np.arange(len(rows)) < max(3, len(rows) // 20)
        mixed = np.column_stack([rng.permutation(column) for column in rows.T])
        return of_points(np.where(odd[:, None], mixed, rows), odd)

    return draw


def communities(rng: np.random.Generator, groups: int, kind: str, spread: float, n: int = 400) -> tuple[Any, Any]:
    """Draw counts of 120 taxa: 3 % are of another type, of no type, or mixtures with no type."""
    types = rng.lognormal(0, 1.6, (groups + 1, 120))
    shares = types[rng.integers(0, groups, n)] * rng.lognormal(0, spread, (n, 120))
    odd = np.arange(n) < (0 if kind == "none" else 12)
    none = rng.lognormal(0, 1.6, (n, 120))
    other = types[groups] * rng.lognormal(0, spread, (n, 120))
    shares, none = (values / values.sum(axis=1, keepdims=True) for values in (shares, none))
    changed = {"none": shares, "other": other, "own": none, "mixed": (shares + none) / 2}[kind]
    shares = np.where(odd[:, None], changed, shares)
    return np.array([rng.multinomial(2000, row / row.sum()) for row in shares]), odd


def bray(groups: int, kind: str, spread: float) -> Draw:
    def draw(rng: np.random.Generator) -> Drawn:
        counts, odd = communities(rng, groups, kind, spread)
        return squareform(pdist(counts, "braycurtis")), odd, None

    return draw


def jaccard(rng: np.random.Generator) -> Drawn:
    counts, odd = communities(rng, 2, "mixed", 0.8)
    return squareform(pdist(counts > 0, "jaccard")), odd, None


def edits(first: np.ndarray, second: np.ndarray) -> int:
    """Return the Levenshtein distance."""
    steps = np.arange(len(second) + 1)
    row = steps
    for letter in first:
        row = np.r_[row[0] + 1, np.minimum(row[1:] + 1, row[:-1] + (second != letter))]
        row = np.minimum.accumulate(row - steps) + steps
    return int(row[-1])


def strings(families: int, kind: str) -> Draw:
    """Draw 160 mutated copies of some strings; 5 % are random, of another family, or mutated more."""

    def draw(rng: np.random.Generator) -> Drawn:
        n, length = 160, 50
        roots, odd = rng.integers(0, 4, (families + 1, length)), np.arange(n) < n // 20
        texts = []
        for k in range(n):
            root = roots[families if kind == "family" and odd[k] else rng.integers(0, families)]
            root = rng.integers(0, 4, length) if kind == "random" and odd[k] else root
            rate = 0.36 if kind == "mutated" and odd[k] else 0.12
            chance = rng.random(length)
            copied = np.where(chance < rate / 3, rng.integers(0, 4, length), root)
            doubled = np.repeat(copied, np.where(chance > 1 - rate / 3, 2, 1) * (np.abs(chance - 0.5) > rate / 6))
            texts.append(doubled)
        D = np.zeros((n, n))
        for i in range(n):
            for j in range(i):
                D[i, j] = D[j, i] = edits(texts[i], texts[j])
        return D, odd, None

    return draw


def made() -> Iterator[tuple[str, Draw]]:
    """Yield planted outliers among generated points."""
    yield "far from a Gaussian", lambda rng: last_odd(rng.normal(size=(400, 5)), 4 * rng.normal(size=(16, 5)))

    def densities(rng: np.random.Generator) -> Drawn:
        blobs = (((0, 0), 1), ((10, 0), 0.4), ((0, 12), 2))
        usual = np.vstack([rng.normal(middle, size, (130, 2)) for middle, size in blobs])
        return last_odd(usual, rng.uniform(-8, 18, (16, 2)))

    yield "a box around three densities", densities
    yield (
        "a halo around three blobs",
        lambda rng: last_odd(
            np.vstack([rng.normal(middle, 1, (100, 10)) for middle in (0, 3, -3)]), rng.normal(0, 3.5, (15, 10))
        ),
    )
    yield "a box around a box", lambda rng: last_odd(rng.uniform(0, 1, (400, 3)), rng.uniform(-0.5, 1.5, (16, 3)))
    yield "a tight group", lambda rng: last_odd(rng.normal(size=(400, 4)), rng.normal(4, 0.3, (16, 4)))

    def ring(rng: np.random.Generator) -> Drawn:
        angle = rng.uniform(0, 2 * np.pi, 400)
        circle = 5 * np.column_stack([np.cos(angle), np.sin(angle)])
        return last_odd(circle + rng.normal(0, 0.3, (400, 2)), rng.normal(0, 1, (12, 2)))

    yield "the middle of a ring", ring

    def low_rank(rng: np.random.Generator) -> Drawn:
        points = rng.normal(size=(500, 3)) @ rng.normal(size=(3, 20)) + 0.3 * rng.normal(size=(500, 20))
        return shuffled(points)(rng)

    yield "low rank, shuffled", low_rank
    yield "heavy tails", lambda rng: last_odd(rng.standard_t(4, (400, 6)), rng.normal(0, 5, (12, 6)))


def all_sets() -> list[tuple[str, Draw]]:
    digits, wine, cancer, iris = (
        getattr(datasets, f"load_{name}")() for name in ("digits", "wine", "breast_cancer", "iris")
    )
    X, y = digits.data, digits.target
    sets = [(f"digit {odd} among {usual}", rare(X, y, odd, [usual])) for usual, odd in ((3, 8), (1, 7), (0, 6))]
    sets += [(f"digit {odd} among all others", rare(X, y, odd)) for odd in (9, 4, 0)]
    sets += [("digits, shuffled", shuffled(X)), ("digit 5, shuffled", shuffled(X[y == 5]))]
    X, y = scale(wine.data), wine.target
    sets += [(f"wine {odd} among others", rare(X, y, odd)) for odd in range(3)]
    sets += [("wine 1 among 0", rare(X, y, 1, [0])), ("wine, shuffled", shuffled(X))]
    X, y = scale(cancer.data), cancer.target
    sets += [("malignant", rare(X, y, 0)), ("malignant, city block", rare(X, y, 0, metric="cityblock"))]
    sets += [("benign among malignant", rare(X, y, 1)), ("breast cancer, shuffled", shuffled(X))]
    X, y = iris.data, iris.target
    sets += [("iris 2 among 1", rare(X, y, 2, [1])), ("iris 0 among others", rare(X, y, 0))]
    sets += [("iris 1 among others", rare(X, y, 1)), ("iris, shuffled", shuffled(X)), *made()]
    sets += [("diabetes, shuffled", shuffled(scale(datasets.load_diabetes().data)))]
    kinds = (
        (1, "other", 0.5), (3, "other", 0.5), (1, "own", 0.7), (3, "own", 0.7), (4, "mixed", 0.5), (1, "mixed", 1.0),
    )  # fmt: skip
    sets += [(f"communities of {groups}, {kind}", bray(groups, kind, spread)) for groups, kind, spread in kinds]
    sets += [("communities by presence", jaccard)]
    of_strings = ((1, "random"), (4, "random"), (4, "family"), (3, "mutated"))
    return sets + [(f"strings of {families}, {kind}", strings(families, kind)) for families, kind in of_strings]


def coordinates(D: np.ndarray) -> np.ndarray:
    """Return at most 50 principal coordinates."""
    centring = np.eye(len(D)) - 1 / len(D)
    values, vectors = np.linalg.eigh(-0.5 * centring @ D**2 @ centring)
    positive = values > 1e-9 * values[-1]
    return np.asarray((vectors[:, positive] * np.sqrt(values[positive]))[:, ::-1][:, :50])


def aucs(drawn: Drawn) -> dict[str, float]:
    D, odd, points = drawn
    points = coordinates(D) if points is None else points
    found = dasrel.one_class(D, kind="distance")
    before = dasrel.one_class(D, dasrel.OneClassRun(found.scale.typical), kind="distance")
    kernel = np.exp(-(D**2) / np.median(D[np.triu_indices(len(D), 1)] ** 2))
    twentieth = np.partition(D, min(20, len(D) - 1), axis=1)[:, min(20, len(D) - 1)]
    forests = [IsolationForest(random_state=seed).fit(points).score_samples(points) for seed in range(3)]
    scores = {
        "auto": -found.best.log_typicality,
        "before": -before.best.log_typicality,
        "20th neighbour": twentieth,
        "local outlier factor": -LocalOutlierFactor(20, metric="precomputed").fit(D).negative_outlier_factor_,
        "isolation forest": -np.mean(forests, axis=0),
        "one-class SVM": -OneClassSVM(kernel="precomputed", nu=0.1).fit(kernel).score_samples(kernel),
    }
    return {name: float(roc_auc_score(odd, score)) for name, score in scores.items()}


def measure_ranks(sets: list[tuple[str, Draw]], seeds: int) -> None:
    rows = []
    for number, (name, draw) in enumerate(sets):
        drawn = [aucs(draw(np.random.default_rng([number, seed]))) for seed in range(seeds)]
        rows.append({method: float(np.mean([row[method] for row in drawn])) for method in drawn[0]})
        say(what="auc", set=name, half=number % 2, **{method: round(value, 3) for method, value in rows[-1].items()})
    for half, some in (("all", rows), ("even, which chose constants", rows[::2]), ("odd, kept aside", rows[1::2])):
        if some:
            means = {name: round(float(np.mean([row[name] for row in some])), 4) for name in some[0]}
            say(what="mean auc", sets=half, count=len(some), **means)


def clean(rng: np.random.Generator) -> dict[str, np.ndarray]:
    digits = datasets.load_digits().data
    blobs = np.vstack([rng.normal(middle, 1, (100, 3)) for middle in (0, 6, -9)])
    points = {
        "Gaussian 2": rng.normal(size=(300, 2)), "Gaussian 5": rng.normal(size=(300, 5)),
        "Gaussian 20": rng.normal(size=(300, 20)), "Gaussian 100": rng.normal(size=(300, 100)),
        "uniform 2": rng.random((300, 2)), "uniform 10": rng.random((300, 10)), "blobs": blobs,
        "log-normal": rng.lognormal(0, 0.5, (300, 4)), "digits": digits[rng.permutation(len(digits))[:400]],
    }  # fmt: skip
    found = {name: squareform(pdist(values)) for name, values in points.items()}
    for groups, spread in ((1, 0.5), (4, 0.5), (2, 1.0)):
        counts, _ = communities(rng, groups, "none", spread)
        found[f"Bray-Curtis {groups}"] = squareform(pdist(counts, "braycurtis"))
    return found


def measure_cuts(samples: int) -> None:
    rejected: dict[str, list[int]] = {}
    for seed in range(samples):
        for name, D in clean(np.random.default_rng([1000, seed])).items():
            cut = dasrel.one_class(D, kind="distance").best.outliers()
            rejected.setdefault(name, []).append(int(cut.rejected.sum()))
    for name, counts in rejected.items():
        say(what="clean", set=name, samples=samples, with_outliers=sum(map(bool, counts)), rejected=sum(counts))
    if rejected:
        every = [count for counts in rejected.values() for count in counts]
        say(what="clean", set="all", samples=len(every), with_outliers=sum(map(bool, every)), rejected=sum(every))
    planted = {
        "communities of 1, own": bray(1, "own", 0.5), "communities of 3, own": bray(3, "own", 0.5),
        "communities of 3, other": bray(3, "other", 0.5), "communities of 4, mixed": bray(4, "mixed", 0.5),
        **dict(made()),
    }  # fmt: skip
    for name, draw in planted.items() if samples else ():
        found, right = [], []
        for seed in range(samples):
            D, odd, _ = draw(np.random.default_rng([2000, seed]))
            rejected_here = dasrel.one_class(D, kind="distance").best.outliers().rejected
            found.append(float((rejected_here & odd).sum() / odd.sum()))
            if rejected_here.any():
                right.append(float((rejected_here & odd).sum() / rejected_here.sum()))
        precision = round(float(np.mean(right)), 3) if right else None
        say(what="planted", set=name, samples=samples, found=round(float(np.mean(found)), 3), right=precision)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clean", type=int, default=12)
    given = parser.parse_args()
    warnings.simplefilter("ignore", EfficiencyWarning)
    warnings.filterwarnings("ignore", "Duplicate values")
    measure_ranks(all_sets()[: given.sets], given.seeds)
    measure_cuts(given.clean)


if __name__ == "__main__":
    main()
