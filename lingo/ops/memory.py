"""Writes new positions into the key and value caches of decoding.

Axes: B batch, K key heads, S positions of the cache, C new positions, H head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.ops.shape import sizes_of


def write_positions(
    memories: Sequence[tf.Tensor], news: Sequence[tf.Tensor], index: tf.Tensor
) -> list[tf.Tensor]:
    """Returns caches whose positions `index` to `index + C - 1` are replaced by new ones.

    It uses a scatter: unlike a concatenation, XLA compiles it for an index that is known only at
    run time, and writes in place.

    Args:
        memories: caches of one shape, each [B, K, S, H], any type.
        news: new positions of each cache, each [B, K, C, H], same type.
        index: int32 scalar; index + C is at most S.

    Returns:
        The caches after the write, each [B, K, S, H], same type.
    """
    batch, heads, length, width = sizes_of(memories[0])
    count = sizes_of(news[0])[2]
    indices = _grid(batch * heads, count) + tf.stack([0, index])

    def write(memory: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        matrices = tf.reshape(memory, [-1, length, width])
        rows = tf.reshape(new, [-1, count, width])
        matrices = tf.tensor_scatter_nd_update(matrices, indices, rows)
        return tf.reshape(matrices, [batch, heads, length, width])

    return [write(memory, new) for memory, new in zip(memories, news, strict=True)]


def _grid(num_rows: Any, num_columns: Any) -> Any:
    """Returns int32 [num_rows, num_columns, 2]: the row and column index of each element."""
    if isinstance(num_rows, int) and isinstance(num_columns, int):  # a constant: nothing to compute
        return np.moveaxis(np.indices([num_rows, num_columns], np.int32), 0, -1)
    return tf.stack(tf.meshgrid(tf.range(num_rows), tf.range(num_columns), indexing="ij"), axis=-1)
