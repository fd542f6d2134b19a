"""A map of all objects from their dissimilarities to a few (landmark MDS, de Silva and Tenenbaum 2004)."""

from __future__ import annotations

import numpy as np

from dasrel.util import Array, Float, Index

LANDMARKS = 500


def landmark_map(block: Array, batch: Index, draw: np.random.Generator) -> Float:
    """Return two coordinates of every object, (n, 2), from the dissimilarities of a batch to all, (m, n).

    Landmarks are drawn from the batch and placed by principal coordinates; each object is placed by its squared
    dissimilarities to them. A coordinate without a positive eigenvalue is 0.

    Cost: 8 bytes for each landmark and object of a part of 4,096 objects.
    """
    some = np.sort(draw.choice(len(batch), min(len(batch), LANDMARKS), replace=False))
    D = block[np.ix_(some, batch[some])].astype(np.float64) ** 2
    means = D.mean(axis=0)
    values, vectors = np.linalg.eigh(-0.5 * (D - means - means[:, None] + D.mean()))
    top = np.argsort(-values)[:2]
    result = np.zeros((block.shape[1], 2))
    for axis, k in enumerate(top):
        if values[k] <= 1e-12 * np.abs(values).max():
            continue
        vector = vectors[:, k] * (1 if vectors[np.abs(vectors[:, k]).argmax(), k] > 0 else -1)
        for at in range(0, len(result), 4096):
            seen = block[some, at : at + 4096].astype(np.float64) ** 2
            result[at : at + 4096, axis] = vector @ (means[:, None] - seen) / (2 * np.sqrt(values[k]))
    return result
