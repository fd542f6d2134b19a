"""Helpers that know nothing of matrices, and the array types used in annotations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Names = Sequence[str] | Array

Float = NDArray[np.float64]

Index = NDArray[np.int64]

PathLike = str | os.PathLike[str]
