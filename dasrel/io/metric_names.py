"""The metrics of features by their names: what they are called, and the options that each takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dasrel.errors import InputError
from dasrel.names import KINDS, is_similarity
from dasrel.util.text import did_you_mean, shown, some

ALIASES = {
    "chebyshev": ("cheb", "chebychev", "ch", "cheby"),
    "cityblock": ("c", "cblock", "cb", "l1", "manhattan"),
    "correlation": ("co",),
    "cosine": ("cos",),
    "euclidean": ("e", "eu", "euclid", "l2"),
    "hamming": ("matching", "hamm", "h", "ha"),
    "jaccard": ("j", "ja", "jacc"),
    "jensenshannon": ("js",),
    "mahalanobis": ("mah", "mahal"),
    "minkowski": ("m", "mi", "pnorm"),
    "seuclidean": ("s", "se"),
    "sqeuclidean": ("sqe", "sqeuclid"),
}
"""The other names that SciPy and scikit-learn know a metric by."""
BOOLEAN = ("dice", "jaccard", "kulczynski1", "rogerstanimoto", "russellrao", "sokalmichener", "sokalsneath", "yule")
_WEIGHTED = (*BOOLEAN, "braycurtis", "canberra", "chebyshev", "cityblock", "correlation", "cosine", "euclidean",
             "hamming", "sqeuclidean")  # fmt: skip
OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_WEIGHTED, ("w",)),
    "minkowski": ("p", "w"),
    "seuclidean": ("V",),
    "mahalanobis": ("VI",),
    "jensenshannon": (),
    "haversine": (),
    "nan_euclidean": (),
    "simpson": (),
}
"""Every distance, and the options that it takes."""
OF_OBJECTS = ("dtw", "edit", "editdistance", "levenshtein", "lcs", "rmsd", "tm", "tmscore", "unifrac", "emd")
"""Metrics that people ask for and that compare series, texts or structures, which are no rows of numbers."""
KERNELS: dict[str, tuple[str, ...]] = {
    "additive_chi2": (),
    "chi2": ("gamma",),
    "cosine": (),
    "laplacian": ("gamma",),
    "linear": (),
    "poly": ("coef0", "degree", "gamma"),
    "polynomial": ("coef0", "degree", "gamma"),
    "rbf": ("gamma",),
    "sigmoid": ("coef0", "gamma"),
}
"""Every kernel of scikit-learn, and the options that it takes."""


def check_metric(name: str, kind: str, options: Mapping[str, Any]) -> str:
    """Return a metric's full name; raise if there is none, for this kind of matrix and with these options."""
    known = {alias: full for full, others in ALIASES.items() for alias in others} | {full: full for full in OPTIONS}
    if name == "tanimoto":
        if kind != "similarity":
            raise InputError("metric tanimoto gives similarities, 1 for equal rows", remedy="say {kind=similarity}")
        _check_options(name, options, ())
        return name
    if is_similarity(kind):
        if name not in KERNELS:
            remedy = did_you_mean(name, KERNELS, show=3)
            if name in known:
                remedy = f"{name} gives distances: say {{kind=distance}}"
            raise InputError(f"kind {kind} needs one of scikit-learn's kernels, not {shown(name)!r}", remedy=remedy)
        _check_options(name, options, KERNELS[name])
        return name
    if kind not in KINDS:
        raise InputError(f"kind must be one of {', '.join(KINDS)}, not {shown(kind)!r}")
    if name == "wminkowski":
        raise InputError("metric wminkowski is gone from SciPy", remedy="use minkowski with the options p and w")
    if name not in known:
        remedy = did_you_mean(name, sorted(word for word in known if len(word) > 2), show=3)
        if name in KERNELS:
            remedy = f"{name} is a kernel: say {{kind=kernel}}"
        if name in OF_OBJECTS:
            remedy = f"{name} compares whole objects, not rows of features: `dasrel.from_blocks` takes any function"
        raise InputError(f"no metric {shown(name)!r}", remedy=remedy)
    full = known[name]
    _check_options(name, options, OPTIONS[full])
    if not float(options.get("p", 1)) > 0:
        raise InputError(f"metric minkowski: p must be above 0, not {shown(options['p'])}")
    return full


def _check_options(name: str, given: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    if unknown := [shown(key) for key in given if key not in allowed]:
        remedy = f"it takes {', '.join(allowed) if allowed else 'none'}"
        raise InputError(f"metric {shown(name)} has no option {some(unknown)}", remedy=remedy)
