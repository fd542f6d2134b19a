"""What a spectrum says: the share of negative eigenvalues, and those that stand out."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

import dasrel


def test_the_share_of_negative_eigenvalues() -> None:
    """Of 40 objects the search finds all eigenvalues, and the share is exact; of 400 it is estimated."""
    rng = np.random.default_rng(0)
    for n, tolerance in ((40, 1e-6), (400, 0.2)):
        D = rng.uniform(0.5, 1.5, (n, n))
        D = (D + D.T) / 2
        np.fill_diagonal(D, 0)
        P = np.eye(n) - 1 / n
        values = np.linalg.eigvalsh(-0.5 * P @ D @ P)
        share = -values[values < 0].sum() / np.abs(values).sum()
        found = dasrel.spectrum(D, kind="squared-distance")
        assert found.negative_share == pytest.approx(share, rel=tolerance)


def test_eigenvalues_that_stand_out() -> None:
    """Four groups far from each other in ten dimensions differ in three directions; of noise nothing stands out."""
    rng = np.random.default_rng(1)
    middles = 20 * np.eye(4, 10)
    points = middles[np.repeat(np.arange(4), 25)] + rng.normal(size=(100, 10))
    groups, noise = (
        dasrel.spectrum(squareform(pdist(x)), kind="distance") for x in (points, rng.normal(size=(100, 10)))
    )
    assert (groups.standing_out, noise.standing_out) == (3, 0)
    assert groups.negative_share == 0
