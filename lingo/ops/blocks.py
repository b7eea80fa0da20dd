"""Rows cut into blocks, so that what only looks nearby is computed block by block.

Axes: B batch, T positions, L positions of a block, M blocks.
"""

from __future__ import annotations

from typing import Any

from lingo.config.lazy import tf


def blocks(x: tf.Tensor, size: int, *, before: bool = False, after: bool = False) -> tf.Tensor:
    """Returns the blocks of every row, as a larger batch; each with the blocks beside it if wanted.

    Args:
        x: [B, T, ...], T known.
        size: L; the last block is filled up with zeros.
        before: whether each block has the one before it in front, the first one zeros.
        after: whether each has the one after it behind, the last one zeros.

    Returns:
        [B * M, (1, 2 or 3) * L, ...] with M = ceil(T / L), the type of `x`.
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
    """Puts blocks together again, without what filled up the last.

    Args:
        x: [B * M, L, ...].
        length: T.

    Returns:
        [B, T, ...], the type of `x`.
    """
    size, *rest = x.shape[1:]
    return tf.reshape(x, [-1, _count(length, size) * size, *rest])[:, :length]


def _count(length: Any, size: Any) -> Any:
    """Returns how many blocks T positions make."""
    return -(-length // size)


def _pad(x: tf.Tensor, start: int, stop: int) -> tf.Tensor:
    """Returns x with zeros around its second axis."""
    if not start and not stop:
        return x
    return tf.pad(x, [[0, 0], [start, stop]] + [[0, 0]] * (len(x.shape) - 2))
