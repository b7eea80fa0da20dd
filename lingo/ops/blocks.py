"""Sequences cut into blocks, for local attention: each block attends to its neighbours only.

Axes: B batch, T positions, L positions of a block, M blocks.
"""

from __future__ import annotations

from typing import Any

from lingo.config.lazy import tf


def blocks(x: tf.Tensor, size: int, *, before: bool = False, after: bool = False) -> tf.Tensor:
    """Cuts every sequence into blocks and stacks them along the batch axis.

    Args:
        x: [B, T, ...], any type; T is static.
        size: L; the last block is padded with zeros.
        before: whether to prepend to each block the previous one; zeros to the first.
        after: whether to append to each block the next one; zeros to the last.

    Returns:
        [B * M, P * L, ...] with M = ceil(T / L), the type of `x`; P is 1, plus 1 for each of
        `before` and `after`.
    """
    length, *rest = x.shape[1:]
    num = _count(length, size)
    rows = tf.reshape(_pad(x, 0, num * size - length), [-1, num, size, *rest])
    parts = [rows]
    if before:
        parts.insert(0, _pad(rows[:, :-1], 1, 0))
    if after:
        parts.append(_pad(rows[:, 1:], 0, 1))
    return tf.reshape(tf.concat(parts, axis=2), [-1, len(parts) * size, *rest])


def rows(x: tf.Tensor, length: int) -> tf.Tensor:
    """Joins blocks into sequences again, without the padding: the inverse of `blocks`.

    Args:
        x: [B * M, L, ...], any type.
        length: T.

    Returns:
        [B, T, ...], the type of `x`.
    """
    size, *rest = x.shape[1:]
    return tf.reshape(x, [-1, _count(length, size) * size, *rest])[:, :length]


def _count(length: Any, size: Any) -> Any:
    """Returns the number of blocks of T positions."""
    return -(-length // size)


def _pad(x: tf.Tensor, start: int, stop: int) -> tf.Tensor:
    """Pads the second axis of a tensor with zeros."""
    if not start and not stop:
        return x
    return tf.pad(x, [[0, 0], [start, stop]] + [[0, 0]] * (len(x.shape) - 2))
