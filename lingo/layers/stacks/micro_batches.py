"""A batch in micro-batches: which rows are in which, and on which devices.

Axes: B batch, M micro-batches.
"""

from __future__ import annotations

from lingo.layers.context import annotate
from lingo.lazy import tf
from lingo.ops.shape import sizes_of, swapped


def dealt(value: tf.Tensor, num: int, together: int) -> tf.Tensor:
    """Returns a batch [B, ...] in micro-batches, [M, B / M, ...].

    Rows are dealt out, some neighbours at a time: so every device has rows of each micro-batch,
    where a mesh cuts the batch into runs of neighbours.

    Args:
        value: of a batch.
        num: M.
        together: how many neighbouring rows stay together.
    """
    batch, *rest = sizes_of(value)
    parts = tf.reshape(value, [batch // num // together, num, together, *rest])
    return tf.reshape(swapped(parts), [num, batch // num, *rest])


def gathered(value: tf.Tensor, together: int) -> tf.Tensor:
    """Returns the batch of micro-batches that `dealt` has made."""
    num, size, *rest = sizes_of(value)
    parts = tf.reshape(value, [num, size // together, together, *rest])
    return tf.reshape(swapped(parts), [num * size, *rest])


def placed(value: tf.Tensor, axis: str | None) -> tf.Tensor:
    """Returns micro-batches where the devices are that compute with them.

    Args:
        value: [N, B / M, ...].
        axis: logical axis of the first.
    """
    own = len(value.shape) - 2
    axes = ("length", "embed")[:own] if own <= 2 else [None] * own
    return annotate(value, axis, "batch", *axes)
