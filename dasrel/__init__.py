"""dasrel clusters objects that are known only by a pairwise matrix, of any size, metric or not.

Names are imported when they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dasrel._version import __version__

if TYPE_CHECKING:
    from dasrel.audit import audit_store
    from dasrel.errors import DasrelError, DasrelWarning, InputError, MemoryLimitError, StoreError
    from dasrel.estimators import (
        EntropyFuzzyCMeans,
        EntropyPossibilisticCMeans,
        FuzzyCMeans,
        HardCMeans,
        PossibilisticCMeans,
    )
    from dasrel.euclidean import Euclideanized, euclideanize
    from dasrel.export import export_matrix
    from dasrel.figures import partition_picture
    from dasrel.intake import KINDS, Policy
    from dasrel.meter import Progress, watch
    from dasrel.model import Model
    from dasrel.outputs import save_clustering
    from dasrel.pairwise import from_blocks, pairwise
    from dasrel.readers import import_matrix
    from dasrel.relation import Relation, relation
    from dasrel.results import Clustering, Partition, RunResult, cluster
    from dasrel.runs import Run, grid
    from dasrel.source import Reading
    from dasrel.store import Matrix, open_matrix
    from dasrel.writer import Writing

_HOMES = {
    "audit": ("audit_store",),
    "errors": ("DasrelError", "DasrelWarning", "InputError", "MemoryLimitError", "StoreError"),
    "estimators": (
        "EntropyFuzzyCMeans",
        "EntropyPossibilisticCMeans",
        "FuzzyCMeans",
        "HardCMeans",
        "PossibilisticCMeans",
    ),
    "euclidean": ("Euclideanized", "euclideanize"),
    "export": ("export_matrix",),
    "figures": ("partition_picture",),
    "intake": ("KINDS", "Policy"),
    "meter": ("Progress", "watch"),
    "model": ("Model",),
    "outputs": ("save_clustering",),
    "pairwise": ("from_blocks", "pairwise"),
    "readers": ("import_matrix",),
    "relation": ("Relation", "relation"),
    "results": ("Clustering", "Partition", "RunResult", "cluster"),
    "runs": ("Run", "grid"),
    "source": ("Reading",),
    "store": ("Matrix", "open_matrix"),
    "writer": ("Writing",),
}
"""Each module with the public names that it holds."""

__all__ = [
    "KINDS",
    "Clustering",
    "DasrelError",
    "DasrelWarning",
    "EntropyFuzzyCMeans",
    "EntropyPossibilisticCMeans",
    "Euclideanized",
    "FuzzyCMeans",
    "HardCMeans",
    "InputError",
    "Matrix",
    "MemoryLimitError",
    "Model",
    "Partition",
    "Policy",
    "PossibilisticCMeans",
    "Progress",
    "Reading",
    "Relation",
    "Run",
    "RunResult",
    "StoreError",
    "Writing",
    "__version__",
    "audit_store",
    "cluster",
    "euclideanize",
    "export_matrix",
    "from_blocks",
    "grid",
    "import_matrix",
    "open_matrix",
    "pairwise",
    "partition_picture",
    "relation",
    "save_clustering",
    "watch",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"dasrel.{home}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'dasrel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Python puts each imported module into its package; a function of the same name is what users mean there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in _HOMES.get(name, ()):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
