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
    from dasrel.append import Appended, append
    from dasrel.audit import audit_store
    from dasrel.checkpoint import Checkpoint
    from dasrel.delivered import RunResult
    from dasrel.errors import (
        ClusterError,
        DasrelError,
        DasrelWarning,
        InputError,
        MemoryLimitError,
        Stopped,
        StoreError,
    )
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
    from dasrel.intake import Policy
    from dasrel.meter import Progress, watch
    from dasrel.model import Model
    from dasrel.outputs import save_clustering
    from dasrel.pairwise import blocks_part, from_blocks, pairwise, pairwise_part
    from dasrel.parts import PartDone
    from dasrel.planning import ClusteringPlan, Fleet, plan_clustering
    from dasrel.readers import import_matrix, import_part
    from dasrel.recipe import read_workflow
    from dasrel.relation import Relation, relation
    from dasrel.results import Clustering, Partition, cluster
    from dasrel.runs import Run, grid
    from dasrel.runtime import Runtime, connect
    from dasrel.source import Reading
    from dasrel.spectrum import Spectrum, spectrum
    from dasrel.store import Matrix, open_matrix
    from dasrel.vocabulary import KINDS
    from dasrel.workflow import run_workflow
    from dasrel.writer import Writing

_HOMES = {
    "append": ("Appended", "append"),
    "audit": ("audit_store",),
    "checkpoint": ("Checkpoint",),
    "delivered": ("RunResult",),
    "errors": (
        "ClusterError",
        "DasrelError",
        "DasrelWarning",
        "InputError",
        "MemoryLimitError",
        "Stopped",
        "StoreError",
    ),
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
    "intake": ("Policy",),
    "meter": ("Progress", "watch"),
    "model": ("Model",),
    "outputs": ("save_clustering",),
    "pairwise": ("blocks_part", "from_blocks", "pairwise", "pairwise_part"),
    "planning": ("ClusteringPlan", "Fleet", "plan_clustering"),
    "parts": ("PartDone",),
    "readers": ("import_matrix", "import_part"),
    "recipe": ("read_workflow",),
    "relation": ("Relation", "relation"),
    "results": ("Clustering", "Partition", "cluster"),
    "runs": ("Run", "grid"),
    "runtime": ("Runtime", "connect"),
    "source": ("Reading",),
    "spectrum": ("Spectrum", "spectrum"),
    "store": ("Matrix", "open_matrix"),
    "vocabulary": ("KINDS",),
    "workflow": ("run_workflow",),
    "writer": ("Writing",),
}
"""Each module with the public names that it holds."""

__all__ = [
    "KINDS",
    "Appended",
    "Checkpoint",
    "ClusterError",
    "Clustering",
    "ClusteringPlan",
    "DasrelError",
    "DasrelWarning",
    "EntropyFuzzyCMeans",
    "EntropyPossibilisticCMeans",
    "Euclideanized",
    "Fleet",
    "FuzzyCMeans",
    "HardCMeans",
    "InputError",
    "Matrix",
    "MemoryLimitError",
    "Model",
    "PartDone",
    "Partition",
    "Policy",
    "PossibilisticCMeans",
    "Progress",
    "Reading",
    "Relation",
    "Run",
    "RunResult",
    "Runtime",
    "Spectrum",
    "Stopped",
    "StoreError",
    "Writing",
    "__version__",
    "append",
    "audit_store",
    "blocks_part",
    "cluster",
    "connect",
    "euclideanize",
    "export_matrix",
    "from_blocks",
    "grid",
    "import_matrix",
    "import_part",
    "open_matrix",
    "pairwise",
    "pairwise_part",
    "partition_picture",
    "plan_clustering",
    "read_workflow",
    "relation",
    "run_workflow",
    "save_clustering",
    "spectrum",
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
