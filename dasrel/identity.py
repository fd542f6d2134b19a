"""What tells one matrix, and one relation, from another without reading a tile: the names that checkpoints go by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from dasrel.relation import Relation


def matrix_identity(matrix: Any) -> dict[str, Any]:
    """A matrix, open or direct, by its shape, its names and the records of its tiles, checksums among them.

    Two stores of the same source in other tiles are different here: sums over tiles have other last bits.

    Cost: no scan; reads the records, some hundred bytes a tile.
    """
    ids = "\n".join(str(name) for name in matrix.ids)
    return {
        "n_objects": matrix.n_objects, "kind": matrix.kind, "tile": matrix.layout.tile,
        "dtype": str(matrix.layout.dtype), "ids": digest([ids.encode("utf-8", "surrogatepass")]),
        "tiles": digest([np.ascontiguousarray(matrix.records()).tobytes()]),
    }  # fmt: skip


def relation_identity(relation: Relation) -> dict[str, Any]:
    """A relation: its matrix, and how it is seen."""
    terms = [
        {"weight": weight, "kind": type(term).__name__, "values": digest(_arrays(term))}
        for weight, term in relation.terms
    ]
    steps = [[name, list(value) if isinstance(value, tuple) else value] for name, value in relation.view.steps]
    return {
        "matrix": matrix_identity(relation.matrix), "view": relation.view.kind, "steps": steps,
        "spread": relation.beta, "terms": terms,
    }  # fmt: skip


def digest(parts: Iterable[bytes]) -> str:
    """Sixteen hexadecimal digits that stand for all of these bytes."""
    total = hashlib.blake2b(digest_size=8)
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.hexdigest()


def _arrays(term: Any) -> Iterable[bytes]:
    """The numbers that a term is made of; what it has worked out from them is left aside."""
    names = getattr(type(term), "__dataclass_fields__", None) or vars(term)
    for name in sorted(names):
        value = getattr(term, name)
        yield name.encode("utf-8")
        yield np.ascontiguousarray(value).tobytes() if isinstance(value, np.ndarray) else repr(value).encode("utf-8")
