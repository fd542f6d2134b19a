"""The names that users type: kinds, rules, initialisations, methods and formats.

This is their only definition, for the library, the commands and the workflow files. It imports no other module of
dasrel, so that a command can check its options without loading the library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

KINDS = {
    "distance": "dissimilarities such as Bray-Curtis, RMSD or DTW; 0 means equal (dasrel squares them)",
    "squared-distance": "dissimilarities that already play the role of squared distances; used as they are",
    "similarity": "larger means more similar: identities, alignment scores, TM-scores",
    "kernel": "inner products (a Gram or kernel matrix), such as a Gaussian or string kernel",
}
"""The four kinds of matrix, with a description."""

PARAMETERS: dict[str, dict[str, Any]] = {
    "fcm1": {"fuzzifier": "auto"},
    "fcm2": {"entropy_weight": "auto"},
    "pcm1": {"fuzzifier": 1.2, "entropy_weight": "auto", "eta_scale": "auto", "eta": "mean", "eta_refit": False},
    "pcm2": {"entropy_weight": "auto", "eta_scale": "auto", "eta": "mean", "eta_refit": False},
    "hard": {},
}
"""The rules, with the parameters of each and their defaults."""
RULES = tuple(PARAMETERS)
AUTO = "auto"
"""The rule that stands for fcm1 and fcm2, of which silhouettes choose one."""
OTHER_RULES = {
    "kmeans": "hard", "k-means": "hard", "hcm": "hard", "fcm": "fcm1", "rfcm": "fcm1",
    "nerfcm": "fcm1 with on_negative heal", "irfcm": "fcm1 with a method of euclideanize", "pcm": "pcm1 or pcm2",
}  # fmt: skip
"""What other programs and the papers call the rules, and what to say here."""
TAKES = {
    name: tuple(rule for rule in RULES if name in PARAMETERS[rule])
    for name in ("fuzzifier", "entropy_weight", "eta_scale", "eta", "eta_refit")
}
TAKES["eta_cut"] = TAKES["eta"]
"""The parameters that commands and workflow files give to rules, with the rules that take each."""
INITS = ("sample", "k-means++", "random", "rows")
"""The named initialisations of a run; memberships and models are given as arrays or files."""

METHODS = ("spread", "ultrametric", "power", "exponential", "log")
"""The methods that make a matrix Euclidean."""
FITS = ("power", "exponential", "log")
"""Those of them that have a parameter alpha."""

LINKAGES = {
    "single": "the nearest pair of objects", "complete": "the farthest pair", "average": "the mean of all pairs",
    "weighted": "the mean of the two parts of a cluster", "ward": "the growth of the sum of squares",
}  # fmt: skip
"""The linkages of agglomerative clustering, with what the dissimilarity of two clusters is."""

SEARCHES = ("grid", "evolution")
"""How the number of clusters and the width of a kernel are searched."""

ORDERS = ("vat", "ivat", "labels", "eigen", "none")
"""The orders of the objects in an image."""
VIEWS = ("matrix", "kernel", "proximity", "induced")
"""What an image shows: the stored values, their Gaussian kernel, or what memberships say of two objects."""

INDICES = {
    "silhouette": True,
    "fuzzy_silhouette": True,
    "xie_beni": False,
    "kwon": False,
    "pbm": True,
    "davies_bouldin": False,
    "calinski_harabasz": True,
    "partition_coefficient": True,
    "modified_partition_coefficient": True,
    "partition_entropy": False,
    "within_between": False,
    "pearson_gamma": True,
    "dunn": True,
}
"""The validity indices of partitions, and whether a larger value is better."""

FORMATS = {
    "npy": "NumPy array: square, or condensed (1-D)",
    "npz": "NumPy archive with one such array, or a SciPy sparse matrix",
    "raw": "bare numbers, rows after rows or condensed; needs --shape and --dtype",
    "condensed": "one triangle as a vector (SciPy pdist, R dist) in npy, npz or raw form",
    "mtx": "MatrixMarket, coordinate or array, .gz too",
    "hdf5": "HDF5: unifrac's matrix and order, the only square dataset, or --dataset",
    "mat": "MATLAB, version 5 to 7.3: the only square matrix or condensed vector, or --dataset",
    "zarr": "Zarr array, format 2 or 3, a path or a URL",
    "lsmat": "labelled tab-separated matrix (scikit-bio, QIIME)",
    "csv": "comma-separated matrix, with or without labels",
    "tsv": "tab-separated matrix, with or without labels",
    "phylip": "PHYLIP distance matrix, square or lower triangle (mash, skani, mothur)",
    "qza": "QIIME 2 artifact with a distance matrix",
    "pairs": "one pair per line: two names and a value, in chosen --columns",
    "m8": "BLAST tabular output (BLAST, Foldseek, MMseqs2)",
    "parquet": "pairs in a Parquet file",
}
"""The formats that a matrix can be imported from, with a description."""
EXPORTS = {
    "npy": "NumPy array, n x n",
    "condensed": "NumPy array of the n(n-1)/2 pairs in SciPy's order",
    "lsmat": "labelled tab-separated text (scikit-bio, pandas)",
    "phylip": "PHYLIP square distance matrix",
    "zarr": "plain Zarr v3 array, n x n",
}
"""The formats that a store can be exported to, with a description."""

if TYPE_CHECKING:
    KindName = str
    RuleName = str
    MethodName = str
    ExportName = str
    OrderName = str
    IndexName = str
    SearchName = str
    ViewName = str
else:  # a type checker cannot read these; Typer and pydantic can
    KindName = Literal[tuple(KINDS)]
    RuleName = Literal[(*RULES, AUTO)]
    MethodName = Literal[METHODS]
    ExportName = Literal[tuple(EXPORTS)]
    OrderName = Literal[ORDERS]
    IndexName = Literal[tuple(INDICES)]
    SearchName = Literal[SEARCHES]
    ViewName = Literal[VIEWS]


def is_similarity(kind: str) -> bool:
    """Return whether larger values of this kind mean more similar objects: similarities and kernels.

    >>> is_similarity("kernel"), is_similarity("squared-distance")
    (True, False)
    """
    return kind in ("similarity", "kernel")


def explain_kinds(*, lines: bool = False) -> str:
    """Return a description of the four kinds, in one sentence or one per line.

    >>> explain_kinds().split("; ")[-1]
    'kernel: inner products (a Gram or kernel matrix), such as a Gaussian or string kernel'
    """
    if lines:
        return "\n".join(f"  {name:<17} {meaning}" for name, meaning in KINDS.items())
    return "; ".join(f"{name}: {meaning}" for name, meaning in KINDS.items())


def linkage_fault(method: object, *, as_similarity: bool) -> str:
    """Return why a linkage cannot be computed by independent merges; an empty string if it can."""
    if method in ("centroid", "median"):
        return (
            f"{method} linkage is not reducible: a union may be nearer to a third cluster than either of its parts was,"
            " so that pairs cannot be merged independently; use average or ward"
        )
    if method not in LINKAGES:
        return f"no linkage {str(method)[:40]!r}; use one of {', '.join(LINKAGES)}"
    return "Ward's linkage needs dissimilarities, not similarities" if method == "ward" and as_similarity else ""
