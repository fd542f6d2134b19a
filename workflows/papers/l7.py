"""The examples and remarks of L7: Koutroumbas, Clustering algorithms, unit 7.

python workflows/papers/l7.py OUT [--quick]
"""

from __future__ import annotations

import itertools

import numpy as np
from common import COLOURS, Expected, Study, Values, arguments, axes_of, run_script, squared_distances

import dasrel

POINTS = np.array([[1, 1], [2, 1], [5, 4], [6, 5], [6.5, 6]])
NAMES = ["x1", "x2", "x3", "x4", "x5"]
EUCLIDEAN = [1, 5, 6.4, 7.4, 4.2, 5.7, 6.7, 1.4, 2.5, 1.1]
TANIMOTO = [0.75, 0.26, 0.21, 0.18, 0.44, 0.35, 0.20, 0.96, 0.90, 0.98]
UPPER = np.triu_indices(5, 1)

EXPECTED = {
    "euclidean": Expected("Euclidean distances of five points, upper triangle", "example 1, P(X)", EUCLIDEAN, 0.05),
    "tanimoto": Expected(
        "Tanimoto similarities of all pairs but (2, 5)", "example 1, P'(X)", TANIMOTO[:6] + TANIMOTO[7:], 0.005,
        "called a distance in the lecture; it is the similarity x'y / (x'x + y'y - x'y)",
    ),
    "tanimoto 2 5": Expected(
        "Tanimoto similarity of points 2 and 5", "example 1, P'(X)", 0.20, 0.005,
        "misprint: [2, 1] and [6.5, 6] give 19 / (5 + 78.25 - 19) = 0.296", (0.2957, 0.2958),
    ),
    "sequence": Expected(
        "clusterings of single linkage", "example 1, threshold dendrogram",
        "1 2 3 4 5 | 12 3 4 5 | 12 3 45 | 12 345 | 12345",
    ),
    "nested": Expected("each clustering is nested in the next one", "definition of nested clusterings"),
    "levels": Expected("levels of the dissimilarity dendrogram", "example 1, from P(X)", [1, 1.1, 1.4, 4.2], 0.05),
    "similarity levels": Expected(
        "levels of the similarity dendrogram", "example 1, from P'(X)", [0.98, 0.96, 0.75, 0.44], 0.005
    ),
    "centre q 1": Expected("centre of [0, 0] and [10, 10] with memberships 0.1 and 0.9, q = 1", "final remarks (4)",
                           [9.0, 9.0], 1e-9),
    "centre q 2": Expected("the same centre, q = 2", "final remarks (4)", [9.9, 9.9], 0.05),
    "more pcm1": Expected("positions of 6 representatives, 3 groups, first scheme", "mode seeking, m > k", 3),
    "more pcm2": Expected("positions of 6 representatives, 3 groups, second scheme", "mode seeking, m > k", 3),
    "fewer pcm1": Expected("groups found by 2 representatives, first scheme", "mode seeking, m < k", 2),
    "fewer pcm2": Expected("groups found by 2 representatives, second scheme", "mode seeking, m < k", 2),
    "partition": Expected("clusters of the fuzzy scheme with m = 6, 3 groups", "mode seeking, partition algorithms", 6),
    "eta mean": Expected("eta_j is the weighted mean distance of a fuzzy run", "about eta, first scenario"),
    "eta overall": Expected("eta_j is beta / (q sqrt(m))", "about eta, second scenario", True, 0.0,
                            "q times the root of m, not the root of q m"),
    "hard q 1": Expected("q near 1: the fuzzy memberships are those of the hard scheme", "final remarks (2)"),
    "below hard": Expected("q = 2: A_i of every point is below that of the best hard clustering", "final remarks (2)"),
    "sharing": Expected("larger q: more sharing in fuzzy clustering", "remarks on high values of q"),
    "equal contributions": Expected(
        "larger q: contributions of all points become equal in possibilistic clustering", "remarks on high values of q"
    ),
    "threshold": Expected("q near 1: possibilistic memberships are 1 below eta and 0 above it", "final remarks (3)"),
}  # fmt: skip


def five_points(study: Study) -> Values:
    """Example 1: both proximity matrices and their dendrograms."""
    stores = study.out / "stores"
    again = dasrel.Writing(dtype="float64", force=True)
    near = dasrel.pairwise(POINTS, stores / "euclidean.zarr", metric="euclidean", ids=NAMES, writing=again)
    alike = dasrel.pairwise(
        POINTS, stores / "tanimoto.zarr", metric="tanimoto", kind="similarity", ids=NAMES, writing=again
    )
    P = np.sqrt(dasrel.relation(near).rows(range(5)))
    similarity = 1 - dasrel.relation(alike).rows(range(5)) / 2  # D = s_ii + s_jj - 2 s_ij, and s_ii = 1
    single = dasrel.linkage(near, method="single")
    merged = dasrel.linkage(alike, method="single", as_similarity=True)
    dasrel.dendrogram_figure(single, study.out / "dendrogram-euclidean.png", matrix=near)
    dasrel.dendrogram_figure(merged, study.out / "dendrogram-tanimoto.png", matrix=alike)
    cuts = [single.cut(k) for k in (5, 4, 3, 2, 1)]
    nested = all(
        len(np.unique(coarse[fine == one])) == 1 for fine, coarse in itertools.pairwise(cuts) for one in set(fine)
    )
    found = similarity[UPPER].tolist()
    return {
        "euclidean": P[UPPER], "tanimoto": found[:6] + found[7:], "tanimoto 2 5": found[6],
        "sequence": " | ".join(map(_sets, cuts)), "nested": nested, "levels": single.heights,
        "similarity levels": merged.heights,
    }  # fmt: skip


def roles_of_q(study: Study) -> Values:
    """Final remarks (2) to (4): what the exponent does to centres and memberships."""
    U = np.array([[0.1, 0.9], [0.9, 0.1]])
    ends = np.array([[0.0, 0.0], [10.0, 10.0]])
    runs = [dasrel.Run("fcm2", 2, entropy_weight=1.0, init=U, max_iter=1),
            dasrel.Run("fcm1", 2, fuzzifier=2.0, init=U, max_iter=1)]  # fmt: skip
    both = dasrel.cluster(squared_distances(ends), runs, kind="squared-distance").partitions
    centres = [(one.model.V @ ends)[0] for one in both]

    X, _ = three_groups()
    D = squared_distances(X)
    exponents = [1.02, 1.2, 1.5, 2.0, 3.0, 5.0]
    common = {"entropy_weight": 2.0, "n_init": 1, "eta": "overall"}
    found = dasrel.cluster(
        D,
        [*dasrel.grid("fcm1", 3, fuzzifier=exponents), *dasrel.grid("pcm1", 3, fuzzifier=exponents, **common),
         dasrel.Run("hard", 3)],
        kind="squared-distance",
    )  # fmt: skip
    fuzzy, possible = found.partitions[: len(exponents)], found.partitions[len(exponents) : -1]
    hard = found.partitions[-1]
    d, u = fuzzy[3].distances, fuzzy[3].memberships
    spans = [float(np.ptp(one.memberships)) for one in possible]
    sharp = possible[0]
    eta = np.array(sharp.result.eta)
    away = np.abs(sharp.distances / eta - 1) > 0.1  # the step is not at one point for q = 1.02
    steps = np.where(sharp.distances < eta, 1, 0)
    entropies = [one.result.entropy for one in fuzzy]

    figure, axes = axes_of(2, 2, 4)
    axes[0].plot(exponents, entropies, "o-", color=COLOURS[0])
    axes[0].set(xlabel="q", ylabel="entropy of the memberships", title="fuzzy: more sharing")
    axes[1].plot(exponents, spans, "o-", color=COLOURS[1])
    axes[1].set(
        xlabel="q", ylabel="largest minus smallest membership", title="possibilistic: contributions become equal"
    )
    study.save(figure, "roles-of-q.png")
    same = {tuple(pair) for pair in zip(fuzzy[0].labels, hard.labels, strict=True)}
    return {
        "centre q 1": centres[0], "centre q 2": centres[1],
        "hard q 1": len(same) == 3 and float(fuzzy[0].memberships.max(axis=1).min()) > 0.99,
        "below hard": bool(((u**2 * d).sum(axis=1) < d.min(axis=1) + 1e-12).all()),
        "sharing": bool((np.diff(entropies) > 0).all()), "equal contributions": bool((np.diff(spans) < 0).all()),
        "threshold": bool((np.abs(sharp.memberships - steps)[away] < 0.01).all()),
    }  # fmt: skip


def mode_seeking(study: Study) -> Values:
    """More and fewer representatives than groups, both possibilistic schemes, beside the fuzzy one."""
    X, truth = three_groups()
    D = squared_distances(X)
    common = {
        "entropy_weight": 2.0,
        "eta_scale": 1.0,
        "eta": ["mean", "overall"],
        "n_init": 3 if study.quick else 20,
    }
    runs = [*dasrel.grid("pcm1", [6, 2], fuzzifier=1.5, **common), *dasrel.grid("pcm2", [6, 2], **common),
            *dasrel.grid("fcm1", 6, fuzzifier=1.5, n_init=common["n_init"])]  # fmt: skip
    found = dasrel.cluster(D, runs, kind="squared-distance")
    by = {(one.result.run.rule, one.result.run.n_clusters, one.result.run.eta): one for one in found.partitions}
    fcm = by["fcm1", 6, None]
    values: Values = {"partition": len(np.unique(fcm.labels)) if fcm.result.is_sound else 0}

    figure, axes = axes_of(5, 3)
    shown = [by[rule, c, "mean"] for c in (6, 2) for rule in ("pcm1", "pcm2")] + [fcm]
    for axis, one in zip(axes, shown, strict=True):
        run = one.result.run
        axis.scatter(*X.T, s=6, color=COLOURS[7])
        centres = one.model.V @ X
        axis.scatter(*centres.T, s=90, facecolors="none", edgecolors=COLOURS[1], linewidths=1.5)
        count = one.result.n_modes if run.is_possibilistic else run.n_clusters
        axis.set(title=f"{run.rule}, {run.n_clusters} representatives: {count} positions", aspect="equal")
    study.save(figure, "mode-seeking.png")

    beta = D.sum() / (2 * len(X) ** 2)
    for rule, q in (("pcm1", 1.5), ("pcm2", 1.0)):
        values[f"more {rule}"] = by[rule, 6, "mean"].result.n_modes
        few = by[rule, 2, "mean"]
        nearest = truth[few.distances.argmin(axis=0)]
        values[f"fewer {rule}"] = len(set(nearest)) if few.result.n_modes == 2 else few.result.n_modes
        overall = np.array(by[rule, 6, "overall"].result.eta)
        values["eta overall"] = values.get("eta overall", True) and bool(np.allclose(overall, beta / (q * np.sqrt(6))))
    # eta of the first scenario from given memberships: those of the fuzzy run
    again = dasrel.cluster(
        D, dasrel.Run("pcm1", 6, fuzzifier=1.5, eta_scale=1.0, init=fcm.memberships), kind="squared-distance"
    ).best
    U = fcm.memberships.T**1.5
    V = U / U.sum(axis=1, keepdims=True)
    d = V @ D - 0.5 * ((V @ D) * V).sum(axis=1, keepdims=True)
    values["eta mean"] = bool(np.allclose(again.result.eta, (U * d).sum(axis=1) / U.sum(axis=1)))
    return values


def three_groups() -> tuple[np.ndarray, np.ndarray]:
    """Draw three groups of 50 points."""
    rng = np.random.default_rng(0)
    centres = np.array([[0, 0], [6, 0], [3, 5]])
    return np.concatenate([centre + rng.normal(size=(50, 2)) for centre in centres]), np.repeat([0, 1, 2], 50)


def _sets(labels: np.ndarray) -> str:
    return " ".join("".join(str(k + 1) for k in np.flatnonzero(labels == one)) for one in range(labels.max() + 1))


def main() -> int:
    """Run all parts."""
    study = Study("L7", EXPECTED, arguments(__doc__.splitlines()[0]))
    study.part("five points, dendrograms", five_points)
    study.part("roles of q", roles_of_q)
    study.part("mode seeking", mode_seeking)
    return study.finish()


if __name__ == "__main__":
    raise SystemExit(run_script(main))
