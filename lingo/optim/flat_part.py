"""A weight in rows, as an optimizer gets it where devices update equal chunks of every row.

An optimizer that treats each element by itself needs nothing of this. One that adds up over a
weight does so by `FlatPart.total`, and without the zeros at the ends of rows.

Axes: P parts of a weight, each a row; C elements of a row that the tensors have, all or a chunk.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from lingo.config.lazy import tf
from lingo.mesh.flat import Flat


def _identity(value: tf.Tensor) -> tf.Tensor:
    return value


class FlatPart(NamedTuple):
    """Which columns of a weight's rows the tensors of an update have, [*stacked axes, P, C].

    By default all: then a partitioner splits them over devices, and no sum needs a word.
    """

    flat: Flat
    size: int  # C
    start: Any = 0  # index of the first column in the row, an integer or int32 scalar
    # Adds up tensors of any shape over the devices that have the other columns.
    total: Callable[[tf.Tensor], tf.Tensor] = _identity

    def coordinates(self) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the index of each element along each axis of the weight, int32 [P, C].

        The second result, bool [P, C], is false for zeros at the ends of rows and of uneven parts;
        their indices are those of the last element.
        """
        sizes, parts = self.flat.part_shape, self.flat.parts
        column = self.start + tf.range(self.size)[None]
        row = tf.range(self.flat.num_rows)[:, None]
        is_element, indices = column < math.prod(sizes), list[tf.Tensor]()
        for axis, (n, size, num) in enumerate(zip(self.flat.shape, sizes, parts, strict=True)):
            inside = column // math.prod(sizes[axis + 1 :]) % size
            index = row // math.prod(parts[axis + 1 :]) % num * size + inside
            is_element &= index < n
            indices.append(tf.minimum(index, n - 1))
        return indices, tf.broadcast_to(is_element, [self.flat.num_rows, self.size])

    def without_padding(self, x: tf.Tensor) -> tf.Tensor:
        """Returns x, [*stacked axes, P, C], with zeros where no element of the weight is."""
        return tf.where(self.coordinates()[1], x, 0.0) if self.flat.is_padded else x


def flatten(x: tf.Tensor, flat: Flat) -> tf.Tensor:
    """Returns weights [*stacked axes, ...] of any type in rows, [*stacked axes, P, C], C all."""
    num_stacked, sizes, parts = len(x.shape) - len(flat.shape), flat.part_shape, flat.parts
    lead = x.shape[:num_stacked]
    missing = [p * k - n for n, p, k in zip(flat.shape, parts, sizes, strict=True)]
    if any(missing):
        x = tf.pad(x, [(0, 0)] * num_stacked + [(0, n) for n in missing])
    if flat.num_rows > 1:
        x = tf.reshape(x, [*lead, *itertools.chain(*zip(parts, sizes, strict=True))])
        x = tf.transpose(x, _order(num_stacked, len(sizes)))
    x = tf.reshape(x, [*lead, flat.num_rows, math.prod(sizes)])
    return tf.pad(x, [(0, 0)] * (num_stacked + 1) + [(0, flat.row - math.prod(sizes))])


def unflatten(x: tf.Tensor, flat: Flat) -> tf.Tensor:
    """Returns weights [*stacked axes, ...] of any type from all of their rows, of `flatten`."""
    num_stacked, sizes, parts = len(x.shape) - 2, flat.part_shape, flat.parts
    lead = x.shape[:num_stacked]
    x = x[(*[slice(None)] * (num_stacked + 1), slice(math.prod(sizes)))]
    if flat.num_rows > 1:
        x = tf.reshape(x, [*lead, *parts, *sizes])
        order = _order(num_stacked, len(sizes))
        x = tf.transpose(x, sorted(range(len(order)), key=order.__getitem__))
    x = tf.reshape(x, [*lead, *(p * k for p, k in zip(parts, sizes, strict=True))])
    return x[(*[slice(None)] * num_stacked, *map(slice, flat.shape))]


def _order(num_stacked: int, rank: int) -> list[int]:
    """Returns the permutation from part and place along each axis to all parts, all places."""
    first = range(num_stacked, num_stacked + 2 * rank)
    return [*range(num_stacked), *first[::2], *first[1::2]]
