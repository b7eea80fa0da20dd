"""Cuts an axis of tensors into blocks of equal size.

`Blocks` is for local attention, in which each block attends only to itself and its neighbours.
`BlockGrid` and `loop` are for code that works on one block at a time.

Axes: B batch, T positions, L positions of a block, M = ceil(T / L) blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lingo.config.lazy import tf
from lingo.ops.shape import size_of


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
    before: bool = False  # whether a block also sees the previous block
    after: bool = False  # whether a block also sees the next block

    @property
    def num_keys(self) -> int:
        """The number of positions that a block may see: its own and its neighbours'."""
        return (self.before + 1 + self.after) * self.size

    def count(self, length: int) -> int:
        """Returns M, the number of blocks into which `length` = T positions are cut."""
        return -(-length // self.size)

    def split(self, x: tf.Tensor) -> tf.Tensor:
        """Cuts x, [B, T, ...] of any type, into blocks [B * M, L, ...], padded with zeros."""
        return self._replace(before=False, after=False).split_with_neighbors(x)

    def split_with_neighbors(self, x: tf.Tensor) -> tf.Tensor:
        """Cuts x, [B, T, ...] of any type, T static, into blocks that include their neighbours.

        The result is [B * M, num_keys, ...], same type. A missing neighbour is zeros.
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
        """Joins blocks x, [B * M, L, ...] of any type, to sequences [B, T, ...] without padding."""
        return tf.reshape(x, [-1, self.count(length) * self.size, *x.shape[2:]])[:, :length]


class BlockGrid:
    """The cut of an axis into equal blocks of size `most` or less; the last block may be padded."""

    def __init__(self, length: int, most: int) -> None:
        self.length = length
        self.count = -(-length // most)
        self.size = -(-length // self.count)
        self.padding = self.count * self.size - length

    def pad(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        """Pads an axis of x with zeros at its end, to a whole number of blocks."""
        if not self.padding:
            return x
        paddings = [[0, 0]] * len(x.shape)
        paddings[axis] = [0, self.padding]
        return tf.pad(x, paddings)

    def block(self, x: tf.Tensor, index: Any, axis: int) -> tf.Tensor:
        """Returns block number `index`, along an axis, of a tensor that `pad` returned."""
        if self.count == 1:
            return x
        sizes = [size_of(x, i) for i in range(len(x.shape))]
        begin = [0] * len(sizes)
        sizes[axis], begin[axis] = self.size, index * self.size
        shape = x.shape.as_list()
        shape[axis] = self.size
        return tf.ensure_shape(tf.slice(x, begin, sizes), shape)

    def join(self, blocks: tf.TensorArray, axis: int) -> tf.Tensor:
        """Joins all blocks into one tensor along an axis, without the padding."""
        if self.count == 1:
            return blocks.read(0)
        x = blocks.stack()  # [count, ...]
        order = list(range(1, len(x.shape)))
        x = tf.transpose(x, [*order[:axis], 0, *order[axis:]])
        shape = [size_of(x, i) for i in range(len(x.shape))]
        shape[axis : axis + 2] = [self.count * self.size]
        x = tf.reshape(x, shape)
        return tf.split(x, [self.length, self.padding], axis)[0] if self.padding else x


def block_array(dtype: Any, count: int) -> tf.TensorArray:
    """Returns an empty array that takes one tensor per block.

    >>> block_array(tf.float32, 2).write(0, [1.0]).read(0).numpy()
    array([1.], dtype=float32)
    """
    return tf.TensorArray(dtype, count, clear_after_read=False)


def zero_blocks(count: int, block: tf.Tensor) -> tf.TensorArray:
    """Returns an array of `count` blocks of float32 zeros, each in the shape of `block`.

    >>> zero_blocks(2, tf.ones([1, 2])).stack().numpy()
    array([[[0., 0.]],
    <BLANKLINE>
           [[0., 0.]]], dtype=float32)
    """
    array, zeros = block_array(tf.float32, count), tf.zeros_like(block, tf.float32)
    for i in range(count):
        array = array.write(i, zeros)
    return array


def add_block(array: tf.TensorArray, index: Any, x: tf.Tensor) -> tf.TensorArray:
    """Adds x, as float32, to block number `index` of an array.

    >>> add_block(zero_blocks(2, tf.ones([1])), 1, tf.constant([5])).stack().numpy().tolist()
    [[0.0], [5.0]]
    """
    return array.write(index, array.read(index) + tf.cast(x, tf.float32))


def loop(start: Any, stop: Any, body: Callable[..., Any], state: Any) -> Any:
    """Calls state = body(i, state) for i = start, ..., stop - 1, in order; returns the last state.

    >>> loop(1, 4, lambda i, total: total + i, 0)
    6
    """
    if isinstance(start, int) and isinstance(stop, int) and stop - start == 1:
        return body(start, state)
    if tf.executing_eagerly():
        for index in range(int(start), int(stop)):
            state = body(index, state)
        return state
    return tf.while_loop(
        lambda i, _: i < stop,
        lambda i, s: (i + 1, body(i, s)),
        (tf.constant(start) if isinstance(start, int) else start, state),
        parallel_iterations=1,
    )[1]


def _pad(x: tf.Tensor, start: int, stop: int) -> tf.Tensor:
    """Pads the second axis of a tensor with `start` zeros before it and `stop` zeros after it."""
    if not start and not stop:
        return x
    return tf.pad(x, [[0, 0], [start, stop]] + [[0, 0]] * (len(x.shape) - 2))
