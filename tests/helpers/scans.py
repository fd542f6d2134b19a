"""A consumer of scans for tests: any function of a tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dasrel.engine.reduce import Consumer, Kernel, Side
from dasrel.util import Array


def reduction(function: Callable[[Array, bool], Any], combine: Callable[[Any, Any], Any]) -> Consumer:
    """Make a consumer with one result for the matrix: `function(tile, on_diagonal)` of every tile, combined in order.

    Both functions must be importable by the workers; results are combined in a balanced tree.
    """
    return Consumer(_ReduceKernel(function, combine))


@dataclass(frozen=True)
class _ReduceKernel(Kernel):
    function: Callable[[Array, bool], Any]
    merge: Callable[[Any, Any], Any]

    def empty(self, objects: int) -> Any:
        return None

    def add(self, partial: Any, tile: Array, rows: Side, columns: Side) -> Any:
        found = self.function(tile, rows is columns)
        return (found,) if partial is None else (self.merge(partial[0], found),)

    def pack(self, partial: Any, dtype: Any) -> Any:
        return partial[0]

    def combine(self, first: Any, second: Any) -> Any:
        return self.merge(first, second)
