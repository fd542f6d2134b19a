"""Formulas of the five c-means rules, as pure functions of arrays: memberships, distances, objectives, spreads.

A stack of runs of one rule with the same number of clusters is an array of shape (runs, c, n), float64, objects last.
D is the (n, n) matrix of squared dissimilarities, U the memberships, theta the exponent of a rule, and
V = u^theta / sum_h u^theta the weights of the centres. The matrix itself is not needed here, only the product
Y = D V. One iteration of a stack is

    weights(U) -> scan: Y = D V -> distances(Y) -> clip_negative or heal -> objective(U) -> memberships

Papers: F09 is Filippone 2009, K14 is Khalilia and others 2014, L7 is Koutroumbas, unit 7.

All loops are over runs, one at a time: a run then has the same bits whatever else is in the stack, its parameters are
scalars, and its (c, n) slice stays in the cache.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dasrel.errors import InputError
from dasrel.names import RULES
from dasrel.util.text import shown

Array = NDArray[np.float64]


SYMBOLS = {"fcm1": ["m"], "fcm2": ["lam"], "pcm1": ["m", "eta"], "pcm2": ["eta"], "hard": []}
"""Which of m, lam and eta a rule takes, F09 tables 1 and 2."""
_NAMES = {"m": "fuzzifier", "lam": "entropy_weight", "eta": "eta"}
_BLOCK = 65_536  # numbers of one run worked on at a time: 512 kB, so that the steps of an update stay in the cache
_TINY = float(np.finfo(np.float64).tiny)


class Rule:
    """A rule and its parameters, for one run or a stack of runs.

    Parameters
    ----------
    name
        One of `RULES`.
    m, lam
        Fuzzifier of fcm1 and pcm1, above 1; weight of the entropy in fcm2, above 0. One number, or one per run.
    eta
        Spreads of the clusters in pcm1 and pcm2, not negative: (c,) for all runs, or (runs, c). A cluster of spread
        zero holds only the objects at distance zero.

    >>> Rule("pcm1", m=1.5, eta=[1.0, 2.0]).theta
    array([1.5])
    """

    def __init__(
        self, name: str, *, m: ArrayLike | None = None, lam: ArrayLike | None = None, eta: ArrayLike | None = None
    ) -> None:
        if name not in RULES:
            raise InputError(f"unknown rule {shown(name)!r}", remedy=f"use one of {', '.join(RULES)}")
        for key, value in {"m": m, "lam": lam, "eta": eta}.items():
            if (value is None) == (key in SYMBOLS[name]):
                verb = "needs a value for" if value is None else "takes no"
                raise InputError(f"the rule {name} {verb} {_NAMES[key]}")
        self.name = name
        self.m = _parameter("m", m, above=1.0, ndim=1)
        self.lam = _parameter("lam", lam, above=0.0, ndim=1)
        self.eta = _parameter("eta", eta, above=-_TINY, ndim=2)

    @property
    def theta(self) -> Array:
        """Exponent of the memberships, (1,) or (runs,): m for fcm1 and pcm1, 1 for the others (F09 table 1)."""
        return self.m

    def take(self, keep: NDArray[np.intp] | NDArray[np.bool_]) -> Rule:
        """Return the rule for some of the runs, by an index array or a mask. Shared parameters stay shared."""
        given = {key: getattr(self, key) for key in SYMBOLS[self.name]}
        return Rule(self.name, **{key: value if len(value) == 1 else value[keep] for key, value in given.items()})


def _parameter(key: str, value: ArrayLike | None, *, above: float, ndim: int) -> Array:
    if value is None:
        return np.ones((1,) * ndim)  # not used by the rule; theta is 1 for the other rules
    array = np.array(value, dtype=np.float64, ndmin=ndim)
    if array.ndim != ndim:
        raise InputError(
            f"{_NAMES[key]} has shape {array.shape}", remedy=f"give at most {ndim} dimension{'s' * (ndim - 1)}"
        )
    wrong = ~(np.isfinite(array) & (array > above))
    if wrong.any():
        limit = "not negative" if key == "eta" else f"above {above:g}"
        raise InputError(f"{_NAMES[key]} is {float(array[wrong][0])}", remedy=f"give a finite number {limit}")
    return array


NEGLIGIBLE = 1e-30
"""Weights of less than this share of a centre's largest are zero. As float32 they would be subnormal, with which
products take twenty times as long, and they change no digit of a sum."""


class Weights(NamedTuple):
    """The centres of a stack, written as weights of the objects.

    V is (runs, c, n), each row with sum 1. The rest is (runs, c): `mass` is sum_h u^theta, `norms` is ||v_i||^2, and
    `empty` marks clusters without any membership; their mass is 0 and their row is 1/n, the grand mean, until the
    caller seeds them again.
    """

    V: Array
    mass: Array
    norms: Array
    empty: NDArray[np.bool_]


def given_weights(V: Array) -> Weights:
    """Return centres that are given as weights (runs, c, n), without memberships: their mass is 1."""
    norms = (V * V).sum(axis=2)
    return Weights(V, np.ones_like(norms), norms, np.zeros(norms.shape, dtype=np.bool_))


def weights(U: Array, theta: ArrayLike, *, out: Array | None = None) -> Weights:
    """Return V = u^theta / sum_h u^theta (F09 eq. 23, K14 eq. 5) for memberships (runs, c, n), however small.

    Weights below `NEGLIGIBLE` times the largest of their centre are zero.

    theta is one number or one per run; V is written to `out`, which may be U.

    Cost: no scan; V (runs, c, n) and one scratch array (c, n).
    """
    runs, c, n = U.shape
    V = np.empty_like(U) if out is None else out
    mass, norms = np.empty((runs, c)), np.empty((runs, c))
    empty = np.empty((runs, c), dtype=np.bool_)
    scratch = np.empty((c, n))
    for r, power in enumerate(_per_run(theta, runs)):
        # divided by the largest of its row, so that no power underflows to a row of zeros
        top = U[r].max(axis=1)
        empty[r] = top <= 0
        v = V[r]
        np.divide(U[r], np.where(empty[r], 1.0, top)[:, None], out=v)
        _power(v, float(power))
        v *= v >= NEGLIGIBLE
        total = v.sum(axis=1)
        mass[r] = top**power * total
        v /= np.where(empty[r], 1.0, total)[:, None]
        v[empty[r]] = 1.0 / n
        norms[r] = np.multiply(v, v, out=scratch).sum(axis=1)
    return Weights(V, mass, norms, empty)


def distances(Y: Array, W: Weights, *, beta: ArrayLike = 0.0, out: Array | None = None) -> tuple[Array, Array]:
    """Return the distances of all objects to all centres, from the product alone.

    d_ik = (D v_i)_k - v_i'D v_i / 2 (K14 eq. 3, equal to F09 eq. 33), plus beta/2 ||v_i - e_k||^2 when beta has been
    added to all dissimilarities off the diagonal (beta = -2 lambda_1 is the shift of F09).

    Parameters
    ----------
    Y, W
        The product D V, (runs, c, n), of the relation without the spread, and the weights that were multiplied.
    beta
        The spread, one number or one per run.
    out
        Array for the distances; may be Y.

    Returns
    -------
    d, half
        The distances (runs, c, n), and v_i'D v_i / 2, (runs, c), without the spread, for `objective` and
        `new_distances`.

    Cost: no scan; d (runs, c, n) and one scratch array (c, n).
    """
    runs, c, n = Y.shape
    d = np.empty_like(Y) if out is None else out
    half = np.empty((runs, c))
    scratch = np.empty((c, n))
    for r, spread in enumerate(_per_run(beta, runs)):
        half[r] = 0.5 * np.multiply(W.V[r], Y[r], out=scratch).sum(axis=1)
        np.subtract(Y[r], half[r][:, None], out=d[r])
        if spread != 0:
            d[r] += np.multiply(_from_corners(W, r, scratch), 0.5 * spread, out=scratch)
    return d, half


def new_distances(Y: Array, half: Array, norms: Array, *, beta: ArrayLike = 0.0) -> Array:
    """Return the distances of new objects to the centres: D* v_i - v_i'D v_i / 2, plus beta/2 (1 + ||v_i||^2).

    Y is (runs, c, k): the dissimilarities of k new objects to the n old ones, times V; half and norms are (runs, c),
    from `distances` and `weights`. A new object is none of the old ones: all its dissimilarities get the spread.
    """
    spread = _per_run(beta, len(Y))[:, None]
    moved: Array = Y + (0.5 * spread * (1.0 + norms) - half)[:, :, None]
    return moved


def rounding(n: int, largest: float, *, dtype: DTypeLike = np.float64) -> float:
    """Return how far below zero rounding can bring a distance: n eps max D, eps that of the product's arithmetic."""
    return n * float(np.finfo(dtype).eps) * largest


def clip_negative(d: Array, *, tol: ArrayLike) -> NDArray[np.intp]:
    """Set distances in [-tol, 0) to zero, in place, and count per run those that are below -tol (left as they are)."""
    counts = np.zeros(len(d), dtype=np.intp)
    for r, small in enumerate(_per_run(tol, len(d))):
        if d[r].min() < 0:
            below = d[r] < -small
            counts[r] = np.count_nonzero(below)
            np.maximum(d[r], 0.0, out=d[r], where=~below)
    return counts


def heal(d: Array, W: Weights) -> Array:
    """Raise negative distances to zero by the smallest sufficient spread, run by run and in place (NERFCM).

    delta = max over i, k of -2 d_ik / ||v_i - e_k||^2, and d_ik += delta/2 ||v_i - e_k||^2. Call `clip_negative`
    first: next to a centre that is an object, rounding divided by nearly nothing would give a huge delta. Returns
    delta (runs,), to be added to the beta of each run; 0 where nothing was negative.
    """
    delta = np.zeros(len(d))
    scratch = np.empty(d.shape[1:])
    for r in range(len(d)):
        negative = d[r] < 0
        if not negative.any():
            continue
        apart = _from_corners(W, r, scratch)
        usable = negative & (apart > 0)
        if usable.any():
            delta[r] = (-2.0 * d[r][usable] / apart[usable]).max()
            d[r] += np.multiply(apart, 0.5 * delta[r], out=scratch)
        np.maximum(d[r], 0.0, out=d[r])  # the one that determined delta is zero now, up to rounding
    return delta


def memberships(rule: Rule, d: Array, *, out: Array | None = None) -> Array:
    """Return the memberships that minimise the objective of a rule at the given distances (F09 table 2).

    fcm1 and pcm1 need distances that are not negative. fcm1: an object at distance zero from some centres is split
    equally among them. hard: the lowest index wins a tie. The memberships are written to `out`, which may be d.

    Cost: no scan; U (runs, c, n) and a fixed scratch of half a megabyte.
    """
    runs, c, n = d.shape
    U = np.empty_like(d) if out is None else out
    m, lam = _per_run(rule.m, runs), _per_run(rule.lam, runs)
    step = max(256, _BLOCK // c)
    # 0/0 and x/0 occur only where the value is set explicitly below, or is the right limit
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for r in range(runs):
            for at in range(0, n, step):
                part, u = d[r, :, at : at + step], U[r, :, at : at + step]
                match rule.name:
                    case "fcm1":
                        _fcm1(part, u, float(m[r]))
                    case "fcm2":
                        _fcm2(part, u, float(lam[r]))
                    case "hard":
                        _hard(part, u)
                    case _:
                        eta = np.broadcast_to(rule.eta, (runs, c))[r]
                        _pcm(part, u, eta, float(m[r]) if rule.name == "pcm1" else None)
    return U


def _fcm1(d: Array, u: Array, m: float) -> None:
    """u_ik = 1 / sum_j (d_ik / d_jk)^(1/(m-1)), F09 D.6. Each ratio is to the nearest centre, so at most 1."""
    low = d.min(axis=0)
    (zero,) = np.nonzero(low == 0)
    here = d[:, zero] == 0
    np.divide(low, d, out=u)
    _power(u, 1.0 / (m - 1.0))
    u /= u.sum(axis=0)
    if zero.size:
        u[:, zero] = here / here.sum(axis=0)


def _fcm2(d: Array, u: Array, lam: float) -> None:
    """u_ik = softmax_i(-d_ik / lambda), F09 D.16, relative to the nearest centre."""
    np.subtract(d.min(axis=0), d, out=u)
    u /= lam
    np.exp(u, out=u)
    u /= u.sum(axis=0)


def _pcm(d: Array, u: Array, eta: Array, m: float | None) -> None:
    """pcm1: 1 / (1 + (d/eta)^(1/(m-1))), F09 D.21; pcm2 (no m): exp(-d/eta), F09 D.29."""
    none = eta == 0
    here = d[none] == 0
    np.divide(d, eta[:, None], out=u)
    if m is None:
        np.negative(u, out=u)
        np.exp(u, out=u)
    else:
        _power(u, 1.0 / (m - 1.0))
        u += 1.0
        np.reciprocal(u, out=u)
    u[none] = here


def _hard(d: Array, u: Array) -> None:
    """Write 1 at the nearest centre, the first of them on a tie, and 0 elsewhere."""
    low = d.min(axis=0)
    free = np.ones(low.shape, dtype=np.bool_)
    for i in range(len(d)):
        hit = (d[i] == low) & free
        free &= ~hit
        u[i] = hit


def objective(rule: Rule, U: Array, W: Weights, half: Array, *, beta: ArrayLike = 0.0) -> Array:
    """Return J = G/2 + H + alpha (A - B) of each run, alpha = beta/2: updates minimise it and never increase it.

    G(U) = sum_i u_i^theta' D u_i^theta / sum_h u_ih^theta (F09 eq. 25), so G/2 = sum_i mass_i half_i and no matrix is
    needed; H is the entropy of F09 table 1; A and B are those of `shift_terms`. W are the weights of U, and half is
    v_i'D v_i / 2 as `distances` returned it for them.

    Cost: no scan; the result is (runs,), one scratch array (c, n).
    """
    spread = _per_run(beta, len(U))[:, None]
    J: Array = (W.mass * (half + 0.5 * spread * (1.0 - W.norms))).sum(axis=1)
    if rule.name == "fcm2":
        J += rule.lam * _u_log_u(U).sum(axis=1)
    elif rule.name == "pcm1":
        scratch = np.empty(U.shape[1:])
        rest = np.empty(U.shape[:2])
        for r, m in enumerate(_per_run(rule.theta, len(U))):
            np.subtract(1.0, U[r], out=scratch)
            _power(scratch, float(m))
            rest[r] = scratch.sum(axis=1)
        J += (rule.eta * rest).sum(axis=1)
    elif rule.name == "pcm2":
        J += (rule.eta * (_u_log_u(U) - U.sum(axis=2))).sum(axis=1)
    return J


def shift_terms(W: Weights) -> tuple[Array, Array]:
    """Return A(U) = sum u^theta and B(U) = sum_i sum_h u^(2 theta) / sum_h u^theta of each run (F09 eq. 40, 41)."""
    return W.mass.sum(axis=1), (W.mass * W.norms).sum(axis=1)


def eta_from_weights(V: Array, d: Array, *, scale: float = 1.0) -> Array:
    """Return eta_i = scale * sum_h u^theta d / sum_h u^theta, (runs, c): F09 D.24; scale is the papers' gamma."""
    eta = np.empty(d.shape[:2])
    scratch = np.empty(d.shape[1:])
    for r in range(len(d)):
        eta[r] = scale * np.multiply(V[r], d[r], out=scratch).sum(axis=1)
    return eta


def eta_above_cut(U: Array, d: Array, *, cut: float) -> tuple[Array, NDArray[np.bool_]]:
    """Return the mean of d over the members of each cluster with u > cut (L7), and a mask of clusters without any.

    Both are (runs, c); eta is 0 where the mask is true.
    """
    eta, none = np.zeros(d.shape[:2]), np.zeros(d.shape[:2], dtype=np.bool_)
    for r in range(len(d)):
        above = U[r] > cut
        count = above.sum(axis=1)
        none[r] = count == 0
        eta[r] = d[r].sum(axis=1, where=above) / np.maximum(count, 1)
    return eta, none


def eta_overall(total: float, n: int, *, c: int, q: float, beta: float = 0.0) -> float:
    """Return eta = b / (q sqrt(c)) (L7), b = sum D / (2 n^2) the mean squared distance to the grand mean.

    `total` is the sum of all n^2 elements of D, q the fuzzifier (1 for pcm2). A spread adds beta n (n - 1) to it.
    """
    return float((total / n + beta * (n - 1)) / (2.0 * n) / (q * np.sqrt(c)))


def entropy(U: Array) -> Array:
    """Return O(U) = -sum u log u of each run, natural logarithm (F09 eq. 43)."""
    total: Array = -_u_log_u(U).sum(axis=1)
    return total


def is_flat(U: Array, *, tol: float = 1e-2) -> NDArray[np.bool_]:
    """Return which runs are flat: every object has the same membership in all clusters, to within tol.

    That is U = 1/c for the fuzzy rules (m or lambda too large), coincident clusters for the possibilistic ones. A
    single cluster is never flat.
    """
    flat = np.zeros(len(U), dtype=np.bool_)
    if U.shape[1] > 1:
        for r in range(len(U)):
            flat[r] = (U[r].max(axis=0) - U[r].min(axis=0)).max() <= tol
    return flat


def change(new: Array, old: Array, *, p: float = np.inf) -> Array:
    """Return the p-norm of new - old, each run as one long vector (F09 eq. 22); by default max |U - U'|."""
    size = np.empty(len(new))
    scratch = np.empty(new.shape[1:])
    for r in range(len(new)):
        np.abs(np.subtract(new[r], old[r], out=scratch), out=scratch)
        top = scratch.max()
        size[r] = top if top == 0 or np.isinf(p) else top * ((scratch / top) ** p).sum() ** (1.0 / p)
    return size


def labels(U: Array) -> NDArray[np.intp]:
    """Return the cluster of largest membership of each object, (runs, n); the lowest index wins a tie."""
    largest: NDArray[np.intp] = U.argmax(axis=1)
    return largest


def matching_order(before: Array, now: Array) -> NDArray[np.intp]:
    """Return which column of `now` is which column of `before`, for memberships (n, c) both.

    It is the assignment with the largest total overlap, and so the least sum of squared differences.

    >>> matching_order(np.eye(3), np.eye(3)[:, [2, 0, 1]])
    array([1, 2, 0])
    """
    from scipy.optimize import linear_sum_assignment  # slow to import, and needed only here

    overlap = before.T @ now
    overlap = overlap + 1e-9 * overlap.max(initial=0.0) * np.eye(len(overlap))  # equal clusters keep their order
    order: NDArray[np.intp] = linear_sum_assignment(overlap, maximize=True)[1]
    return order


def induced_dissimilarity(U: Array, objects: NDArray[np.intp]) -> Array:
    """Return D(U) = 1 - U'U / max(U'U) (K14 eq. 17) of one run's memberships (c, n), for k chosen objects.

    The maximum is that over all n objects. It is on the diagonal of U'U (Cauchy-Schwarz), so it costs O(c n).

    Cost: no scan; the result is (k, k).
    """
    top = np.einsum("ik,ik->k", U, U).max()
    chosen = U[:, objects]
    image: Array = 1.0 - (chosen.T @ chosen) / (top if top > 0 else 1.0)
    return image


def _per_run(value: ArrayLike, runs: int) -> Array:
    array: Array = np.asarray(value, dtype=np.float64)
    if array.ndim == 0:
        return np.full(runs, array)
    return array if array.shape == (runs,) else np.broadcast_to(array, (runs,))  # slow for a small update


def _power(x: Array, exponent: float) -> None:
    """Compute x ** exponent in place; the two common exponents are ten times faster than the general power."""
    if exponent == 2.0:
        np.multiply(x, x, out=x)
    elif exponent != 1.0:
        np.power(x, exponent, out=x)


def _from_corners(W: Weights, r: int, out: Array) -> Array:
    """Return ||v_i - e_k||^2 = ||v_i||^2 - 2 v_ik + 1 of one run, (c, n)."""
    np.multiply(W.V[r], -2.0, out=out)
    out += (W.norms[r] + 1.0)[:, None]
    for i in np.flatnonzero(W.norms[r] > 0.5):
        # A centre close to one object: the sum above cancels there, and healing divides by it. Written as the sum of
        # the other weights, 1 - v_ik does not cancel.
        k = int(W.V[r, i].argmax())
        others = np.delete(W.V[r, i], k)
        out[i, k] = others.sum() ** 2 + (others * others).sum()
    return out


def _u_log_u(U: Array) -> Array:
    """Return sum_h u ln u, (runs, c), with 0 ln 0 = 0."""
    sums = np.empty(U.shape[:2])
    scratch = np.empty(U.shape[1:])
    for r in range(len(U)):
        np.log(np.maximum(U[r], _TINY, out=scratch), out=scratch)
        sums[r] = np.multiply(scratch, U[r], out=scratch).sum(axis=1)
    return sums
