"""The words that commands and workflow files take. They stand here so that neither need load the library to check them.

A test keeps them equal to what the library knows.
"""

from __future__ import annotations

RULES = ("fcm1", "fcm2", "pcm1", "pcm2", "hard")
TAKES = {
    "fuzzifier": ("fcm1", "pcm1"),
    "entropy-weight": ("fcm2", "pcm1", "pcm2"),
    "spread-scale": ("pcm1", "pcm2"),
}
"""Which rules take which number."""
STARTS = ("random", "rows", "k-means++")
METHODS = ("spread", "ultrametric", "power", "exponential", "log")
EXPORTS = ("npy", "condensed", "lsmat", "phylip", "zarr")
