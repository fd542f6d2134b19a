"""Automatic parameters: the first answer is right, and the choice is the one that the rule says."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score, silhouette_score

import dasrel
from dasrel import DasrelWarning, InputError
from dasrel.cmeans.ladder import ENTROPY_FRACTIONS, ETA_SCALES, FUZZIFIERS, choose
from dasrel.util import progress
from tests.helpers.faults import quiet


def blobs_on_a_line():
    """Three groups of 60 points on a line, far apart: half of the threshold makes two clusters coincide."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(middle, 0.3, 60) for middle in (0, 10, 20)])
    return np.abs(x[:, None] - x[None, :]), np.repeat([0, 1, 2], 60)


def blobs_in_eight(each=40):
    rng = np.random.default_rng(1)
    middles = rng.normal(0, 10, (8, 5))
    X = np.concatenate([rng.normal(middle, 1, (each, 5)) for middle in middles])
    return cdist(X, X), np.repeat(range(8), each)


def communities(each=80, outliers=6):
    """Counts of 60 species in five communities, and samples of none: Bray-Curtis dissimilarities."""
    rng = np.random.default_rng(2)
    bases = rng.dirichlet(np.full(60, 0.3), 5)
    shares = [rng.dirichlet(40 * base + 1e-3) for base in bases for _ in range(each)]
    shares += [rng.dirichlet(np.full(60, 0.05)) for _ in range(outliers)]
    X = np.array([rng.multinomial(3000, share) for share in shares], dtype=float)
    return cdist(X, X, "braycurtis"), np.concatenate([np.repeat(range(5), each), np.full(outliers, -1)])


DATA = {"line": (blobs_on_a_line, 3), "eight": (blobs_in_eight, 8), "communities": (communities, 5)}


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("rule", ["fcm1", "fcm2", "pcm1", "pcm2"])
@pytest.mark.parametrize("name", DATA)
def test_the_defaults_find_the_groups(name, rule):
    make, count = DATA[name]
    D, truth = make()
    found = quiet(dasrel.cluster, D, dasrel.grid(rule, count, n_init=10), kind="distance")
    known = truth >= 0
    assert found.best.result.is_sound
    assert adjusted_rand_score(truth[known], found.best.labels[known]) > 0.95


def test_groups_on_a_line_take_few_scans():
    D, _ = blobs_on_a_line()
    with progress.watch() as counted:
        found = dasrel.cluster(D, dasrel.grid("fcm2", 3, n_init=10), kind="distance")
    assert found.scans == counted.scans < 40  # a run at half of the threshold takes 300


@pytest.mark.parametrize(("rule", "parameter"), [("fcm1", "fuzzifier"), ("fcm2", "entropy_weight")])
def test_the_fuzziest_value_within_one_percent_of_the_best_silhouette_is_taken(rule, parameter):
    iris = cdist(load_iris().data, load_iris().data)
    found = quiet(dasrel.cluster, iris, dasrel.grid(rule, 3, n_init=4, init="random"), kind="distance", keep_all=True)
    values = {}
    for one in found.kept:
        value = getattr(one.result.run, parameter)
        rank = (not one.result.is_sound, one.result.score)
        if value not in values or rank < values[value][0]:
            values[value] = rank, one
    assert len(values) == len(ENTROPY_FRACTIONS if rule == "fcm2" else FUZZIFIERS)
    sound = {value: one for value, ((unsound, _), one) in values.items() if not unsound}
    quality = {value: silhouette_score(iris, one.labels, metric="precomputed") for value, one in sound.items()}
    expected = max(value for value in quality if quality[value] >= 0.99 * max(quality.values()))
    assert getattr(found.best.result.run, parameter) == expected
    (ladder,) = found.ladders[0]
    assert ladder.parameter == parameter
    report = ladder.report()
    assert report["chosen"] == expected
    for row in report["values"]:
        if row["value"] in quality:
            assert row["silhouette"] == pytest.approx(quality[row["value"]], abs=1e-6)


def test_pcm_begins_at_the_fcm2_run_that_was_chosen_and_keeps_its_clusters_apart():
    D, _ = communities()
    rules = ["fcm2", "pcm1", "pcm2"]
    found = quiet(dasrel.cluster, D, dasrel.grid(rules, 5, n_init=3), kind="distance")
    fcm2, pcm1, pcm2 = found.partitions
    assert pcm1.result.entropy_weight == pcm2.result.entropy_weight == fcm2.result.entropy_weight
    assert [[ladder.parameter for ladder in one] for one in found.ladders] == [
        ["entropy_weight"],
        ["entropy_weight", "eta_scale"],
        ["entropy_weight", "eta_scale"],
    ]
    for one in (pcm1, pcm2):
        assert one.result.run.eta_scale in ETA_SCALES
        assert one.result.is_sound
    # the fcm2 runs are made once for the three rules
    assert sum(r.run.rule == "fcm2" for r in found.runs) == sum(
        r.run.rule == "fcm2" for r in quiet(dasrel.cluster, D, dasrel.grid("fcm2", 5, n_init=3), kind="distance").runs
    )


def test_a_run_with_coincident_clusters_never_wins():
    D, _ = blobs_on_a_line()
    apart = quiet(dasrel.cluster, D, dasrel.Run("fcm2", 3, entropy_weight=1.0), kind="distance").best
    together = np.zeros((len(D), 3))
    together[:, 0], together[:, 1], together[:, 2] = apart.memberships[:, 0], apart.memberships[:, 1], 0
    together[:, 1] = together[:, 2] = (1 - together[:, 0]) / 2  # a fixed point with two clusters in one place
    runs = [dasrel.Run("fcm2", 3, entropy_weight=1.0, init=U, tol=1e-9) for U in (together, apart.memberships)]
    found = quiet(dasrel.cluster, D, runs, kind="distance", keep_all=True)
    assert [r.is_sound for r in found.runs] == [False, True]
    assert found.best.result is found.runs[1]


def test_all_values_with_coincident_clusters_are_reported():
    D = np.ones((6, 6)) - np.eye(6)
    D[:3, :3] = D[3:, 3:] = 0.0  # two places, three clusters
    with pytest.warns(DasrelWarning) as reported:
        found = dasrel.cluster(D, dasrel.grid("fcm2", 3, n_init=3), kind="distance")
    assert not found.best.result.is_sound
    assert "all values ended with coincident or empty clusters" in found.ladders[0][0].reason
    assert any("clusters" in str(one.message) for one in reported)


def test_the_choice_itself():
    iris = cdist(load_iris().data, load_iris().data)
    runs = [dasrel.Run("fcm1", 3, fuzzifier=m, init="random") for m in (1.2, 2.0, 1.5)]
    results = quiet(dasrel.cluster, iris, runs, kind="distance").runs
    assert choose("fuzzifier", results, [0.5, 0.45, 0.496]).report()["chosen"] == 1.5
    assert choose("fuzzifier", results, [0.5, 0.496, 0.1]).report()["chosen"] == 2.0
    assert choose("fuzzifier", results, [0.5, 0.49, 0.4]).report()["chosen"] == 1.2
    assert choose("fuzzifier", results, [-0.5, -0.1, -0.2]).report()["chosen"] == 2.0


@pytest.mark.slow
def test_several_numbers_of_clusters_are_one_bundle_and_the_best_is_recommended():
    D, _ = communities()
    found = quiet(dasrel.cluster, D, dasrel.grid("fcm2", range(2, 8), n_init=5), kind="distance", judge=True)
    assert found.best.result.run.n_clusters == 5
    assert found.bundles == 1
    index = found.quality["silhouette"]
    for one, value in zip(found.partitions, index, strict=True):
        assert value == pytest.approx(silhouette_score(D, one.labels, metric="precomputed"), abs=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rule": "pcm1", "fuzzifier": "auto"}, "pcm1 does not have"),
        ({"rule": "fcm2", "entropy_weight": "automatic"}, 'or "auto"'),
        ({"rule": "kmeans"}, "kmeans is called hard here"),
        ({"rule": "NERFCM"}, "fcm1 with on_negative heal"),
    ],
)
def test_refused(given, message):
    with pytest.raises(InputError, match=message):
        dasrel.Run(n_clusters=3, **given)


@pytest.mark.slow
def test_two_clusters_that_share_their_members_coincide():
    """Of five communities in six clusters, two halve one community: their centres differ, their members do not."""
    D, _ = communities()
    halves = quiet(dasrel.cluster, D, dasrel.Run("fcm2", 6, entropy_weight=0.027, init="k-means++"), kind="distance")
    U = halves.best.memberships
    lengths = np.linalg.norm(U, axis=0)
    cosines = U.T @ U / np.outer(lengths, lengths)
    assert halves.best.result.coincident_clusters == (cosines[np.triu_indices(6, 1)] > 0.95).sum() > 0
    several = quiet(dasrel.cluster, D, dasrel.grid("fcm2", [4, 5, 6, 7], n_init=5), kind="distance", judge=True)
    assert several.best.result.run.n_clusters == 5
