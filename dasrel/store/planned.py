"""A matrix that is not there yet, for estimates: it has a size, and no values."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasrel.errors import InputError
from dasrel.store.layout import Layout
from dasrel.store.tile_files import default_tile
from dasrel.util import Array


class PlannedMatrix:
    """The interface of a store of so many objects, distances in float32, whose tiles cannot be read."""

    kind = "distance"
    store = None
    diagonal = None
    dtype = np.dtype(np.float32)
    mapped, local_array, read_memory = True, None, 0

    def __init__(self, n_objects: int) -> None:
        if n_objects < 2:
            raise InputError(f"a matrix of {n_objects} objects", remedy="give 2 or more")
        self.n_objects = n_objects
        self.tile = default_tile(n_objects, self.dtype)
        self.layout = Layout(n_objects, self.tile, self.dtype)
        self.audit = {"minimum": 0.0, "maximum": 1.0, "mean": 0.5, "diagonal": {"minimum": 0.0, "maximum": 0.0}}

    @property
    def files(self) -> Any:
        """Itself: what a reader tells of a store of plain files."""
        return self

    @property
    def ids(self) -> Array:
        """The names of the objects: their numbers."""
        return np.arange(self.n_objects).astype(str)

    def random_tile(self) -> Array:
        """Return the first tile, of random numbers."""
        shape = self.layout.shape(0, 0)
        return np.random.default_rng(0).random(shape, dtype=np.float32)
