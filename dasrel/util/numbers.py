"""Numbers that users give."""

from __future__ import annotations

from typing import Any

import numpy as np


def as_number(value: Any) -> float:
    """Return a number as it is, and NaN for anything else."""
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return float(value) if number else float("nan")
