"""The c-means family as the papers write it: dense, float64, plain loops, one run. Nothing here knows dasrel.

F09 is Filippone 2009, K14 is Khalilia and others 2014. fcm1 follows K14's algorithm 1 (relational distances, eq. 3);
the other rules follow F09's table 3 (centre, take the kernel, eq. 33). Only fit for small n.
"""

import math

import numpy as np

EXPONENT_IS_M = ("fcm1", "pcm1")


def centred(D):
    """S^c = -1/2 Q R Q, F09 eq. 6 and 7."""
    n = len(D)
    Q = np.eye(n) - np.ones((n, n)) / n
    return -0.5 * (Q @ D @ Q)


def smallest_eigenvalue(D):
    """lambda_1 of S^c; F09 eq. 8 shifts by it."""
    return float(np.linalg.eigvalsh(centred(D))[0])


def spread_matrix(D, beta):
    """R + beta (ee' - I), F09 eq. 4 and 9 with beta = 2 alpha = -2 lambda_1."""
    n = len(D)
    return D + beta * (np.ones((n, n)) - np.eye(n))


def kernel_distances(K, U, theta):
    """F09 eq. 29 to 33."""
    power = U**theta
    a = 1.0 / power.sum(axis=1)
    z0 = np.diag(K)
    z1 = power @ K
    z2 = np.diag(power @ K @ power.T)
    d = np.empty(U.shape)
    for i in range(U.shape[0]):
        for h in range(U.shape[1]):
            d[i, h] = z0[h] - 2.0 * a[i] * z1[i, h] + a[i] ** 2 * z2[i]
    return d


def relational_distances(D, U, theta):
    """K14 eq. 5 and 3."""
    c, n = U.shape
    d = np.empty((c, n))
    for i in range(c):
        v = np.array([U[i, k] ** theta for k in range(n)])
        v = v / v.sum()
        Dv = D @ v
        for k in range(n):
            d[i, k] = Dv[k] - 0.5 * float(v @ Dv)
    return d


def healed(d, U, theta):
    """The step of NERF c-means for negative distances; returns the distances and what beta grows by."""
    c, n = d.shape
    apart = np.empty((c, n))
    for i in range(c):
        v = U[i] ** theta / (U[i] ** theta).sum()
        for k in range(n):
            corner = np.zeros(n)
            corner[k] = 1.0
            apart[i, k] = ((v - corner) ** 2).sum()
    delta = max(-2.0 * d[i, k] / apart[i, k] for i in range(c) for k in range(n) if d[i, k] < 0)
    return np.maximum(d + 0.5 * delta * apart, 0.0), delta


def updated(rule, d, m, lam, eta):
    """Memberships from distances, F09 table 2, one object and one cluster at a time."""
    c, n = d.shape
    U = np.zeros((c, n))
    for k in range(n):
        if rule == "fcm1":
            at = [i for i in range(c) if d[i, k] == 0]
            for i in range(c):
                if at:
                    U[i, k] = 1.0 / len(at) if i in at else 0.0
                else:
                    U[i, k] = 1.0 / sum((d[i, k] / d[j, k]) ** (1.0 / (m - 1.0)) for j in range(c))
        elif rule == "fcm2":
            total = sum(math.exp(-d[j, k] / lam) for j in range(c))
            for i in range(c):
                U[i, k] = math.exp(-d[i, k] / lam) / total
        elif rule == "pcm1":
            for i in range(c):
                U[i, k] = 1.0 / (1.0 + (d[i, k] / eta[i]) ** (1.0 / (m - 1.0)))
        elif rule == "pcm2":
            for i in range(c):
                U[i, k] = math.exp(-d[i, k] / eta[i])
        elif rule == "hard":
            best = 0
            for i in range(1, c):
                if d[i, k] < d[best, k]:
                    best = i
            U[best, k] = 1.0
        else:
            raise ValueError(rule)
    return U


def functional(rule, D, U, m, lam, eta):
    """1/2 G(U) + H(U), F09 eq. 25 and table 1, on a matrix that already has its spread."""
    theta = m if rule in EXPONENT_IS_M else 1.0
    total = 0.0
    for i in range(len(U)):
        power = U[i] ** theta
        if power.sum() > 0:
            total += 0.5 * float(power @ D @ power) / float(power.sum())
        for u in U[i]:
            log = math.log(u) if u > 0 else 0.0
            if rule == "fcm2":
                total += lam * u * log
            elif rule == "pcm1":
                total += eta[i] * (1.0 - u) ** m
            elif rule == "pcm2":
                total += eta[i] * (u * log - u)
    return total


def run(D, rule, U0, *, m=None, lam=None, eta=None, beta=0.0, heal=False, max_iter=100, tol=1e-9):
    """Iterate from U0 (c, n) until max |U - U'| < tol.

    Returns U; d, the distances that U was made from; J_history, of U0 and of each U after it; iterations, the number of
    updates; and beta, the spread at the end.
    """
    D = np.asarray(D, dtype=float)
    U = np.array(U0, dtype=float)
    theta = m if rule in EXPONENT_IS_M else 1.0
    small = len(D) * np.finfo(float).eps * np.abs(D).max()
    history = []
    d = None
    iterations = 0
    while iterations < max_iter:
        iterations += 1
        spread = spread_matrix(D, beta)
        # NERF is written on relational distances too; near an object they are far more exact than the kernel form
        relational = rule == "fcm1" or heal
        d = relational_distances(spread, U, theta) if relational else kernel_distances(centred(spread), U, theta)
        d[(d < 0) & (d >= -small)] = 0.0
        if (d < 0).any():
            if heal:
                d, delta = healed(d, U, theta)
                beta += delta
            elif rule in EXPONENT_IS_M:
                raise ValueError(f"{int((d < 0).sum())} negative distances")
        history.append(functional(rule, spread_matrix(D, beta), U, m, lam, eta))
        before, U = U, updated(rule, d, m, lam, eta)
        if np.abs(U - before).max() < tol:
            break
    history.append(functional(rule, spread_matrix(D, beta), U, m, lam, eta))
    return {"U": U, "d": d, "J_history": history, "iterations": iterations, "beta": beta}
