"""Weights flattened to rows, so that each device updates an equal chunk of every row.

`lingo.mesh.weight_rows` makes a row of each part of a weight. An elementwise optimizer can ignore
this. An optimizer that sums over a weight leaves out the zeros at the ends of rows
(`without_padding`) and sums over devices (`total`).

Axes: P rows, one per part of a weight; C columns in the tensors, all of a row's or a chunk of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from lingo.config.lazy import tf
from lingo.mesh.weight_rows import WeightRows


def _identity(value: tf.Tensor) -> tf.Tensor:
    return value


class RowColumns(NamedTuple):
    """The columns of a weight's rows that are in an update's tensors, [*stacked axes, P, C].

    By default the tensors have all columns: XLA's partitioner then splits them, and inserts sums
    over devices.
    """

    rows: WeightRows
    num_columns: int  # C
    first: Any = 0  # index of the first column in the row, an integer or int32 scalar
    # Adds up tensors of any shape over the devices that have the other columns.
    total: Callable[[tf.Tensor], tf.Tensor] = _identity

    def coordinates(self) -> list[tf.Tensor]:
        """Returns the index of each element along each axis of the weight, int32 [P, C].

        Padding (zeros at the ends of rows and of uneven parts) has the last element's index.
        """
        return [
            tf.minimum(self._indices(axis), size - 1) for axis, size in enumerate(self.rows.shape)
        ]

    def without_padding(self, x: tf.Tensor) -> tf.Tensor:
        """Returns x, [*stacked axes, P, C], with zeros in its padding."""
        rows = self.rows
        if not rows.is_padded:
            return x
        is_element = self._column() < math.prod(rows.part_shape)
        for axis, (n, size, num) in enumerate(
            zip(rows.shape, rows.part_shape, rows.parts, strict=True)
        ):
            if n < size * num:  # the last part along this axis ends with zeros
                is_element &= self._indices(axis) < n
        return tf.where(is_element, x, 0.0)

    def gather(self, x: tf.Tensor) -> tf.Tensor:
        """Returns whole weights, [*stacked axes, *rows.shape], of x, [*stacked axes, P, C].

        Every device gets all of each weight.
        """
        if self.num_columns < self.rows.row_size:
            own = tf.transpose(tf.reshape(x, [-1, self.num_columns]))
            every = tf.math.unsorted_segment_sum(own, self._column()[0], self.rows.row_size)
            x = tf.reshape(tf.transpose(self.total(every)), [*x.shape[:-1], self.rows.row_size])
        return unflatten(x, self.rows)

    def cut(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the columns, [*stacked axes, P, C], of whole weights; it inverts `gather`."""
        rows = flatten(x, self.rows)
        if self.num_columns == self.rows.row_size:
            return rows
        return tf.gather(rows, self._column()[0], axis=-1)

    def _column(self) -> tf.Tensor:
        """Returns the index of each element in its row, int32 [1, C]."""
        return self.first + tf.range(self.num_columns)[None]

    def _indices(self, axis: int) -> tf.Tensor:
        """Returns each element's index along an axis, int32 [P, C]; padding is past the end."""
        sizes, parts = self.rows.part_shape, self.rows.parts
        row: tf.Tensor = tf.range(self.rows.num_rows)[:, None]
        part = tf.math.floormod(row // math.prod(parts[axis + 1 :]), parts[axis])
        inside = tf.math.floormod(self._column() // math.prod(sizes[axis + 1 :]), sizes[axis])
        return part * sizes[axis] + inside


def flatten(x: tf.Tensor, rows: WeightRows) -> tf.Tensor:
    """Returns weights [*stacked axes, ...] of any dtype in rows, [*stacked axes, P, all C]."""
    num_stacked, sizes, parts = len(x.shape) - len(rows.shape), rows.part_shape, rows.parts
    lead = x.shape[:num_stacked]
    missing = [p * k - n for n, p, k in zip(rows.shape, parts, sizes, strict=True)]
    if any(missing):
        x = tf.pad(x, [(0, 0)] * num_stacked + [(0, n) for n in missing])
    if rows.num_rows > 1:
        x = tf.reshape(x, [*lead, *itertools.chain(*zip(parts, sizes, strict=True))])
        x = tf.transpose(x, _order(num_stacked, len(sizes)))
    x = tf.reshape(x, [*lead, rows.num_rows, math.prod(sizes)])
    return tf.pad(x, [(0, 0)] * (num_stacked + 1) + [(0, rows.row_size - math.prod(sizes))])


def unflatten(x: tf.Tensor, rows: WeightRows) -> tf.Tensor:
    """Inverts `flatten`: returns weights [*stacked axes, ...] of any dtype from all their rows."""
    num_stacked, sizes, parts = len(x.shape) - 2, rows.part_shape, rows.parts
    lead = x.shape[:num_stacked]
    x = x[(*[slice(None)] * (num_stacked + 1), slice(math.prod(sizes)))]
    if rows.num_rows > 1:
        x = tf.reshape(x, [*lead, *parts, *sizes])
        order = _order(num_stacked, len(sizes))
        x = tf.transpose(x, sorted(range(len(order)), key=order.__getitem__))
    x = tf.reshape(x, [*lead, *(p * k for p, k in zip(parts, sizes, strict=True))])
    return x[(*[slice(None)] * num_stacked, *map(slice, rows.shape))]


def _order(num_stacked: int, rank: int) -> list[int]:
    """Returns the permutation that moves all axes of parts before all axes inside parts."""
    first = range(num_stacked, num_stacked + 2 * rank)
    return [*range(num_stacked), *first[::2], *first[1::2]]
