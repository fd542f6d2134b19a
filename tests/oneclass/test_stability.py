"""Stability of outliers by halves, against F10's table II written out with the dense oracle."""

import numpy as np
import pytest

import dasrel
from dasrel.errors import InputError
from dasrel.oneclass import stability as module
from dasrel.oneclass.run import OneClassRun
from dasrel.oneclass.stability import jaccard, stability
from dasrel.util import progress
from tests.helpers import oneclass_oracle as oracle
from tests.helpers.matrices import distances


@pytest.fixture(scope="module")
def points():
    rng = np.random.default_rng(3)
    return np.concatenate([rng.normal(size=(40, 2)), rng.uniform(-8, 8, (6, 2))])


@pytest.fixture(scope="module")
def relation(points):
    return dasrel.relation(distances(points, "sqeuclidean"), kind="squared-distance")


def by_the_paper(points, halves, sigma, gamma, count, own_count=None, *, density=False, iterations=None):
    """Table II for one detector; the iterations of each half are added to a list."""
    found = []
    for first, second in halves:
        A, B = points[first], points[second]
        K = [oracle.gaussian_kernel(distances(X, "sqeuclidean"), sigma) for X in (A, B)]
        across = oracle.gaussian_kernel(((B[:, None] - A[None]) ** 2).sum(axis=2), sigma)
        if density:
            u, new, own = K[0].mean(axis=1), across.mean(axis=1), K[1].mean(axis=1)
        else:
            u, eta, updates, before = oracle.core(K[0], gamma, 1e-9)
            new = np.array([oracle.new_membership(row, K[0], before, eta) for row in across])
            own, _, others, _ = oracle.core(K[1], gamma, 1e-9)
            iterations += [updates, others]
        threshold = np.sort(u)[count - 1]
        z = np.zeros(len(B))
        z[np.argsort(own)[: own_count or count]] = 1
        found.append(oracle.jaccard((new <= threshold).astype(int), z))
    return found


@pytest.mark.slow
def test_scores_are_those_of_table_ii(points, relation):
    runs = [OneClassRun(1.0, tol=1e-9, stop="sum"), OneClassRun(2.0, 0.5, tol=1e-9, stop="sum")]
    with progress.watch() as counted:
        found = stability(relation, runs, reject=[0.1, 0.2], repeats=6, random_state=5)
    halves, iterations = module._halves(46, 6, 5), []
    for run in runs:
        for share, count in ((0.1, 3), (0.2, 5)):
            mine = found.scores["pcm", run.width, run.eta_scale, share]
            expected = by_the_paper(points, halves, run.width, run.eta_scale, count, iterations=iterations)
            np.testing.assert_allclose(mine, expected, rtol=1e-12)
            density = found.scores["kde", run.width, 0.0, share]
            np.testing.assert_allclose(
                density, by_the_paper(points, halves, run.width, 1.0, count, density=True), rtol=1e-12
            )
    assert found.scans == counted.scans == max(iterations)  # for 24 columns of one bundle
    assert [row["median"] for row in found.table()] == [float(np.median(one)) for one in found.scores.values()]


def test_halves_are_disjoint_and_drawn_anew():
    halves = module._halves(11, 20, 0)
    for first, second in halves:
        assert (first.sum(), second.sum(), (first & second).sum()) == (5, 5, 0)
    assert len({first.tobytes() for first, _ in halves}) > 15


def test_repeats_in_several_bundles_have_the_same_scores(relation, monkeypatch):
    run = OneClassRun(1.0)
    whole = stability(relation, run, repeats=5)
    monkeypatch.setattr(module, "_repeats_that_fit", lambda *given: min(2, given[2]))
    parts = stability(relation, run, repeats=5)
    for key, values in whole.scores.items():
        np.testing.assert_array_equal(values, parts.scores[key])
    assert parts.scans > whole.scans


def test_the_svm_is_that_of_scikit_learn(points, relation):
    from sklearn.svm import OneClassSVM

    found = stability(relation, OneClassRun(1.0), reject=0.2, repeats=3, methods=["svm", "kde"])
    expected, others = [], []
    for first, second in module._halves(46, 3, 0):
        svm = [OneClassSVM(nu=0.2, gamma=0.5).fit(points[half]) for half in (first, second)]
        expected.append(oracle.jaccard(*[(one.predict(points[second]) < 0).astype(int) for one in svm]))
        counts = [int((one.predict(points[half]) < 0).sum()) for one, half in zip(svm, (first, second), strict=True)]
        others += by_the_paper(points, [(first, second)], 1.0, 1.0, *counts, density=True)
    np.testing.assert_allclose(found.scores["svm", 1.0, 0.0, 0.2], expected)
    np.testing.assert_allclose(found.scores["kde", 1.0, 0.0, 0.2], others)  # as many of each half as the SVM


def test_a_density_has_one_score_for_each_repeat_whatever_the_gammas(relation):
    found = stability(relation, [OneClassRun(1.0, gamma) for gamma in (0.5, 1.0, 1e5)], repeats=4)
    assert [len(values) for values in found.scores.values()] == [4, 4, 4, 4]
    large, density = found.scores["pcm", 1.0, 1e5, 0.05], found.scores["kde", 1.0, 0.0, 0.05]
    np.testing.assert_array_equal(large, density)  # F10 (35)


def test_two_empty_selections_agree():
    nothing = np.zeros(3, dtype=bool)
    assert jaccard(nothing, nothing) == 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"repeats": 0}, "repeats is 0; give a whole number"),
        ({"methods": ["lof"]}, "methods are among pcm, kde, svm, not lof"),
        ({"reject": 0.6}, "above 0 and at most"),
    ],
)
def test_what_is_refused(relation, more, told):
    with pytest.raises(InputError, match=told):
        stability(relation, OneClassRun(1.0), **more)


def test_automatic_widths_and_few_objects_are_refused(relation):
    with pytest.raises(InputError, match="give a number for width"):
        stability(relation, OneClassRun())
    few = dasrel.relation(np.ones((3, 3)) - np.eye(3), kind="distance")
    with pytest.raises(InputError, match="halves need at least two objects each"):
        stability(few, OneClassRun(1.0))
