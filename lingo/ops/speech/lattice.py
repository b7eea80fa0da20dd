"""Sums over the paths of a lattice, in logarithms.

Axes: ... any, N nodes.
"""

from __future__ import annotations

from lingo.config.lazy import tf
from lingo.ops.shape import size_of

NEVER = -1e30
"""Log-probability of what does not occur; finite, so that differences are numbers."""


def log_add(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Returns log(e**a + e**b) of float tensors of any shape, at least `NEVER`.

    >>> log_add(tf.constant(0.0), tf.constant([0.0, NEVER])).numpy().round(4)
    array([0.6931, 0.    ], dtype=float32)
    """
    return tf.maximum(tf.maximum(a, b) + tf.math.log1p(tf.exp(-tf.abs(a - b))), NEVER)


def shift_nodes(x: tf.Tensor, by: int) -> tf.Tensor:
    """Returns float [..., N] with the value of node n - by at node n; `NEVER` from outside.

    >>> shift_nodes(tf.constant([1.0, 2.0, 3.0]), -1).numpy()
    array([ 2.e+00,  3.e+00, -1.e+30], dtype=float32)
    """
    edge = [[0, 0]] * (len(x.shape) - 1) + [[max(by, 0), max(-by, 0)]]
    padded = tf.pad(x, edge, constant_values=NEVER)
    first = max(-by, 0)
    return tf.gather(padded, tf.range(first, first + size_of(x, -1)), axis=-1)
