"""Edit distances inside programs, for token error rates of whole batches.

Axes: B utterances, U reference labels, N hypothesis labels.
"""

from __future__ import annotations

from typing import Any

from lingo.config.lazy import tf
from lingo.ops.scan import scan
from lingo.ops.shape import size_of, swap_leading_axes

_FAR = 1 << 29  # more edits than any two texts need


def edit_distances(
    references: tf.Tensor,
    num_references: tf.Tensor,
    hypotheses: tf.Tensor,
    num_hypotheses: tf.Tensor,
) -> tf.Tensor:
    """Returns the fewest substitutions, deletions and insertions between labels, int32 [B].

    Unlike `tf.edit_distance`, it is not divided by a length, and XLA compiles it.

    Args:
        references: int32 [B, U]; what follows an utterance's labels does not matter.
        num_references: int32 [B].
        hypotheses: int32 [B, N], N static.
        num_hypotheses: int32 [B].

    >>> args = tf.constant([[1, 2, 3]]), tf.constant([3]), tf.constant([[1, 3, 4]])
    >>> edit_distances(*args, tf.constant([2])).numpy()
    array([1], dtype=int32)
    """
    columns = tf.range(size_of(hypotheses, 1) + 1)
    first = columns + tf.zeros_like(hypotheses[:, :1])

    def body(i: tf.Tensor, row: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, Any]:
        differs = tf.cast(tf.not_equal(label[:, None], hypotheses), tf.int32)
        kept_or_deleted = tf.minimum(row[:, :-1] + differs, row[:, 1:] + 1)
        below = tf.concat([row[:, :1] + 1, kept_or_deleted], axis=1)
        # An insertion moves one column on, and costs as much: the least of all columns before.
        below = _running_minimum(below - columns) + columns
        return tf.where((i < num_references)[:, None], below, row), ()

    last, _ = scan(body, first, swap_leading_axes(references), size_of(references, 1))
    return tf.gather(last, num_hypotheses, axis=1, batch_dims=1)


def _running_minimum(x: tf.Tensor) -> tf.Tensor:
    """Returns the least of each element and those before it, [B, N], N static."""
    step, size = 1, int(x.shape[1] or 0)
    while step < size:
        moved = tf.pad(x[:, :-step], [[0, 0], [step, 0]], constant_values=_FAR)
        x, step = tf.minimum(x, moved), 2 * step
    return x
