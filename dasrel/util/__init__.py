"""Helpers that know nothing of matrices, and the types used in annotations.

At run time the types of arrays are `Any`, so that a command can begin without NumPy.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Names = Sequence[str] | Array
    Float = NDArray[np.float64]
    Index = NDArray[np.int64]
else:
    Array = Names = Float = Index = Any

PathLike = str | os.PathLike[str]
