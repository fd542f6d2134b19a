"""One cluster in kernel space as F10 writes it: dense, float64, one run. Nothing here knows dasrel.

F10 is Filippone, Masulli, Rovetta 2010. Only fit for small n.
"""

import math

import numpy as np


def gaussian_kernel(D, sigma):
    """Eq. 18, of squared distances."""
    return np.exp(-D / (2 * sigma**2))


def distances(K, u):
    """The bracket of eq. 26."""
    n = len(u)
    b = 1 / sum(u)
    double = b**2 * sum(u[r] * u[s] * K[r, s] for r in range(n) for s in range(n))
    return np.array([K[h, h] - 2 * b * sum(u[r] * K[h, r] for r in range(n)) + double for h in range(n)])


def core(K, gamma=1.0, eps=0.01, *, refit=False, constrained=False, per_object=False, max_iter=1000):
    """Table I: memberships, eta, and the number of updates; the memberships of the centre are returned too."""
    n = len(K)
    u = np.full(n, 1 / n)
    eta, count = None, 0
    while count < max_iter:
        count += 1
        d = distances(K, u)
        if eta is None or refit:
            eta = gamma * (1 / u.sum()) * float(u @ d)  # eq. 27
        new = np.exp(-d / eta)  # eq. 26
        if constrained:
            new = new / new.sum()  # eq. 49
        delta = np.abs(new - u).sum()
        before, u = u, new
        if delta < eps * (n if per_object else 1):
            break
    return u, eta, count, before


def new_membership(row, K, u, eta):
    """Eq. 28 of a new point with K(x, x) = 1, `row` its kernel values to the training points."""
    b = 1 / u.sum()
    return math.exp(-(1 - 2 * b * float(u @ row) + b**2 * float(u @ K @ u)) / eta)


def labels_by_segments(X, sigma, u, eta, alpha, kept, points=20):
    """The clustering of section IV-D: all pairs of kept points, `points` inner points of each segment, eq. 28."""
    D = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    K = gaussian_kernel(D, sigma)
    names = list(np.flatnonzero(kept))
    label = {k: k for k in names}
    inner = np.linspace(0, 1, points + 2)[1:-1]
    for a, i in enumerate(names):
        for j in names[a + 1 :]:
            line = (1 - inner)[:, None] * X[i] + inner[:, None] * X[j]
            rows = gaussian_kernel(((line[:, None] - X[None]) ** 2).sum(axis=2), sigma)
            if label[i] != label[j] and all(new_membership(row, K, u, eta) >= alpha for row in rows):
                old, new = label[j], label[i]
                label = {k: new if own == old else own for k, own in label.items()}
    groups = sorted(set(label.values()), key=lambda g: (-sum(own == g for own in label.values()), g))
    return np.array([groups.index(label[k]) if k in label else -1 for k in range(len(X))])


def jaccard(first, second):
    """Eq. 37 of two arrays of 0 and 1."""
    a11 = int(((first == 1) & (second == 1)).sum())
    a01 = int(((first == 0) & (second == 1)).sum())
    a10 = int(((first == 1) & (second == 0)).sum())
    return a11 / (a01 + a10 + a11)


def figure_1(seed=0):
    """Six clusters of F10's figure 1: four discs of 30, a banana of 60, a ring of 80, and 30 outliers.

    The paper gives the numbers of points and a picture; positions here are read off that picture.
    """
    rng = np.random.default_rng(seed)
    discs = [centre + rng.normal(0, 0.35, (30, 2)) for centre in ((-6, 6), (-2.5, 7), (5, -6), (7.5, -3))]
    angle = rng.uniform(0.1 * math.pi, 0.9 * math.pi, 60)
    banana = np.column_stack([-4 + 3 * np.cos(angle), -7 + 3 * np.sin(angle)]) + rng.normal(0, 0.2, (60, 2))
    angle = rng.uniform(0, 2 * math.pi, 80)
    ring = np.column_stack([5 + 2 * np.cos(angle), 5 + 2 * np.sin(angle)]) + rng.normal(0, 0.2, (80, 2))
    noise = rng.uniform(-10, 10, (30, 2))
    truth = np.repeat([0, 1, 2, 3, 4, 5, -1], [30, 30, 30, 30, 60, 80, 30])
    return np.concatenate([*discs, banana, ring, noise]), truth
