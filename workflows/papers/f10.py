"""The experiments of F10: Filippone, Masulli, Rovetta 2010, applying the possibilistic c-means in kernel spaces.

    python workflows/papers/f10.py OUT [--quick] [--breast FILE] [--ionosphere FILE]

Its 1-PCM is one cluster in the space of a Gaussian kernel; peers are a one-class SVM (1-SVM) and a kernel density (KDE)
with as many objects rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from common import (
    COLOURS,
    Expected,
    Ours,
    Study,
    Values,
    arguments,
    axes_of,
    labelled_table,
    run_script,
    squared_distances,
)

import dasrel

PEERS = ("svm", "pcm", "kde")
TITLES = {"svm": "1-SVM", "pcm": "1-PCM", "kde": "KDE"}
STOP: dict[str, Any] = {"stop": "sum", "tol": 0.01}
"""Table I, with the epsilon of section V-A."""
COMPARABLE = 0.1
"""Jaccard coefficients are comparable if medians differ by less than this."""

REAL = {"breast": ("Breast", 10.0, 0.1), "ionosphere": ("Ionosphere", 1.0, 0.2), "iris": ("Iris", 0.5, 0.2)}
"""Title, sigma, and nu of the accuracies, as in figure 5."""
EXPECTED = {
    "clusters": Expected("clusters for sigma = 0.5, 10 % rejected", "figure 1", 6),
    "shapes": Expected("they are the discs, the banana and the ring: adjusted Rand index above 0.95", "figure 1"),
    "resolution": Expected("sigma is the resolution: clusters for sigma = 2 are fewer than for 0.5", "figure 1"),
    "iterations": Expected("a few tens of iterations are enough: at most 50 for all widths", "section V-A"),
    "kde 0.5": Expected("1-PCM and KDE are comparably stable, sigma = 0.5", "figure 3"),
    "kde 1": Expected("1-PCM and KDE are comparably stable, sigma = 1", "figure 3"),
    "kde 5": Expected("1-PCM and KDE are comparably stable, sigma = 5", "figure 3"),
    "svm": Expected("for small nu 1-PCM is more stable than 1-SVM: means over widths, nu = 0.02", "section VI"),
    "gamma large": Expected("for large gamma 1-PCM is as stable as KDE: medians of the differences near 0", "figure 4"),
    "gamma 10": Expected("for small gamma it overfits: the mean difference is below 0, 10 % rejected", "figure 4"),
    "gamma 1": Expected(
        "for very small gamma it overfits: the mean difference is below 0, 1 % rejected",
        "figure 4",
        True,
        0,
        "in plain double precision the memberships of most objects are 0 for a very small gamma, and outliers cannot be"
        " told apart; logarithms are used here. The mean difference of plain memberships for gamma = 0.001",
    ),
}
for key, (title, *_) in REAL.items():
    EXPECTED |= {
        f"{key} stable": Expected(f"{title}: for the smallest nu 1-PCM is at least as stable as 1-SVM", "figure 5"),
        f"{key} kde": Expected(f"{title}: stability of 1-PCM and KDE is comparable", "figure 5"),
        f"{key} small": Expected(f"{title}: for the smallest n 1-PCM is more accurate than 1-SVM", "figure 5"),
        f"{key} accuracy": Expected(f"{title}: accuracy of 1-PCM and KDE is comparable", "figure 5"),
    }


def densities(study: Study) -> Values:
    """Figure 1: the memberships of a plane at three widths, and the clusters."""
    X, truth = shapes()
    D = squared_distances(X)
    widths = (1.0, 2.0, 0.5)
    found = dasrel.one_class(D, [dasrel.OneClassRun(width, **STOP) for width in widths], kind="squared-distance")
    labels = {}
    for width, one in zip(widths, found.typicalities, strict=True):
        fitted = dasrel.OneClusterPCM(width=width, contamination=0.1, clusters=True, kind="squared-distance").fit(D)
        labels[width] = fitted.labels_
        picture = study.out / f"figure-1-sigma-{width:g}.png"
        dasrel.density_figure(
            X, one, one.outliers(0.1), picture, labels=fitted.labels_, pixels=60 if study.quick else 200
        )
    from sklearn.metrics import adjusted_rand_score

    kept = (labels[0.5] >= 0) & (truth >= 0)
    return {
        "clusters": len(set(labels[0.5]) - {-1}),
        "shapes": adjusted_rand_score(truth[kept], labels[0.5][kept]) > 0.95,
        "resolution": labels[2.0].max() < labels[0.5].max(),
        "iterations": max(one.n_iter for one in found.typicalities) <= 50,
    }


def stable_outliers(study: Study) -> Values:
    """Figures 2 and 3: the stability of three detectors at three widths."""
    X = one_group()
    widths = (0.5, 1.0, 5.0)
    shares = [0.02, 0.1] if study.quick else [0.01, 0.02, 0.05, 0.1, 0.2]
    found = dasrel.stability(
        dasrel.relation(squared_distances(X), kind="squared-distance"),
        [dasrel.OneClassRun(width, **STOP) for width in widths],
        reject=shares, repeats=20 if study.quick else 500, methods=("pcm", "kde", "svm"),
    )  # fmt: skip
    figure, axes = axes_of(4, 2, 4)
    axes[0].scatter(*X[:400].T, s=6, color=COLOURS[0])
    axes[0].scatter(*X[400:].T, s=14, color=COLOURS[1], marker="x")
    axes[0].set(title="figure 2: a Gaussian and two unequal sides", aspect="equal")
    values: Values = {}
    for axis, width in zip(axes[1:], widths, strict=True):
        scores = {peer: [_of(found, peer, width, share) for share in shares] for peer in PEERS}
        boxes(axis, shares, scores, f"figure 3: sigma = {width:g}", "nu")
        apart = [abs(np.median(a) - np.median(b)) for a, b in zip(scores["pcm"], scores["kde"], strict=True)]
        values[f"kde {width:g}"] = max(apart) < COMPARABLE
    study.save(figure, "figures-2-and-3.png")
    low = {peer: np.mean([_of(found, peer, width, 0.02).mean() for width in widths]) for peer in ("pcm", "svm")}
    return values | {"svm": low["pcm"] > low["svm"]}


def regularisation(study: Study) -> Values:
    """Figure 4: the difference between 1-PCM and KDE for values of gamma, sigma = 1."""
    scales = [0.01, 0.1, 1.0, 10.0] if study.quick else [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0]
    shares = [0.01, 0.1]
    found = dasrel.stability(
        dasrel.relation(squared_distances(one_group()), kind="squared-distance"),
        [dasrel.OneClassRun(1.0, scale, **STOP) for scale in scales],
        reject=shares, repeats=30 if study.quick else 1000,
    )  # fmt: skip
    figure, axes = axes_of(2, 2, 4.2)
    moved = {}
    for axis, share in zip(axes, shares, strict=True):
        for scale in scales:
            moved[scale, share] = found.scores["pcm", 1.0, scale, share] - found.scores["kde", 1.0, 0.0, share]
        axis.boxplot([moved[scale, share] for scale in scales], tick_labels=[f"{scale:g}" for scale in scales])
        axis.axhline(0, color="black", linewidth=0.5)
        axis.set(title=f"figure 4: {share:.0%} rejected", xlabel="gamma", ylabel="Jaccard of 1-PCM minus KDE")
    study.save(figure, "figure-4.png")
    below = bool(moved[scales[0], 0.01].mean() < 0)
    plain = plain_difference(squared_distances(one_group()), 10 if study.quick else 100)
    return {
        "gamma large": max(abs(np.median(moved[scales[-1], share])) for share in shares) < 0.05,
        "gamma 10": moved[0.1, 0.1].mean() < 0,
        "gamma 1": Ours(below, (0, 0), f"{plain:.2f}") if plain < 0 else below,
    }


def plain_difference(D: np.ndarray, repeats: int) -> float:
    """Return the mean difference of 1-PCM and KDE with memberships that underflow, gamma = 0.001, 1 % rejected."""
    rng, differences = np.random.default_rng(0), []
    K = np.exp(-D / 2)
    for _ in range(repeats):
        first, second = np.array_split(rng.permutation(len(D)), 2)
        known, new = [], []
        for half in (first, second):
            one = dasrel.one_class(
                D[np.ix_(half, half)], dasrel.OneClassRun(1.0, 1e-3, **STOP), kind="squared-distance"
            )
            known.append(one.best.typicality)
            new.append(np.exp(one.best.model(one.relation).score_samples(D[np.ix_(second, half)])))
        count = int(np.ceil(0.01 * len(first)))
        density = K[np.ix_(second, first)].sum(axis=1), K[np.ix_(first, first)].sum(axis=1)
        pairs = [
            (_below(known[0], new[0], count), known[1]),
            (_below(density[1], density[0], count), K[np.ix_(second, second)].sum(axis=1)),
        ]
        scores = []
        for predicted, own in pairs:
            found = np.isin(np.arange(len(own)), np.argsort(own, kind="stable")[:count])
            scores.append((predicted & found).sum() / (predicted | found).sum())
        differences.append(scores[0] - scores[1])
    return float(np.mean(differences))


def real_data(study: Study, data: tuple[np.ndarray, np.ndarray], key: str) -> Values:
    """Figure 5 for one data set: stability against nu, and accuracy against the size of the training set."""
    X, normal = data
    title, width, nu = REAL[key]
    D = squared_distances(X)
    n_normal = int(normal.sum())
    sizes = [size for size in (10, 20, 40, 80, 160, 320) if size < n_normal]
    shares, repeats = [0.02, 0.05, 0.1, 0.2], 500
    if study.quick:
        sizes, shares, repeats = [sizes[0], sizes[-1]], [0.05, 0.2], 10
    found = dasrel.stability(
        dasrel.relation(D, kind="squared-distance"), dasrel.OneClassRun(width, **STOP), reject=shares, repeats=repeats,
        methods=("pcm", "kde", "svm"),
    )  # fmt: skip
    stable = {peer: [_of(found, peer, width, share) for share in shares] for peer in PEERS}
    correct = accuracies(D, normal, width, nu, sizes, repeats)

    figure, axes = axes_of(2, 2, 4.2)
    boxes(axes[0], shares, stable, f"figure 5: {title}, stability, sigma = {width:g}", "nu")
    boxes(axes[1], sizes, correct, f"figure 5: {title}, accuracy, nu = {nu:g}", "n")
    study.save(figure, f"figure-5-{key}.png")
    medians = {peer: np.array([np.median(one) for one in stable[peer]]) for peer in PEERS}
    means = {peer: np.array([np.mean(one) for one in correct[peer]]) for peer in PEERS}
    return {
        f"{key} stable": stable["pcm"][0].mean() >= stable["svm"][0].mean(),
        f"{key} kde": np.abs(medians["pcm"] - medians["kde"]).max() < COMPARABLE,
        f"{key} small": means["pcm"][0] > means["svm"][0],
        f"{key} accuracy": np.abs(means["pcm"] - means["kde"]).max() < COMPARABLE,
    }


def iris(study: Study) -> Values:
    """Iris: setosa and versicolor are normal."""
    from sklearn.datasets import load_iris

    X, y = load_iris(return_X_y=True)
    return real_data(study, (X, y < 2), "iris")


def breast(study: Study, data: Any, **_: Any) -> Values:
    """Breast Cancer Wisconsin: benign is normal."""
    return real_data(study, data, "breast")


def ionosphere(study: Study, data: Any, **_: Any) -> Values:
    """Ionosphere: good is normal."""
    return real_data(study, data, "ionosphere")


def accuracies(
    D: np.ndarray, normal: np.ndarray, width: float, nu: float, sizes: Sequence[int], repeats: int
) -> dict[str, list[np.ndarray]]:
    """Train on `size` normal objects, tell outliers among all others; return Jaccard coefficients with the classes."""
    from sklearn.svm import OneClassSVM

    K = np.exp(-D / (2 * width**2))
    found: dict[str, list[np.ndarray]] = {peer: [] for peer in PEERS}
    for size in sizes:
        rng = np.random.default_rng(0)
        scores: dict[str, list[float]] = {peer: [] for peer in PEERS}
        for _ in range(repeats):
            train = np.sort(rng.choice(np.flatnonzero(normal), size, replace=False))
            test = np.setdiff1d(np.arange(len(D)), train)
            own, other = np.ix_(train, train), np.ix_(test, train)
            svm = OneClassSVM(kernel="precomputed", nu=nu).fit(K[own])
            count = int((svm.predict(K[own]) < 0).sum())
            one = dasrel.one_class(dasrel.relation(D[own], kind="squared-distance"), dasrel.OneClassRun(width, **STOP))
            model = one.best.model(one.relation)
            told = {
                "svm": svm.predict(K[other]) < 0,
                "pcm": _below(one.best.log_typicality, model.score_samples(D[other]), count),
                "kde": _below(K[own].sum(axis=1), K[other].sum(axis=1), count),
            }
            for peer, outliers in told.items():
                either = (outliers | ~normal[test]).sum()
                scores[peer].append(float((outliers & ~normal[test]).sum() / either))
        for peer in PEERS:
            found[peer].append(np.array(scores[peer]))
    return found


def boxes(axis: Any, places: Sequence[float], scores: dict[str, list[np.ndarray]], title: str, label: str) -> None:
    """Draw box plots of the three detectors side by side."""
    for k, peer in enumerate(PEERS):
        at = np.arange(len(places)) + 0.25 * (k - 1)
        box = axis.boxplot(scores[peer], positions=at, widths=0.2, patch_artist=True, flierprops={"markersize": 2},
                           medianprops={"color": "black"})  # fmt: skip
        for patch in box["boxes"]:
            patch.set_facecolor(COLOURS[k])
        axis.plot([], [], "s", color=COLOURS[k], label=TITLES[peer])
    axis.set_xticks(range(len(places)), [f"{place:g}" for place in places])
    axis.set(title=title, xlabel=label, ylabel="Jaccard coefficient", ylim=(-0.02, 1.02))
    axis.legend(fontsize=8)


def shapes() -> tuple[np.ndarray, np.ndarray]:
    """Draw the data of figure 1: four discs of 30, a banana of 60, a ring of 80, and 30 outliers.

    The paper prints the numbers of points; places are read off its picture.
    """
    rng = np.random.default_rng(4)
    discs = [centre + rng.normal(0, 0.35, (30, 2)) for centre in ((-6, 6), (-2.5, 7), (5, -6), (7.5, -3))]
    angle = rng.uniform(0.1 * np.pi, 0.9 * np.pi, 60)
    banana = np.column_stack([-4 + 3 * np.cos(angle), -7 + 3 * np.sin(angle)]) + rng.normal(0, 0.2, (60, 2))
    angle = rng.uniform(0, 2 * np.pi, 80)
    ring = np.column_stack([5 + 2 * np.cos(angle), 5 + 2 * np.sin(angle)]) + rng.normal(0, 0.2, (80, 2))
    X = np.concatenate([*discs, banana, ring, rng.uniform(-10, 10, (30, 2))])
    return X, np.repeat([0, 1, 2, 3, 4, 5, -1], [30, 30, 30, 30, 60, 80, 30])


def one_group() -> np.ndarray:
    """Draw the data of figure 2: a Gaussian of 400 points, 20 outliers on one side and 10 on the other."""
    rng = np.random.default_rng(0)
    right = np.column_stack([rng.uniform(3, 10, 20), rng.uniform(-10, 10, 20)])
    left = np.column_stack([rng.uniform(-10, -3, 10), rng.uniform(-10, 10, 10)])
    return np.concatenate([rng.normal(size=(400, 2)), right, left])


def _of(found: Any, peer: str, width: float, share: float) -> np.ndarray:
    return found.scores[peer, width, 1.0 if peer == "pcm" else 0.0, share]


def _below(known: np.ndarray, new: np.ndarray, count: int) -> np.ndarray:
    """Return which new objects are no better than the `count`-th worst known one."""
    return new <= np.sort(known)[count - 1] if count else np.zeros(len(new), dtype=bool)


def read_breast(path: Any) -> tuple[np.ndarray, np.ndarray]:
    """Read features, and which objects are benign: the larger class."""
    return _normal(*labelled_table(path, label=-1, drop=(0,)))


def read_ionosphere(path: Any) -> tuple[np.ndarray, np.ndarray]:
    """Read features, and which objects are good: the larger class."""
    return _normal(*labelled_table(path, label=-1))


def _normal(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    names, counts = np.unique(y, return_counts=True)
    if len(names) != 2:
        raise ValueError(f"it has {len(names)} classes; two are needed")
    return X, y == names[counts.argmax()]


def main() -> int:
    """Run all parts."""
    texts = {
        "breast": "Breast Cancer Wisconsin (original): UCI's breast-cancer-wisconsin.data, or an .npz with X and y",
        "ionosphere": "Ionosphere: UCI's ionosphere.data, or an .npz with X and y",
    }
    options = arguments(__doc__.splitlines()[0], texts)
    study = Study("F10", EXPECTED, options)
    study.part("densities and clusters, figure 1", densities)
    study.part("stability, figures 2 and 3", stable_outliers)
    study.part("gamma, figure 4", regularisation)
    study.part("Iris, figure 5", iris)
    study.file_part("Breast, figure 5", options.breast, "--breast", read_breast, breast)
    study.file_part("Ionosphere, figure 5", options.ionosphere, "--ionosphere", read_ionosphere, ionosphere)
    return study.finish()


if __name__ == "__main__":
    raise SystemExit(run_script(main))
