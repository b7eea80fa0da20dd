"""Embedding lookup, with a dense gradient.

The gradient of `tf.gather` is `tf.IndexedSlices`. TensorFlow converts these slices to a dense
tensor anyway, with a warning, if the table is used twice (tied logits) or is not float32.

Axes: V rows of the table, D width.
"""

from __future__ import annotations

from typing import Any

from lingo.config.lazy import tf
from lingo.ops.scope import gradient_scope


def lookup(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Returns the rows of a table for ids.

    Args:
        table: [V, D], any float type.
        ids: int32 [...], each in 0..V-1.

    Returns:
        [..., D], the type of `table`.

    >>> lookup(tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([1, 1, 0])).numpy()
    array([[3., 4.],
           [3., 4.],
           [1., 2.]], dtype=float32)
    """

    @tf.custom_gradient
    def rows(table: tf.Tensor) -> Any:
        scope = gradient_scope()

        def backward(gradient: tf.Tensor) -> tf.Tensor:
            with tf.name_scope(scope):
                return tf.scatter_nd(tf.expand_dims(ids, -1), gradient, tf.shape(table))

        return tf.gather(table, ids), backward

    return rows(table)
