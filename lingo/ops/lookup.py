"""Rows of a table, with a gradient that is a tensor.

The gradient of `tf.gather` is indexed slices; they become a tensor anyway, with a warning, once the
table is used twice (tied logits) or is not float32.

Axes: V rows, D width.
"""

from __future__ import annotations

from typing import Any

from lingo.config.lazy import tf
from lingo.ops.scope import gradient_scope


def lookup(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Returns rows of a table.

    Args:
        table: [V, D], any float type.
        ids: int32 [...], each below V.

    Returns:
        [..., D], the type of `table`.
    """

    @tf.custom_gradient
    def rows(table: tf.Tensor) -> Any:
        scope = gradient_scope()

        def backward(gradient: tf.Tensor) -> tf.Tensor:
            with tf.name_scope(scope):
                return tf.scatter_nd(tf.expand_dims(ids, -1), gradient, tf.shape(table))

        return tf.gather(table, ids), backward

    return rows(table)
