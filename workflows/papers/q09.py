"""The figures and tables of Q09: Queiroz, Braga, Pedrycz 2009, sorted kernel matrices as cluster validity indexes.

    python workflows/papers/q09.py OUT [--quick]

The paper's points are not printed: they are drawn here by seed from as many Gaussian generators, 30 points each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from common import COLOURS, Expected, Study, Values, arguments, axes_of, run_script, squared_distances

import dasrel

GENERATORS = {
    2: [[-0.5, -0.5], [0.5, 0.5]],
    3: [[0, 0.75], [0.75, -0.5], [-0.75, -0.5]],
    4: [[0.65, 0.65], [0.65, -0.65], [-0.65, 0.65], [-0.65, -0.65]],
    6: [[x, y] for x in (-1.3, 0, 1.3) for y in (-0.65, 0.65)],
}
DEVIATION = 0.2
"""The scale is not printed. r is proportional to it and A does not depend on it; at this one a kernel of r = 0.25, that
of figures 2, 3 and 5, is as wide as a group."""
DRAWN = "the paper's points are not printed, and r* is proportional to their scale"
WIDTHS = (DEVIATION, 1.3)
"""From the deviation of a generator to the distance of neighbouring centres: outside, a kernel shows no groups."""
ALIGNED = (0.85, 1.0)
"""The largest alignment is 1; Q09 has 0.92 to 0.98 for groups that are clearly apart, as these are."""


def _table_2(count: int, r: float, A: float, where: str) -> dict[str, Expected]:
    return {
        f"c {count}": Expected(f"number of clusters c*, {count} generators", where, count),
        f"r {count}": Expected(f"width r*, {count} generators", where, r, 0.05, DRAWN, WIDTHS),
        f"A {count}": Expected(f"alignment A, {count} generators", where, A, 0.02, DRAWN, ALIGNED),
    }


EXPECTED = {
    "blocks": Expected("values between the two groups are very small: at most 5 % of those within", "figure 3"),
    "unordered": Expected("the unordered kernel does not show the two groups", "figure 2"),
    "groups": Expected("groups that the eigenvector order of the kernel shows, 6 generators", "figure 5", 6),
    "surface 2": Expected("maximum of the surface A(c, r), 2 generators: c", "figure 6", 2),
    "surface 6": Expected("maximum of the surface A(c, r), 6 generators: c", "figure 7", 6),
    "surface 4": Expected("maximum of the surface A(c, r), 4 generators: c", "figure 8", 4),
    "settings": Expected(
        "population and generations of the search",
        "table 1",
        [50, 65],
        0,
        "the search here is a differential evolution, without the rates of crossover and mutation of the paper's",
    ),
    **_table_2(2, 0.5894, 0.9540, "table 2"),
    **_table_2(4, 0.6808, 0.9537, "table 2"),
    **_table_2(6, 0.6551, 0.9758, "table 2"),
    **_table_2(3, 0.66959, 0.92225, "section 8, two classes from three generators"),
    "agree": Expected("the search ends near the maximum of the surface: A within 0.001, the same c", "table 2"),
    "three groups": Expected("groups that the eigenvector order shows, two classes", "figure 10", 3),
    "svm": Expected("an SVM with r* and C = 2 separates the two classes: accuracy above 0.95", "figure 11"),
    "iris": Expected("clusters of Iris", "section 8", 2),
}


def sorted_kernels(study: Study) -> Values:
    """Figures 1 to 5: kernels of width 0.25, not ordered, and ordered."""
    values: Values = {}
    two, truth = generated(2)
    mixed = np.random.default_rng(1).permutation(len(two))
    K = np.exp(-squared_distances(two) / (2 * 0.25**2))
    own = truth[:, None] == truth[None]
    values["blocks"] = bool(K[~own].mean() <= 0.05 * K[own].mean())
    half = truth[mixed][:30] == truth[mixed][0]
    values["unordered"] = bool(5 < half.sum() < 25)  # the first half of the rows has points of both groups

    figure, axes = axes_of(4, 2, 4)
    _scatter(axes[0], two, truth, "figure 1: two Gaussians")
    kernel = dasrel.relation(squared_distances(two[mixed]), kind="squared-distance").gaussian(0.25)
    axes[1].imshow(kernel.rows(range(60)), cmap="gray_r", vmin=0, vmax=1)
    axes[1].set_title("figure 2: kernel, r = 0.25, not ordered")
    axes[2].imshow(kernel.rows(np.argsort(mixed).tolist())[:, np.argsort(mixed)], cmap="gray_r", vmin=0, vmax=1)
    axes[2].set_title("figure 3: ordered by generator")
    six, truth = generated(6)
    _scatter(axes[3], six, truth, "figure 4: six Gaussians")
    study.save(figure, "figures-1-to-4.png")
    values["groups"] = eigen_picture(study, six, "six", "figure-5.png")
    return values


def surfaces(study: Study) -> Values:
    """Figures 6 to 8: A(c, r) on a grid, one scan for all pairs."""
    values: Values = {}
    figure, axes = axes_of(3, 3, 4)
    for axis, (count, number) in zip(axes, ((2, 6), (6, 7), (4, 8)), strict=True):
        D = squared_distances(generated(count)[0])
        bound = float(np.sqrt(D.mean() / 2))  # the root mean square distance of the points to their mean
        widths = np.linspace(bound / 40, bound, 20 if study.quick else 80).tolist()
        found = dasrel.align(D, kind="squared-distance", rule=runs(study, 8), width=widths)
        values[f"surface {count}"] = found.n_clusters
        numbers = [one.result.run.n_clusters for one in found.partitions]
        drawn = axis.pcolormesh(
            found.widths, numbers, found.values, cmap="viridis", vmin=0.6, vmax=1, shading="nearest"
        )
        axis.plot(found.width, found.n_clusters, "o", color=COLOURS[1], markersize=9)
        axis.set(xlabel="r", ylabel="c", title=f"figure {number}: {count} generators, A = {found.alignment:.3f}")
        figure.colorbar(drawn, ax=axis, label="A(K, P)")
    study.save(figure, "figures-6-to-8.png")
    return values


def search(study: Study) -> Values:
    """Table 2, by an evolution with the settings of table 1."""
    evolution = dasrel.Evolution(random_state=1)
    values: Values = {"settings": [evolution.population, evolution.generations], "agree": True}
    if study.quick:
        evolution = dasrel.Evolution(20, 15, random_state=1)
    for count in (2, 4, 6):
        D = squared_distances(generated(count)[0])
        found = dasrel.align(D, kind="squared-distance", rule=runs(study, 8), search=evolution)
        ladder = dasrel.align(D, kind="squared-distance", rule=runs(study, 8))
        values |= {f"c {count}": found.n_clusters, f"r {count}": found.width, f"A {count}": found.alignment}
        near = found.n_clusters == ladder.n_clusters and abs(found.alignment - ladder.alignment) < 1e-3
        values["agree"] = values["agree"] and near
    return values


def two_classes(study: Study) -> Values:
    """Figures 9 to 11: one of two classes has two generators; the width that is found serves an SVM."""
    from sklearn.svm import SVC

    X, generator = generated(3)
    y = (generator > 0).astype(int)
    evolution = dasrel.Evolution(20, 15, random_state=1) if study.quick else dasrel.Evolution(random_state=1)
    found = dasrel.align(squared_distances(X), kind="squared-distance", rule=runs(study, 8), search=evolution)
    svm = SVC(C=2, gamma=1 / (2 * found.width**2)).fit(X, y)
    held = np.arange(len(X)) % 3 == 0  # points that were not learnt from
    part = SVC(C=2, gamma=1 / (2 * found.width**2)).fit(X[~held], y[~held])

    figure, axes = axes_of(2, 2, 4.2)
    _scatter(axes[0], X, y, "figure 9: two classes, three generators")
    _scatter(axes[1], X, y, f"figure 11: SVM with r* = {found.width:.3f}, C = 2")
    grid = np.stack(np.meshgrid(np.linspace(-1.5, 1.5, 160), np.linspace(-1.3, 1.5, 160)), axis=-1)
    surface = svm.decision_function(grid.reshape(-1, 2)).reshape(160, 160)
    axes[1].contour(grid[..., 0], grid[..., 1], surface, [-1, 0, 1], colors="black", linestyles=["--", "-", "--"])
    study.save(figure, "figures-9-and-11.png")
    return {
        "c 3": found.n_clusters, "r 3": found.width, "A 3": found.alignment,
        "svm": bool(part.score(X[held], y[held]) > 0.95 and svm.score(X, y) > 0.95),
        "three groups": eigen_picture(study, X, "three", "figure-10.png"),
    }  # fmt: skip


def iris(study: Study) -> Values:
    """Iris, c = 2."""
    from sklearn.datasets import load_iris

    D = squared_distances(load_iris().data)
    return {"iris": dasrel.align(D, kind="squared-distance", rule=runs(study, 8)).n_clusters}


def generated(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw 30 points of each generator."""
    rng = np.random.default_rng(0)
    X = np.concatenate([centre + DEVIATION * rng.normal(size=(30, 2)) for centre in np.array(GENERATORS[count])])
    return X, np.repeat(np.arange(count), 30)


def runs(study: Study, most: int) -> list[dasrel.Run]:
    """Return fuzzy c-means runs with m = 2, the paper's partitions, for 2 to `most` clusters."""
    return dasrel.grid("fcm1", range(2, most + 1), fuzzifier=2.0, n_init=2 if study.quick else 10)


def eigen_picture(study: Study, X: np.ndarray, name: str, picture: str) -> int:
    """Draw the kernel of shuffled points in eigenvector order by the command line; return the blocks that it has."""
    store = study.out / "stores" / f"{name}.zarr"
    mixed = X[np.random.default_rng(1).permutation(len(X))]
    dasrel.pairwise(mixed, store, metric="euclidean", writing=dasrel.Writing(force=True))
    made = study.command(
        "image", store, study.out / picture, "--order", "eigen", "--view", "kernel", "--width", 0.25, "--force"
    )
    title = made["title"]  # "..., ordered by 6 leading eigenvectors of the kernel"
    return int(title.split("ordered by ")[1].split()[0])


def _scatter(axis: Any, X: np.ndarray, labels: np.ndarray, title: str) -> None:
    for k in range(labels.max() + 1):
        axis.scatter(*X[labels == k].T, s=14, color=COLOURS[k], marker="osD^v<"[k])
    axis.set(title=title, aspect="equal")


def main() -> int:
    """Run all parts."""
    study = Study("Q09", EXPECTED, arguments(__doc__.splitlines()[0]))
    study.part("sorted kernels, figures 1 to 5", sorted_kernels)
    study.part("surfaces, figures 6 to 8", surfaces)
    study.part("evolutionary search, table 2", search)
    study.part("two classes, figures 9 to 11", two_classes)
    study.part("Iris", iris)
    return study.finish()


if __name__ == "__main__":
    raise SystemExit(run_script(main))
