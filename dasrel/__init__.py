"""dasrel clusters objects that are known only by a pairwise matrix, of any size, metric or not."""

from dasrel._version import __version__
from dasrel.errors import DasrelError, DasrelWarning, InputError, MemoryLimitError, StoreError
from dasrel.intake import KINDS, Policy
from dasrel.meter import Progress, watch
from dasrel.store import Matrix, open_matrix

__all__ = [
    "KINDS",
    "DasrelError",
    "DasrelWarning",
    "InputError",
    "Matrix",
    "MemoryLimitError",
    "Policy",
    "Progress",
    "StoreError",
    "__version__",
    "open_matrix",
    "watch",
]
