"""The experiments of F09: Filippone 2009, dealing with non-metric dissimilarities in fuzzy central clustering.

    python workflows/papers/f09.py OUT [--quick] [--usps FILE]

Its FCM I, FCM II, PCM I and PCM II are the rules fcm1, fcm2, pcm1 and pcm2; a shift alpha is a spread of 2 alpha (4).
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
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
    matched_accuracy,
    run_script,
    squared_distances,
)

import dasrel

SHIFTS = (0.0, 4.0, 40.0, 400.0)
"""None, a tenth of the mean squared distance of synthetic data 1, the mean, and ten times the mean."""
RULES = ("fcm1", "fcm2", "pcm1", "pcm2")
TITLES = {"fcm1": "FCM I", "fcm2": "FCM II", "pcm1": "PCM I", "pcm2": "PCM II"}
DRAWN = "the paper's draw is not printed; others of the same description have"
AGAIN = dasrel.Writing(dtype="float64", force=True)
ALMOST = 0.05
"""Entropies are almost equal if they differ by less than this share of the largest, n log c."""

EXPECTED = {
    "mean 1": Expected("mean of the squared distances, synthetic data 1", "section 3.1", 43.4, 0.05, DRAWN),
    "median 1": Expected("median of them", "section 3.1", 34.4, 0.05, DRAWN),
    "maximum 1": Expected("maximum of them", "section 3.1", 360.9, 0.05, DRAWN),
    "fcm1 small": Expected("FCM I, alpha = 4: memberships at the end move by less than 0.1", "figure 2"),
    "fcm1 mean": Expected("FCM I, alpha = 40: they move by more than 0.2", "figure 2"),
    "fcm1 peak": Expected("FCM I: the difference has a peak in the first iterations", "figure 2, alpha of the mean"),
    "fcm2 large": Expected("FCM II, alpha = 400: they move by less than 0.1", "figure 2"),
    "pcm small": Expected("PCM I and PCM II, alpha = 4: they move by more than 0.2", "figure 2"),
    "labels": Expected(
        "labels of FCM I and FCM II are the same for all shifts", "section 3.1.1", True, 0,
        "they are wherever memberships differ from 1/2. Where all are 1/2, to within 0.01, labels are those of the last"
        " digits; the paper does not print its shifts",
    ),
    "entropy fcm2": Expected("FCM II: almost the same entropy for shifts up to the mean", "figure 3"),
    "entropy less": Expected("for all shifts, FCM II's entropy moves by less than a third of FCM I's", "figure 3"),
    "entropy fcm1 crisp": Expected("FCM I: so only for m close to 1 (m = 1.05, and not m = 2)", "figure 3"),
    "entropy pcm2": Expected("PCM II: entropy falls with gamma", "figure 3, alpha = 0"),
    "same distribution": Expected("m = 2 and lambda = 18 have almost the same entropy, no shift", "section 3.1.3"),
    "lambda 40": Expected("FCM II: lambda that gives the memberships of lambda = 18, alpha = 40", "figure 4", 18, 1),
    "m falls": Expected("FCM I: m must be lowered as alpha grows", "figure 4"),
    "mean 2": Expected("mean of the squared distances, synthetic data 2", "section 3.2", 106.2, 0.05, DRAWN),
    "median 2": Expected("median of them", "section 3.2", 103.0, 0.05, DRAWN),
    "maximum 2": Expected("maximum of them", "section 3.2", 334, 0.5, DRAWN),
    "entropy 2": Expected("FCM II: almost the same entropy for shifts up to the mean, and FCM I not", "figure 5"),
    "m 2": Expected("FCM I: m close to 1 (below 1.1) for the largest shift", "figure 6"),
    "lambda 2": Expected("FCM II: lambda needs no tuning up to alpha = 40, within 10 %", "figure 6"),
    "lambda 2 large": Expected("FCM II: and is raised slightly, by less than half, for the largest", "figure 6"),
    "noise 500": Expected("accuracy of FCM I and FCM II with noise up to 500", "section 3.2", [1, 1], 0.005),
    "noise 500 starts": Expected(
        "and so for most starts with any parameter at which clusters are distinct", "section 3.2"
    ),
    "noise 1000": Expected("noise up to 1000: it depends on the parameters, some below 1 and some 1", "figure 7"),
    "noise pcm": Expected("PCM starts to fail at lower noise: below 0.95 for some gamma at 500", "section 3.2"),
    "pre and post": Expected("pre-shift and post-shift give the same memberships: largest difference", "appendix C", 0,
                             1e-9),
    "symmetric": Expected("a matrix and its symmetrised version have the same objective: relative difference",
                          "section 2.3", 0, 1e-9),
    "usps n": Expected("images of 0 and 7", "section 3.3", 1839),
    "usps mean": Expected("mean of R", "section 3.3", 0.88, 0.005),
    "usps median": Expected("median of R", "section 3.3", 0.92, 0.005),
    "usps lambda": Expected("smallest eigenvalue of S^c", "section 3.3, figure 8", -57.2, 0.05),
    "usps shift": Expected(
        "what is added to the dissimilarities", "section 3.3", 57.2, 0.05,
        "R needs 2 alpha, alpha the smallest eigenvalue without its sign", (114.3, 114.5),
    ),
    "usps fcm2": Expected("accuracy of FCM II, lambda = 0.15, mean of the starts, per cent", "section 3.3, figure 10",
                          98.2, 0.1),
    "usps fcm1": Expected("FCM I depends strongly on its start: accuracies over more than 10 per cent", "figure 10"),
    "usps meaning": Expected(
        "of the fuzzy algorithms only FCM II has memberships that are neither crisp nor flat", "figure 9", True, 0,
        "FCM I has them too, for m = 1 plus very small fractions, which section 4 of the paper names; here for",
    ),
    "usps collapse": Expected("PCM I and PCM II, gamma = 1: both centres collapse into one", "section 4"),
    "usps border": Expected("objects on the border, below 0.9, are misplaced more often than others", "figure 11"),
}  # fmt: skip


def statistics(study: Study) -> Values:
    """The squared distances of both synthetic data, and of 200 draws of the same description."""
    values: Values = {}
    for number, draw in ((1, synthetic_1), (2, synthetic_2)):
        found = [_statistics(draw(seed)[0]) for seed in range(30 if study.quick else 200)]
        for name, own, others in zip(("mean", "median", "maximum"), found[0], zip(*found, strict=True), strict=True):
            values[f"{name} {number}"] = Ours(own, (min(others), max(others)))
    X, truth = synthetic_1()
    figure, (axis,) = axes_of(1, 1, 4)
    for k in range(3):
        axis.scatter(*X[truth == k].T, s=8, color=COLOURS[k])
    axis.set(title="figure 1: two clusters and 20 outliers", aspect="equal")
    study.save(figure, "figure-1.png")
    return values


def iterations(study: Study) -> Values:
    """Figure 2: how far a shift moves the memberships, iteration by iteration.

    FCM: one iteration for all starts and shifts at a time, from the memberships that the last one left. PCM: eta comes
    from the start, which is FCM II's result; runs of 1, 2, ... iterations are one bundle.
    """
    D = squared_distances(synthetic_1()[0])
    starts, steps = (3, 12) if study.quick else (100, 40)
    given = {"fcm1": {"fuzzifier": 1.5}, "fcm2": {"entropy_weight": 20.0}, "pcm1": {"fuzzifier": 1.5}, "pcm2": {}}
    rng = np.random.default_rng(0)
    first = [rng.dirichlet([1, 1], len(D)) for _ in range(starts)]
    moved: dict[str, np.ndarray] = {}
    last: dict[tuple[str, float], Any] = {}
    for rule in ("fcm1", "fcm2"):
        U = {(shift, k): first[k] for shift in SHIFTS for k in range(starts)}
        moved[rule] = np.zeros((len(SHIFTS), steps))
        for step in range(steps):
            found = dasrel.cluster(
                D, [dasrel.Run(rule, 2, init=one, spread=2 * shift, max_iter=1, accelerate=False, **given[rule])
                    for (shift, _), one in U.items()], kind="squared-distance", keep_all=True,
            )  # fmt: skip
            U = dict(zip(U, (one.memberships for one in found.kept), strict=True))
            for row, shift in enumerate(SHIFTS):
                differences = [np.abs(U[shift, k] - U[0.0, k]).max() for k in range(starts)]
                moved[rule][row, step] = np.mean(differences)
        last |= {(rule, shift): [U[shift, k] for k in range(starts)] for shift in SHIFTS}
    ended = dasrel.cluster(
        D, dasrel.grid("fcm2", 2, entropy_weight=20.0, init="random", spread=[2 * shift for shift in SHIFTS]),
        kind="squared-distance",
    ).partitions  # fmt: skip
    for rule in ("pcm1", "pcm2"):
        found = dasrel.cluster(
            D, [dasrel.Run(rule, 2, eta_scale=0.5, init=start.memberships, spread=2 * shift, max_iter=step, tol=0,
                           accelerate=False, **given[rule])
                for shift, start in zip(SHIFTS, ended, strict=True) for step in range(1, steps + 1)],
            kind="squared-distance", keep_all=True,
        )  # fmt: skip
        U = np.array([one.memberships for one in found.kept]).reshape(len(SHIFTS), steps, len(D), 2)
        moved[rule] = np.abs(U - U[:1]).max(axis=(2, 3))

    figure, axes = axes_of(4, 2, 4)
    for axis, rule in zip(axes, RULES, strict=True):
        for row, shift in list(enumerate(SHIFTS))[1:]:
            axis.plot(range(1, steps + 1), moved[rule][row], color=COLOURS[row], label=f"alpha = {shift:g}")
        axis.set(title=f"figure 2: {TITLES[rule]}", xlabel="iteration", ylabel="max |U - U'|", ylim=(0, 1))
        axis.legend()
    study.save(figure, "figure-2.png")
    fcm1 = moved["fcm1"]
    shown = fcm1[SHIFTS.index(40.0)]
    same, flat = {True: True, False: True}, 0  # by whether the memberships are flat
    for (rule, _), ends in last.items():
        for first_end, end in zip(last[rule, 0.0], ends, strict=True):
            is_flat = bool(np.abs(end - 0.5).max() < 0.01)
            flat += is_flat
            same[is_flat] &= matched_accuracy(first_end.argmax(axis=1), end.argmax(axis=1)) == 1
    labels: Any = same[True] and same[False]
    if same[False] and not same[True]:
        labels = Ours(False, (0, 0), f"{flat} of {2 * len(SHIFTS) * starts} runs end so")
    return {
        "fcm1 small": fcm1[1, -1] < 0.1, "fcm1 mean": shown[-1] > 0.2,
        "fcm1 peak": shown.argmax() < steps / 2 and shown.max() > 1.2 * shown[-1],
        "fcm2 large": moved["fcm2"][-1, -1] < 0.1, "labels": labels,
        "pcm small": min(moved["pcm1"][1, -1], moved["pcm2"][1, -1]) > 0.2,
    }  # fmt: skip


def entropies(study: Study) -> Values:
    """Figure 3: entropy against the parameters, synthetic data 1."""
    D = squared_distances(synthetic_1()[0])
    ms, weights, scales = _grids(study, 60.0)
    found = entropy_figure(study, D, (ms, weights, scales), SHIFTS, 20.0, "figure-3.png", 3)
    near, two, mean = ms.index(1.05), ms.index(2.0), SHIFTS.index(40.0)
    apart = {rule: np.abs(found[rule] - found[rule][0]) for rule in ("fcm1", "fcm2")}
    by_scale = found["pcm2"][0]
    return {
        "entropy fcm2": apart["fcm2"][: mean + 1].max() < ALMOST,
        "entropy less": apart["fcm2"].max() < apart["fcm1"].max() / 3,
        "entropy fcm1 crisp": apart["fcm1"][mean, near] < ALMOST and apart["fcm1"][mean, two] > 2 * ALMOST,
        "entropy pcm2": by_scale[0] < by_scale[: len(by_scale) // 2].max(),
    }


def parameters(study: Study) -> Values:
    """Figure 4: the parameters that give the memberships of m = 2 and lambda = 18 on shifted data."""
    D = squared_distances(synthetic_1()[0])
    shifts = [0.0, 4.0, 10.0, 40.0, 100.0, 400.0]
    exponents, weights, unshifted = parameter_figure(study, D, shifts, 2.0, 18.0, "figure-4.png", 4)
    largest = len(D) * np.log(2)
    return {
        "same distribution": abs(unshifted["fcm1"] - unshifted["fcm2"]) < ALMOST * largest,
        "lambda 40": weights[shifts.index(40.0)],
        "m falls": (np.diff(exponents) <= 0).all() and exponents[-1] < 1.5,
    }  # fmt: skip


def second_data(study: Study) -> Values:
    """Figures 5 and 6: entropies and parameters, synthetic data 2."""
    D = squared_distances(synthetic_2()[0])
    shifts = (0.0, 10.0, 100.0, 1000.0)
    found = entropy_figure(study, D, _grids(study, 120.0), shifts, 50.0, "figure-5.png", 5)
    away = {rule: np.abs(found[rule] - found[rule][0])[:3].max() for rule in ("fcm1", "fcm2")}  # up to the mean
    shifts = (0.0, 10.0, 40.0, 100.0, 400.0, 1000.0)
    exponents, weights, _ = parameter_figure(study, D, shifts, 2.0, 50.0, "figure-6.png", 6)
    return {
        "entropy 2": bool(away["fcm2"] < ALMOST < away["fcm1"]), "m 2": exponents[-1] < 1.1,
        "lambda 2": abs(weights[shifts.index(40.0)] - weights[0]) <= 0.1 * weights[0],
        "lambda 2 large": weights[0] <= weights[-1] <= 1.5 * weights[0],
    }  # fmt: skip


def noise(study: Study) -> Values:
    """Figure 7: uniform noise on R, symmetrised, and shifted by the smallest eigenvalue.

    Labels of runs that end with u = 1/2 everywhere are those of the last digits; they are drawn as empty circles.
    """
    X, truth = synthetic_2()
    D, rng = squared_distances(X), np.random.default_rng(1)
    starts, count = (5, 5) if study.quick else (20, 14)
    exponents = (1 + np.geomspace(0.0005, 1, count)).tolist()
    weights = np.geomspace(2, 1000, count).tolist()
    accuracies: dict[tuple[str, float], list[list[float]]] = {}
    figure, axes = axes_of(2, 2, 4)
    for colour, level in zip(COLOURS, (500.0, 1000.0), strict=False):
        noisy = D + rng.uniform(0, level, D.shape)
        np.fill_diagonal(noisy, 0)
        store = study.out / "stores" / f"noise-{level:g}.zarr"
        dasrel.import_matrix(
            noisy, store, kind="squared-distance", policy=dasrel.Policy(symmetrize="mean"), writing=AGAIN
        )
        shift = -dasrel.spectrum(store, n_values=1, tol=1e-4).lowest[0] * (1 + 1e-4)
        common = {"n_init": starts, "init": "random", "spread": 2 * shift}
        runs = [
            *dasrel.grid("fcm1", 2, fuzzifier=exponents, **common),
            *dasrel.grid("fcm2", 2, entropy_weight=weights, **common),
            *dasrel.grid("pcm2", 2, entropy_weight=50.0, eta_scale=[0.1, 0.5, 1.0, 2.0], **common),
        ]
        rows: dict[tuple[str, float], list[tuple[float, bool]]] = {}
        for one in dasrel.cluster(store, runs, keep_all=True).kept:
            rows.setdefault(parameter(one), []).append((matched_accuracy(one.labels, truth), one.result.flat))
        for (rule, _), found in rows.items():
            if rule == "pcm2" or not any(flat for _, flat in found):
                accuracies.setdefault((rule, level), []).append([one for one, _ in found])
        for axis, rule in zip(axes, ("fcm1", "fcm2"), strict=True):
            line = sorted((value, *np.mean(found, axis=0)) for (own, value), found in rows.items() if own == rule)
            x, y, flat = np.array(line).T
            x = x - (rule == "fcm1")
            axis.plot(x, y, "-", color=colour, label=f"noise up to {level:g}")
            for filled, face in ((flat == 0, colour), (flat > 0, "white")):
                axis.plot(x[filled], y[filled], "o", color=colour, markerfacecolor=face)
            label = "m - 1" if rule == "fcm1" else "lambda"
            axis.set(xscale="log", xlabel=label, ylabel="mean accuracy of the starts", ylim=(0.45, 1.02))
            axis.set_title(f"figure 7: {TITLES[rule]} (empty: u = 1/2)")
            axis.legend()
    study.save(figure, "figure-7.png")
    means = {key: np.mean(found, axis=1) for key, found in accuracies.items()}
    many = [*means["fcm1", 1000.0], *means["fcm2", 1000.0]]
    return {
        "noise 500": [means[rule, 500.0].max() for rule in ("fcm1", "fcm2")],
        "noise 500 starts": all(np.median(accuracies[rule, 500.0], axis=1).min() == 1 for rule in ("fcm1", "fcm2")),
        "noise 1000": min(many) < 0.99 and max(many) == 1,
        "noise pcm": means["pcm2", 500.0].min() < 0.95,
    }


def shifts_and_symmetry(study: Study) -> Values:
    """Appendix C and section 2.3, on a matrix that is not symmetric."""
    rng = np.random.default_rng(2)
    R = squared_distances(rng.normal(size=(60, 3))) + rng.uniform(0, 4, (60, 60))
    np.fill_diagonal(R, 0)
    symmetric = (R + R.T) / 2
    first = rng.dirichlet([1, 1, 1], 60)
    Q = np.eye(60) - 1 / 60
    S = -0.5 * Q @ symmetric @ Q
    shift = -np.linalg.eigvalsh(S)[0] * (1 + 1e-6)
    given = {
        "fcm1": {"fuzzifier": 1.5}, "fcm2": {"entropy_weight": 1.0},
        "pcm1": {"eta_scale": 1.0, "fuzzifier": 1.5}, "pcm2": {"eta_scale": 1.0},
    }  # fmt: skip
    runs = [dasrel.Run(rule, 3, init=first, max_iter=30, tol=0, accelerate=False, **given[rule]) for rule in RULES]
    relation = dasrel.relation(symmetric, kind="squared-distance").spread(2 * shift)
    pre = dasrel.cluster(relation, runs)
    post = dasrel.cluster(S + shift * np.eye(60), runs, kind="kernel")
    U = pre.partitions[0].memberships.T ** 1.5
    G = [float((((U @ M) * U).sum(axis=1) / U.sum(axis=1)).sum()) for M in (R, symmetric)]
    pairs = zip(pre.partitions, post.partitions, strict=True)
    return {
        "pre and post": max(float(np.abs(a.memberships - b.memberships).max()) for a, b in pairs),
        "symmetric": abs(G[0] - G[1]) / G[0],
    }  # fmt: skip


def usps(study: Study, given: tuple[np.ndarray, np.ndarray], **_: Any) -> Values:
    """Figures 8 to 11: Simpson's dissimilarity of the images of 0 and 7."""
    images, truth = given
    store = study.out / "stores" / "usps.zarr"
    matrix = dasrel.pairwise(images, store, metric="simpson", kind="squared-distance", writing=AGAIN)
    R = dasrel.relation(matrix).rows(range(len(images)))
    seen = dasrel.spectrum(store, n_values=40, tol=1e-4)
    shift = -seen.lowest[0]
    starts = 6 if study.quick else 50
    exponents = [1.003, 1.01, 2.0] if study.quick else [1.0005, 1.001, 1.002, 1.003, 1.005, 1.01, 1.03, 1.1, 1.5, 2.0]
    weights = [0.05, 0.15, 0.3] if study.quick else [0.02, 0.05, 0.08, 0.1, 0.12, 0.15, 0.18, 0.2, 0.25, 0.3, 0.4]
    scales = [0.5, 1.0] if study.quick else [0.1, 0.3, 0.5, 1.0, 2.0]
    common = {"n_init": starts, "init": "random", "spread": 2 * shift * (1 + 1e-4), "max_iter": 100, "tol": 1e-4}
    runs = [*dasrel.grid("fcm1", 2, fuzzifier=exponents, **common),
            *dasrel.grid("fcm2", 2, entropy_weight=weights, **common),
            *dasrel.grid("pcm1", 2, fuzzifier=1.5, entropy_weight=0.15, eta_scale=scales, **common),
            *dasrel.grid("pcm2", 2, entropy_weight=0.15, eta_scale=scales, **common)]  # fmt: skip
    found = dasrel.cluster(store, runs, keep_all=True)
    rows: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for one in found.kept:
        share = one.result.entropy / (len(images) * np.log(2))
        rows.setdefault(parameter(one), []).append((share, matched_accuracy(one.labels, truth)))
    best = next(one for one in found.partitions if parameter(one) == ("fcm2", 0.15))

    figure, (axis,) = axes_of(1, 1, 4)
    values = np.array(sorted({*seen.lowest, *seen.highest}, key=abs, reverse=True))
    axis.plot(np.arange(1, len(values) + 1), values, ".")
    axis.axhline(0, color="black", linewidth=0.5)
    axis.set(title="figure 8: both ends of the spectrum, by magnitude", xlabel="number", ylabel="eigenvalue of S^c")
    study.save(figure, "figure-8.png")
    for number, column, label in ((9, 0, "entropy / (n log 2)"), (10, 1, "accuracy")):
        figure, axes = axes_of(4, 2, 3.6)
        for axis, rule in zip(axes, RULES, strict=True):
            x = sorted(value for r, value in rows if r == rule)
            y = [[one[column] for one in rows[rule, value]] for value in x]
            axis.errorbar(range(len(x)), [np.mean(one) for one in y], [np.std(one) for one in y], fmt="o-", capsize=3)
            axis.set(xlabel={"fcm1": "m", "fcm2": "lambda"}.get(rule, "gamma"), ylabel=label, ylim=(-0.05, 1.1))
            axis.set_xticks(range(len(x)), [f"{value:g}" for value in x], rotation=45 if len(x) > 5 else 0)
            axis.set_title(f"figure {number}: {TITLES[rule]}")
        study.save(figure, f"figure-{number}.png")
    largest = best.memberships.max(axis=1)
    border = largest < 0.9
    _digits(study, images, best, largest, border)
    right = best.labels == truth
    right = right if right.mean() > 0.5 else ~right
    fcm1 = {value: pairs for (rule, value), pairs in rows.items() if rule == "fcm1"}
    ranges = [np.ptp([accuracy for _, accuracy in pairs]) for pairs in fcm1.values()]
    fuzzy = [ALMOST < np.mean([share for share, _ in rows["fcm2", weight]]) < 1 - ALMOST for weight in weights]
    narrow = [m for m, pairs in fcm1.items() if ALMOST < np.mean([share for share, _ in pairs]) < 1 - ALMOST]
    only: Any = any(fuzzy) and not narrow
    if any(fuzzy) and narrow and max(narrow) < 1.01:
        only = Ours(False, (0, 0), f"m = {', '.join(f'{m:g}' for m in narrow)}")
    collapsed = [one.result.n_modes == 1 for one in found.partitions if one.result.run.eta_scale == 1.0]
    return {
        "usps n": len(images), "usps mean": float(R.mean()), "usps median": float(np.median(R)),
        "usps lambda": seen.lowest[0], "usps shift": seen.spread,
        "usps fcm2": 100 * float(np.mean([accuracy for _, accuracy in rows["fcm2", 0.15]])),
        "usps fcm1": max(ranges) > 0.1, "usps meaning": only, "usps collapse": len(collapsed) == 2 and all(collapsed),
        "usps border": bool((~right[border]).mean() > (~right[~border]).mean()),
    }  # fmt: skip


def _digits(study: Study, images: np.ndarray, best: Any, largest: np.ndarray, border: np.ndarray) -> None:
    """Figure 11: the histogram, the border objects and both clusters, sorted by decreasing membership."""
    figure, axes = axes_of(4, 2, 4.2)
    axes[0].hist(largest, bins=50, color=COLOURS[0])
    axes[0].axvline(0.9, color=COLOURS[1])
    axes[0].set(title=f"highest membership: {border.sum()} below 0.9", yscale="log")
    groups = [np.flatnonzero(border), *(np.flatnonzero((best.labels == k) & ~border) for k in (0, 1))]
    names = ("border objects", "first cluster", "second cluster")
    for axis, group, name in zip(axes[1:], groups, names, strict=True):
        count, group = len(group), group[np.argsort(-largest[group], kind="stable")]
        group = group[:: max(1, len(group) // 240)][:240]  # at most 240 of them, evenly
        across = 20
        sheet = np.zeros((-(-len(group) // across) * 16, across * 16))
        for k, one in enumerate(group):
            row, column = divmod(k, across)
            sheet[16 * row : 16 * row + 16, 16 * column : 16 * column + 16] = images[one].reshape(16, 16)
        axis.imshow(sheet, cmap="gray", vmin=0, vmax=1)
        axis.set(title=f"{name}: {len(group)} of {count}", xticks=[], yticks=[])
    figure.suptitle("figure 11: FCM II, lambda = 0.15; images by decreasing membership")
    study.save(figure, "figure-11.png")


def entropy_figure(study: Study, D: np.ndarray, values: Sequence[Sequence[float]], shifts: Sequence[float],
                   weight: float, picture: str, number: int) -> dict[str, np.ndarray]:  # fmt: skip
    """Draw O(U) (43) against the parameters; return it as a share of n log 2, shifts by values, for each rule."""
    ms, weights, scales = values
    common = {"n_init": 1 if study.quick else 10, "init": "random", "spread": [2 * shift for shift in shifts]}
    varied = {
        "fcm1": dasrel.grid("fcm1", 2, fuzzifier=list(ms), **common),
        "fcm2": dasrel.grid("fcm2", 2, entropy_weight=list(weights), **common),
        "pcm1": dasrel.grid("pcm1", 2, fuzzifier=list(ms), entropy_weight=weight, eta_scale=0.5, **common),
        "pcm2": dasrel.grid("pcm2", 2, entropy_weight=weight, eta_scale=list(scales), **common),
    }
    found = dasrel.cluster(D, [run for runs in varied.values() for run in runs], kind="squared-distance")
    table: dict[str, np.ndarray] = {}
    results = {tuple(one.result.run.setting): one.result.entropy for one in found.partitions}
    figure, axes = axes_of(4, 2, 3.8)
    lists = {"fcm1": (ms, "m"), "fcm2": (weights, "lambda"), "pcm1": (ms, "m"), "pcm2": (scales, "gamma")}
    for axis, rule in zip(axes, RULES, strict=True):
        given, label = lists[rule]
        every = [results[run.setting] for run in varied[rule] if run.restart == 0]
        table[rule] = np.array(every).reshape(len(given), len(shifts)).T / (len(D) * np.log(2))
        for row, shift in enumerate(shifts):
            axis.plot(given, table[rule][row], color=COLOURS[row], label=f"alpha = {shift:g}")
        axis.set(title=f"figure {number}: {TITLES[rule]}", xlabel=label, ylabel="O(U) / (n log 2)")
        axis.legend()
    study.save(figure, picture)
    return table


def parameter_figure(study: Study, D: np.ndarray, shifts: Sequence[float], m: float, weight: float, picture: str,
                     number: int) -> tuple[list[float], list[float], dict[str, float]]:  # fmt: skip
    """Draw the m and lambda that minimise KL (44) to the unshifted memberships; return them, and both entropies."""
    chosen: dict[str, list[float]] = {}
    entropies: dict[str, float] = {}
    figure, axes = axes_of(2, 2, 4)
    count = 8 if study.quick else 40
    wanted: dict[str, tuple[str, float, Callable[[int], np.ndarray]]] = {
        "fcm1": ("fuzzifier", m, lambda k: 1 + np.geomspace(0.01, 1.2 * (m - 1), k)),
        "fcm2": ("entropy_weight", weight, lambda k: weight * np.linspace(0.7, 1.6, k)),
    }
    for axis, (rule, (name, value, candidates)) in zip(axes, wanted.items(), strict=True):
        common = {"init": "k-means++", "n_init": 2}
        start = dasrel.cluster(D, dasrel.grid(rule, 2, **{name: value}, **common), kind="squared-distance").best
        entropies[rule] = start.result.entropy
        tried = sorted({*candidates(count).tolist(), value})
        runs = [
            dasrel.Run(rule, 2, init=start.memberships, spread=2 * shift, **{name: one})
            for shift in shifts for one in tried
        ]  # fmt: skip
        found = dasrel.cluster(D, runs, kind="squared-distance", keep_all=True).kept
        small = np.finfo(float).tiny
        U = np.maximum(start.memberships, small)
        scores = [float((U * np.log(U / np.maximum(one.memberships, small))).sum()) for one in found]
        chosen[rule] = [tried[int(k)] for k in np.reshape(scores, (len(shifts), len(tried))).argmin(axis=1)]
        axis.plot(shifts, chosen[rule], "o-", color=COLOURS[0])
        axis.set(title=f"figure {number}: {TITLES[rule]}", xlabel="alpha", xscale="symlog")
        if rule == "fcm1":
            axis.set(ylabel="m", ylim=(1, 1.1 * m))
        else:
            axis.set(ylabel="lambda", ylim=(0, 1.7 * weight))
    study.save(figure, picture)
    return chosen["fcm1"], chosen["fcm2"], entropies


def parameter(one: Any) -> tuple[str, float]:
    """Return the rule of a partition, and the value of the parameter that the figures vary."""
    run = one.result.run
    return run.rule, {"fcm1": run.fuzzifier, "fcm2": run.entropy_weight}.get(run.rule, run.eta_scale)


def synthetic_1(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw synthetic data 1: two Gaussians of 200 points, and 20 outliers."""
    rng = np.random.default_rng(seed)
    groups = [rng.normal((0, 0), 1, (200, 2)), rng.normal((6, 6), 1, (200, 2)), rng.uniform(-6, 12, (20, 2))]
    return np.vstack(groups), np.repeat([0, 1, 2], [200, 200, 20])


def synthetic_2(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw synthetic data 2: two Gaussians of 100 points in ten dimensions, and ten uniform features."""
    rng = np.random.default_rng(seed)
    features = np.vstack([rng.normal(-2, 1, (100, 10)), rng.normal(2, 1, (100, 10))])
    return np.hstack([features, rng.uniform(-1, 1, (200, 10))]), np.repeat([0, 1], 100)


def _statistics(X: np.ndarray) -> tuple[float, float, float]:
    pairs = squared_distances(X)[np.triu_indices(len(X), 1)]
    return float(pairs.mean()), float(np.median(pairs)), float(pairs.max())


def _grids(study: Study, largest: float) -> tuple[list[float], list[float], list[float]]:
    count = 5 if study.quick else 20
    ms = sorted({2.0, *np.linspace(1.05, 3, count).tolist()})
    return ms, np.linspace(largest / 30, largest, count).tolist(), np.geomspace(0.05, 2, count).tolist()


def read_usps(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read images of 0 and 7 as bits, and which are 7; `--help` says from what."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as stored:
            X, y = stored["X"].astype(float), stored["y"].astype(int)
    else:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:  # type: ignore[operator]
            table = np.loadtxt(file)
        X, y = table[:, 1:], table[:, 0].astype(int)
    if X.ndim != 2 or X.shape[1] != 256 or len(X) != len(y):
        raise ValueError(f"images are {X.shape} numbers and labels {y.shape}; rows of 256 and a label each are needed")
    kept = np.isin(y, (0, 7))
    if not kept.any():
        raise ValueError("it has no images with the labels 0 and 7")
    X = (X - X.min()) / (X.max() - X.min())
    return (X[kept] > 0.5).astype(np.uint8), (y[kept] == 7).astype(int)


def main() -> int:
    """Run all parts."""
    text = (
        "the USPS training set: text (.gz or not), lines of a label and 256 grey values, as zip.train has them;"
        " or an .npz with X, n x 256, and y"
    )
    options = arguments(__doc__.splitlines()[0], {"usps": text})
    study = Study("F09", EXPECTED, options)
    study.part("statistics of the synthetic data", statistics)
    study.part("memberships along the iterations, figure 2", iterations)
    study.part("entropies, figure 3", entropies)
    study.part("parameters, figure 4", parameters)
    study.part("synthetic data 2, figures 5 and 6", second_data)
    study.part("noise, figure 7", noise)
    study.part("pre-shift and post-shift, appendix C", shifts_and_symmetry)
    study.file_part("USPS, figures 8 to 11", options.usps, "--usps", read_usps, usps)
    return study.finish()


if __name__ == "__main__":
    raise SystemExit(run_script(main))
