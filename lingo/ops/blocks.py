"""Sequences cut into blocks, for local attention: each block attends to its neighbours only.

Axes: B batch, T positions, L positions of a block, M = ceil(T / L) blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lingo.config.lazy import tf


class Blocks(NamedTuple):
    """How sequences are cut into blocks, which are stacked along the batch axis.

    >>> pairs = Blocks(2, before=True)
    >>> pairs.split_with_neighbors(tf.constant([[1, 2, 3, 4, 5]])).numpy()
    array([[0, 0, 1, 2],
           [1, 2, 3, 4],
           [3, 4, 5, 0]], dtype=int32)
    >>> pairs.join(tf.constant([[1, 2], [3, 4], [5, 0]]), 5).numpy()
    array([[1, 2, 3, 4, 5]], dtype=int32)
    """

    size: int  # L
    before: bool = False  # whether a block sees the previous one
    after: bool = False  # whether a block sees the next one

    @property
    def num_keys(self) -> int:
        """The number of positions that a block may see."""
        return (self.before + 1 + self.after) * self.size

    def count(self, length: int) -> int:
        """Returns M, the number of blocks of T positions."""
        return -(-length // self.size)

    def split(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the blocks [B * M, L, ...] of x, [B, T, ...], any type, padded with zeros."""
        return self._replace(before=False, after=False).split_with_neighbors(x)

    def split_with_neighbors(self, x: tf.Tensor) -> tf.Tensor:
        """Returns each block of x [B, T, ...], any type, T static, with those it sees.

        The result is [B * M, num_keys, ...], same type, zeros where there is no block.
        """
        length: Any = x.shape[1]
        num, rest = self.count(length), x.shape[2:]
        blocks = tf.reshape(_pad(x, 0, num * self.size - length), [-1, num, self.size, *rest])
        parts = [blocks]
        if self.before:
            parts.insert(0, _pad(blocks[:, :-1], 1, 0))
        if self.after:
            parts.append(_pad(blocks[:, 1:], 0, 1))
        return tf.reshape(tf.concat(parts, axis=2), [-1, self.num_keys, *rest])

    def join(self, x: tf.Tensor, length: int) -> tf.Tensor:
        """Returns sequences [B, T, ...] of blocks x, [B * M, L, ...], any type, without padding."""
        return tf.reshape(x, [-1, self.count(length) * self.size, *x.shape[2:]])[:, :length]


def _pad(x: tf.Tensor, start: int, stop: int) -> tf.Tensor:
    """Pads the second axis of a tensor with zeros."""
    if not start and not stop:
        return x
    return tf.pad(x, [[0, 0], [start, stop]] + [[0, 0]] * (len(x.shape) - 2))
