"""The digits of the demo."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dasrel.commands import demo


@pytest.mark.parametrize("found", [True, False])
def test_digits_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch, found: bool) -> None:
    if not found:  # an installation that keeps its data elsewhere
        monkeypatch.setattr(demo, "Path", lambda *_: Path("/nowhere/at/all"))
    images, truth = demo.read_digits()
    expected = load_digits()
    np.testing.assert_array_equal(images, expected.data)
    np.testing.assert_array_equal(truth, expected.target)
