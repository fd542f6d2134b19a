"""Distances and kernels between tiles of features.

The metrics of features: their names and options, what they need from all rows, and the values of one tile.

Distances come from SciPy's `cdist` and from scikit-learn, kernels from scikit-learn. Two are computed here because
they can be had much faster: Euclidean distances by matrix products, and Simpson's dissimilarity on packed bits; and one
because neither has it: Tanimoto's similarity x'y / (x'x + y'y - x'y) of L7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from dasrel.errors import InputError
from dasrel.io.features import Features, array_checksum, check_values, dense, is_sparse, row_block
from dasrel.io.options import BOOLEAN, check_metric
from dasrel.names import is_similarity
from dasrel.util import Array, Names, limits
from dasrel.util.text import count_text, shown, some

SIDE = 512
"""Side of the blocks in which a tile is computed: 2 MiB of float64, so that the passes over it stay in the cache."""
BITS = (*BOOLEAN, "hamming", "simpson", "tanimoto")
"""Metrics of bits, for which bytes above 1 are most often eight bits each."""
ALREADY_SQUARED = ("simpson", "sqeuclidean")
"""Metrics whose values play the role of squared distances already, so kind squared-distance keeps them as they are."""
SPARSE = ("cityblock", "cosine")
"""Distances that scikit-learn computes from sparse rows as they are; for the others a strip is made dense."""


@dataclass(frozen=True)
class Metric:
    """A metric made ready: it is pickled with every task, and holds all that it needs from the complete features."""

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    centre: Array | None = None
    """The mean of all rows, for Euclidean distances of dense features: products of small numbers lose little."""
    precision: float = 1e-6
    """Squared Euclidean distances below this part of the squared norms are computed again, directly."""

    @property
    def is_kernel(self) -> bool:
        """Whether larger means more similar."""
        return is_similarity(self.kind)

    @property
    def squares(self) -> bool:
        """Whether the square of the metric's value is stored."""
        return self.kind == "squared-distance" and self.name not in ALREADY_SQUARED

    @property
    def by_products(self) -> bool:
        """Whether these are Euclidean distances that matrix products can give."""
        return not self.is_kernel and self.name in ("euclidean", "sqeuclidean") and not self.options

    @property
    def takes_sparse(self) -> bool:
        """Whether sparse rows are used as they are; for other metrics each strip of rows is made dense."""
        if self.is_kernel:
            return self.name not in ("chi2", "additive_chi2", "tanimoto")
        return self.by_products or (self.name in SPARSE and not self.options)

    def memory(self, tile: int, strip_bytes: int, itemsize: int) -> int:
        """Return the anonymous memory, in bytes, that `tile_values` takes at its peak, its result included."""
        side = min(tile, SIDE)
        blocks = 12 * side * side * 8 + 4 * -(-strip_bytes * side // tile)
        return tile * tile * itemsize + 4 * strip_bytes + blocks


def resolve(name: str, kind: str, options: Mapping[str, Any] | None) -> Metric:
    """Check a metric's name, the kind of matrix it can give, and its options; the nearest names are suggested."""
    given = dict(options or {})
    full = check_metric(name, kind, given)
    if not is_similarity(kind):
        given = {key: np.asarray(value, dtype=np.float64) if key != "p" else value for key, value in given.items()}
    return Metric(full, kind, given)


def made_ready(metric: Metric, features: Features, dtype: np.dtype[Any]) -> Metric:
    """Return the metric with what it needs from all rows: the mean, the variances, the inverse covariance.

    Cost: reads the features once or twice, a few MB at a time; holds p values, or p x p for Mahalanobis.
    """
    n, p = features.shape
    if metric.name == "haversine" and p != 2:
        raise InputError(
            f"metric haversine for features of {count_text(p, 'column')}",
            remedy="give latitude and longitude in radians",
        )
    options = dict(metric.options)
    centre = None
    if metric.by_products and not is_sparse(features.data):
        centre = _mean(features)
    elif metric.name == "seuclidean" and "V" not in options:
        if n < 2:
            raise InputError(
                "metric seuclidean takes variances from the features, and they have one row",
                remedy="give 2 rows or more, or the option V",
            )
        mean = _mean(features)
        options["V"] = sum(((dense(rows) - mean) ** 2).sum(axis=0) for _, rows in features.chunks()) / (n - 1)
        if flat := [features.column(int(k)) for k in np.flatnonzero(options["V"] == 0)]:
            raise InputError(
                f"metric seuclidean divides by variances, and these are 0: {some(flat)}", remedy="drop them"
            )
    elif metric.name == "mahalanobis" and "VI" not in options:
        mean = _mean(features)
        total = np.zeros((p, p))
        for _, rows in features.chunks():
            centred = dense(rows) - mean
            total += centred.T @ centred
        if n <= p or np.linalg.matrix_rank(total) < p:
            raise InputError(
                f"metric mahalanobis: the covariance of {count_text(n, 'row')} and {count_text(p, 'column')} has no"
                " inverse",
                remedy="drop columns that depend on others, or give the option VI",
            )
        options["VI"] = np.linalg.inv(total / (n - 1))
    ready = Metric(metric.name, metric.kind, options, centre, 1e-6 if dtype.itemsize == 4 else 1e-3)
    try:  # two rows say whether the libraries take these options, before a store is begun
        first = row_block(features.data, slice(0, 2))
        tile_values(ready, first, first, same=True, dtype=np.dtype(np.float64))
    except (ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"metric {metric.name}: {shown(error, limit=200)}") from error
    return ready


def check_features(metric: Metric, features: Features, names: Names) -> None:
    """Raise for missing and infinite features, for rows without a value, and for bytes that seem to hold 8 bits each.

    Cost: reads the features once, twice if they are bytes, a few MB at a time.
    """
    if metric.name in BITS and not is_sparse(features.data) and row_block(features.data, slice(0, 1)).dtype == np.uint8:
        largest = 0
        for _, rows in features.chunks():
            limits.check()
            largest = max(largest, int(rows.max()))
        if largest > 1:
            raise InputError(
                f"metric {metric.name} is of bits, and {features.named()} holds bytes up to {largest}",
                remedy="say {packed_bits=True} if each byte holds 8 bits; if they are counts or codes, save them as"
                " another type, such as int16",
            )
    bad_rows, reason = _needs(metric)
    check_values(features, names=names, allow_nan=metric.name == "nan_euclidean", bad_rows=bad_rows, reason=reason)


def _needs(metric: Metric) -> tuple[Callable[[Any], Any] | None, str]:
    """Return a function that finds the rows of a block that the metric has no value for, and the reason."""
    name = metric.name
    if name == "simpson":
        return lambda rows: ~(dense(rows) > 0.5).any(axis=1), "metric simpson: images without ink (nothing above 0.5)"
    if name == "tanimoto":
        return lambda rows: ~dense(rows).any(axis=1), "metric tanimoto has no value for rows of zeros"
    if metric.is_kernel and name not in ("chi2", "additive_chi2"):
        return None, ""
    if name in ("chi2", "additive_chi2", "jensenshannon"):
        empty = name == "jensenshannon"
        why = f"metric {name} needs features of 0 or more" + (", not all 0" if empty else "")
        return lambda rows: (dense(rows) < 0).any(axis=1) | (empty & ~dense(rows).any(axis=1)), f"{why}, in these rows"
    if name in BOOLEAN:
        return lambda rows: ~np.isin(dense(rows), (0, 1)).all(axis=1), (
            f"metric {name} needs features that are true or false (1 or 0), in these rows they are not"
        )
    if name == "cosine":
        return lambda rows: ~dense(rows).any(axis=1), "metric cosine has no value for rows of zeros"
    if name == "correlation":
        return lambda rows: np.ptp(dense(rows), axis=1) == 0, "metric correlation has no value for constant rows"
    return None, ""


def described(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as plain values for the store's attributes; a long array by its checksum."""
    plain: dict[str, Any] = {}
    for key, value in options.items():
        array = np.asarray(value)
        if array.size > 64:
            plain[key] = f"array {array.shape}, crc32c: {array_checksum(array):08x}"
        else:
            plain[key] = array.tolist()
    return plain


def tile_values(metric: Metric, rows: Any, columns: Any, *, same: bool, dtype: np.dtype[Any]) -> Array:
    """Return the values of these rows of features against those, as they are stored.

    With `same`, rows and columns are the same objects: half of the blocks is computed, the result is exactly
    symmetric, and the diagonal of distances is exactly 0.
    """
    block = _block_function(metric, rows, columns)
    result = np.empty((rows.shape[0], columns.shape[0]), dtype=dtype)
    for r in range(0, result.shape[0], SIDE):
        for c in range(r if same else 0, result.shape[1], SIDE):
            here = (slice(r, min(r + SIDE, result.shape[0])), slice(c, min(c + SIDE, result.shape[1])))
            values = block(*here)
            if metric.squares and not metric.by_products:
                values = np.square(values)
            if same and r == c:
                values = np.triu(values) + np.triu(values, 1).T
                if not metric.is_kernel:
                    np.fill_diagonal(values, 0)
            try:
                with np.errstate(over="raise"):
                    result[here] = values
            except FloatingPointError:
                raise InputError(
                    f"metric {metric.name} gives values up to {values.max():g}, too large for {dtype}",
                    remedy="use {Writing.dtype=float64}",
                ) from None
            if same and c > r:
                result[here[1], here[0]] = result[here].T
    return result


Block = Callable[[slice, slice], Array]


def _block_function(metric: Metric, rows: Any, columns: Any) -> Block:
    """Return a function that computes one block of a tile; what all blocks share is computed once, here."""
    if metric.by_products:
        return _euclidean(metric, rows, columns)
    if metric.name == "simpson":
        return _simpson(rows, columns)
    if metric.name == "tanimoto":
        return _tanimoto(dense(rows), dense(columns))
    name, options = metric.name, dict(metric.options)
    sparse = is_sparse(rows) and metric.takes_sparse
    function: Callable[[Any, Any], Any]
    if metric.is_kernel or sparse or name in ("haversine", "nan_euclidean"):
        from sklearn.metrics import pairwise  # here, because it takes a second to import

        known = pairwise.kernel_metrics() if metric.is_kernel else pairwise.distance_metrics()
        function = partial(known[name], **options)
    else:
        function = partial(cdist, metric=name, **options)
    x, y = (rows, columns) if sparse else (dense(rows), dense(columns))
    if name in BOOLEAN:
        x, y = x.astype(bool), y.astype(bool)

    def block(r: slice, c: slice) -> Array:
        values = np.asarray(function(x[r], y[c]))
        if name in ("cosine", "correlation") and not metric.is_kernel:
            np.clip(values, 0, 2, out=values)  # 1 - cosine is in [0, 2]; only rounding leads out of it
        if name == "jensenshannon":
            # All rows are known to have a value, so NaN is the root of a sum that rounding took below 0.
            values[np.isnan(values)] = 0
        return values

    return block


def _euclidean(metric: Metric, rows: Any, columns: Any) -> Block:
    """Compute |x|^2 + |y|^2 - 2 x.y in one product, and directly where the sum cancels.

    The product's error is a few float64 roundings of |x|^2 + |y|^2 (of the centred rows). Pairs nearer than
    `precision` times that are computed from the differences, as SciPy does, so that the squared distances are right
    to about 1e-9 of their value in a float32 store (precision 1e-6) and 1e-12 in a float64 store (1e-3), however far
    from the origin the objects lie.
    """
    sparse = is_sparse(rows)
    x: Any = rows.astype(np.float64) if sparse else dense(rows)
    y: Any = columns.astype(np.float64) if sparse else dense(columns)
    if sparse:
        x_norms = np.asarray(x.multiply(x).sum(axis=1)).ravel()
        y_norms = np.asarray(y.multiply(y).sum(axis=1)).ravel()
        left, right = x * -2.0, y
    else:
        left, right = x - metric.centre, y - metric.centre
        x_norms, y_norms = np.einsum("ij,ij->i", left, left), np.einsum("ij,ij->i", right, right)
        left *= -2
        left = np.column_stack([left, x_norms, np.ones(x.shape[0])])
        right = np.column_stack([right, np.ones(y.shape[0]), y_norms])
    rooted = metric.name == "euclidean" and metric.kind == "distance"

    def block(r: slice, c: slice) -> Array:
        squared: Array
        if sparse:
            squared = (left[r] @ right[c].T).toarray()
            squared += x_norms[r, None]
            squared += y_norms[None, c]
        else:
            squared = left[r] @ right[c].T
        limit = metric.precision * (x_norms[r].max() + y_norms[c].max())
        if not squared.min() > limit:  # written so that NaN, from norms beyond float64, takes this way too
            near = ~(squared > metric.precision * (x_norms[r, None] + y_norms[None, c]))
            _directly(squared, near, x[r], y[c])
        return np.sqrt(squared, out=squared) if rooted else squared

    return block


def _directly(squared: Array, near: Array, x: Any, y: Any) -> None:
    """Set the squared distances of the pairs in `near` from the differences of their features."""
    i, j = np.nonzero(near)
    sparse = is_sparse(x)
    if i.size * 16 > near.size and not sparse:
        np.copyto(squared, cdist(x, y, "sqeuclidean"), where=near)
        return
    step = max(1, SIDE * SIDE // max(1, x.shape[1]))
    for k in range(0, i.size, step):
        a, b = i[k : k + step], j[k : k + step]
        difference = x[a] - y[b]
        if sparse:
            squared[a, b] = np.asarray(difference.multiply(difference).sum(axis=1)).ravel()
        else:
            squared[a, b] = np.einsum("ij,ij->i", difference, difference)


def _tanimoto(x: Array, y: Array) -> Block:
    """Compute x'y / (x'x + y'y - x'y), which is at most 1."""
    x_norms, y_norms = np.einsum("ij,ij->i", x, x), np.einsum("ij,ij->i", y, y)

    def block(r: slice, c: slice) -> Array:
        products = x[r] @ y[c].T
        values: Array = products / (x_norms[r, None] + y_norms[None, c] - products)
        return np.minimum(values, 1.0, out=values)

    return block


def _simpson(rows: Any, columns: Any) -> Block:
    """Compute equations 45 and 46 of Filippone 2009: r = 2 - 2 a / min(a + b, a + c), ink being above 0.5.

    `a` counts the pixels with ink in both images: AND and bit count of 64 pixels at a time. Computed as
    2 (min - a) / min, whose numerator is exact.
    """
    x, x_ink = _packed(rows)
    y, y_ink = _packed(columns)
    height = 64  # rows at a time: the three arrays of one step then stay in the cache

    def block(r: slice, c: slice) -> Array:
        across = c.stop - c.start
        values = np.empty((r.stop - r.start, across))
        common = np.empty((height, across), dtype=np.uint64)
        bits = np.empty((height, across), dtype=np.uint8)
        both = np.empty((height, across), dtype=np.uint32 if x.shape[0] >= 1024 else np.uint16)
        for top in range(r.start, r.stop, height):
            bottom = min(top + height, r.stop)
            m = bottom - top
            both[:m] = 0
            for word_x, word_y in zip(x, y, strict=True):
                np.bitwise_and(word_x[top:bottom, None], word_y[None, c], out=common[:m])
                np.bitwise_count(common[:m], out=bits[:m])
                both[:m] += bits[:m]
            least = np.minimum(x_ink[top:bottom, None], y_ink[None, c])
            out = values[top - r.start : bottom - r.start]
            np.subtract(least, both[:m], out=out)
            out *= 2
            out /= least
        return values

    return block


def _packed(rows: Any) -> tuple[Array, Array]:
    """Return images as bits, 64 pixels to a word, one row per word; and each image's count of ink."""
    whole = rows.toarray() if is_sparse(rows) else np.asarray(rows)
    ink = whole > 0.5
    packed = np.packbits(ink, axis=1)
    packed = np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8)))
    words = np.ascontiguousarray(packed).view(np.uint64).T
    return np.ascontiguousarray(words), ink.sum(axis=1, dtype=np.float64)


def _mean(features: Features) -> Array:
    total = np.zeros(features.shape[1])
    for _, rows in features.chunks():
        total += dense(rows).sum(axis=0)
    return total / features.shape[0]
