"""The Frechet distance between two sets of vectors, from sums over their examples.

    d^2 = |m1 - m2|^2 + trace(C1 + C2 - 2 (C1 C2)^(1/2))

It is the distance between normal distributions with the means m and covariances C of the two sets
(Dowson and Landau 1982). Heusel et al. (2017) take the vectors of an Inception network; here the
caller chooses, for example pixels.

Axes: B batch, D width of a vector.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lingo.config.lazy import tf

ENTRIES = {"weight", "data_sum", "data_products", "sample_sum", "sample_products"}
"""The entries of a state."""


def frechet_sums(
    data: tf.Tensor, samples: tf.Tensor, *, weights: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Returns the additive state of the distance between two sets of vectors, float64.

    Args:
        data: [B, D], any float type.
        samples: [B, D], any float type.
        weights: [B], the weight of each row of both.
    """
    weights = tf.cast(weights, tf.float64)
    state = {"weight": tf.reduce_sum(weights)}
    for name, vectors in (("data", data), ("sample", samples)):
        exact = tf.cast(vectors, tf.float64)
        state[f"{name}_sum"] = tf.einsum("b,bd->d", weights, exact)
        state[f"{name}_products"] = tf.einsum("b,bd,be->de", weights, exact, exact)
    return state


def frechet_distance(state: Mapping[str, np.ndarray]) -> float:
    """Returns the squared distance from a state over all examples; NaN without examples.

    >>> one, two = np.array([[0.0], [2.0]]), np.array([[3.0], [5.0]])
    >>> sums = frechet_sums(tf.constant(one), tf.constant(two), weights=tf.ones(2))
    >>> round(frechet_distance({k: v.numpy() for k, v in sums.items()}), 6)
    9.0
    """
    num = state["weight"]
    if not num > 0:
        return float("nan")
    means = [np.asarray(state[f"{name}_sum"]) / num for name in ("data", "sample")]
    products = [np.asarray(state[f"{name}_products"]) / num for name in ("data", "sample")]
    first, second = (p - np.outer(m, m) for m, p in zip(means, products, strict=True))
    root = _square_root(first)
    overlap = np.linalg.eigvalsh(root @ second @ root)
    trace = np.trace(first) + np.trace(second) - 2 * np.sqrt(np.maximum(overlap, 0)).sum()
    return float(np.sum((means[0] - means[1]) ** 2) + trace)


def _square_root(matrix: np.ndarray) -> np.ndarray:
    """Returns the root of a symmetric matrix, [D, D], without negative eigenvalues."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
