"""Adafactor: Adam's scaling, with one row and one column of slots for each matrix.

Axes of one weight, [..., R, C]: ... batch of matrices, R rows, C columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.optim.optimizer import Move, Optimizer, Slot, Update, Weight, weight_sum
from lingo.optim.row_columns import RowColumns


class Adafactor(Optimizer):
    """Adafactor (Shazeer & Stern 2018, algorithms 4 and 5).

    With `learning_rate=1e-2` the defaults are the paper's (algorithm 6) and Keras's. Keras has no
    `beta1`, also keeps the product of rows and columns, and cannot turn off the relative step or
    the scale of the weight: its `relative_step=False` changes nothing. A weight with more than two
    axes is factored over the last two, but has one scale and one limit, as in Keras.
    """

    relative_step: bool = True  # the learning rate is at most 1 / sqrt(steps done)
    multiply_by_parameter_scale: bool = True  # a step is relative to the weight's root mean square
    clip_threshold: float | None = 1.0  # limit of an update's root mean square; None: no limit
    beta1: float = 0.0  # decay of the mean of updates; 0: no mean is kept
    beta2_decay: float = 0.8  # squares decay by 1 - t^-beta2_decay at step t, counted from 1
    epsilon1: float = 1e-30  # added to squared gradients
    epsilon2: float = 1e-3  # least scale of a weight

    takes_rows = True

    def check(self) -> None:
        super().check()
        ranges.check_fraction(self.p, "beta1")
        ranges.check_positive(self.p, "clip_threshold", "beta2_decay")
        ranges.check_not_negative(self.p, "epsilon1", "epsilon2")

    def slots(self, weight: Weight) -> dict[str, Slot]:
        shape, names = weight.shape, weight.names
        declared = {"v": Slot(shape, 0.0, names)}
        if weight.rank >= 2:
            *axes, row, column = range(len(shape))
            declared = {
                "v_row": Slot(shape[:-1], 0.0, names, (*axes, row)),
                "v_column": Slot((*shape[:-2], shape[-1]), 0.0, names, (*axes, column)),
            }
        return declared | ({"m": Slot(shape, 0.0, names)} if self.p.beta1 else {})

    def move(self, update: Update) -> Move:
        p, weight, slots = self.p, update.weight, update.slots
        t = tf.cast(update.step, tf.float32) + 1.0
        square = tf.square(update.gradient) + p.epsilon1
        after = self._squares(weight, square, slots, t**-p.beta2_decay)
        scaled = update.gradient * _inverse_root(weight, after)
        if p.clip_threshold is not None:
            scaled /= tf.maximum(1.0, _root_mean_square(weight, scaled) / p.clip_threshold)
        decrement = self._size(update, t) * scaled
        if p.beta1:
            decrement = after["m"] = slots["m"] + (1.0 - p.beta1) * (decrement - slots["m"])
        return Move(decrement, after)

    def _squares(
        self, weight: Weight, square: tf.Tensor, slots: Mapping[str, tf.Tensor], part: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns the moving means of squared gradients; the new squares have the weight `part`."""
        new = {"v": square}
        if weight.rank >= 2:
            row_mean, column_mean = _factor_means(weight, square)
            new = {"v_row": row_mean, "v_column": column_mean}
        return {name: slots[name] + part * (mean - slots[name]) for name, mean in new.items()}

    def _size(self, update: Update, t: tf.Tensor) -> tf.Tensor:
        """Returns the step size: the factor of an update whose root mean square is 1."""
        size = tf.minimum(update.rate, t**-0.5) if self.p.relative_step else update.rate
        if not self.p.multiply_by_parameter_scale:
            return size
        return size * tf.maximum(self.p.epsilon2, _root_mean_square(update.weight, update.value))


def _inverse_root(weight: Weight, squares: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns 1 / sqrt of the mean squares, or of the product of their factors if factored."""
    if "v" in squares:
        return tf.math.rsqrt(squares["v"])
    rows, columns = squares["v_row"], squares["v_column"]
    rows /= tf.reduce_mean(rows, -1, keepdims=True)
    if weight.row_columns is None:
        return tf.expand_dims(tf.math.rsqrt(rows), -1) * tf.expand_dims(tf.math.rsqrt(columns), -2)
    factors = [
        tf.gather(tf.reshape(tf.math.rsqrt(x), [*weight.stack_shape, -1]), i, axis=-1)
        for x, i in zip((rows, columns), _factor_indices(weight.row_columns), strict=True)
    ]
    return factors[0] * factors[1]


def _factor_means(weight: Weight, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the means of x over the columns and over the rows of matrices.

    They have the shapes of the slots `v_row` and `v_column`.
    """
    if (own_columns := weight.row_columns) is None:
        return tf.reduce_mean(x, -1), tf.reduce_mean(x, -2)
    *batch, num_rows, num_columns = own_columns.rows.shape
    own = tf.reshape(own_columns.without_padding(x), [math.prod(weight.stack_shape), -1])
    own = tf.transpose(own)

    def mean(indices: tf.Tensor, size: int, other: int) -> tf.Tensor:
        # Sums by index: devices exchange R + C numbers per matrix, not its R * C elements.
        num = math.prod(batch) * size
        sums = tf.math.unsorted_segment_sum(own, tf.reshape(indices, [-1]), num)
        total = tf.transpose(own_columns.total(sums))
        return tf.reshape(total, [*weight.stack_shape, *batch, size]) / other

    row_indices, column_indices = _factor_indices(own_columns)
    return mean(row_indices, num_rows, num_columns), mean(column_indices, num_columns, num_rows)


def _factor_indices(own_columns: RowColumns) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns for each element, int32 [P, C], its index among all rows and among all columns."""
    *batch, row, column = own_columns.coordinates()
    matrix = tf.zeros_like(row)
    for index, size in zip(batch, own_columns.rows.shape, strict=False):
        matrix = matrix * size + index
    num_rows, num_columns = own_columns.rows.shape[-2:]
    return matrix * num_rows + row, matrix * num_columns + column


def _root_mean_square(weight: Weight, x: tf.Tensor) -> tf.Tensor:
    """Returns the root mean square of each weight in a tensor, [*weight.stack_shape, 1, ...]."""
    if weight.row_columns is None:
        return tf.sqrt(tf.reduce_mean(tf.square(x), axis=weight.axes, keepdims=True))
    return tf.sqrt(weight_sum(weight, tf.square(x)) / weight.size)
