"""Optimizers that see a weight as a matrix [R, C]: R inputs, C outputs.

A weight of attention, [embed, heads, head_dim], is a matrix of embed inputs and heads * head_dim
outputs; a kernel of a convolution, [height, width, channels, outputs], has height * width *
channels inputs. Optimizers get these sizes from `Weight.fan_in`.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable

from lingo.config.lazy import tf
from lingo.optim.adam import Adam
from lingo.optim.optimizer import Move, Slot, Update, Weight, select
from lingo.optim.pattern import check_patterns, check_used, match_patterns

TABLE_DIM = "vocab"
"""Logical axis of the rows of a table: an embedding, or the logits of each token."""


class MatrixOptimizer(Adam, interface=True):
    """An optimizer of matrices; vectors, tables and the weights that `adam` names move by Adam.

    Subclasses define `matrix_move`, and `matrix_slots` if they need more than Adam's. With
    `learning_rate`, `weight_decay` and schedule of AdamW both kinds of steps have similar sizes.
    """

    adam: tuple[str, ...] = ()  # regular expressions of whole names: these weights move by Adam
    weight_decay: float = 0.01  # fraction of a weight removed per step, times the learning rate

    def check(self) -> None:
        super().check()
        check_patterns(self.p.adam)

    def check_weights(self, weights: Iterable[Weight]) -> None:
        weights = list(weights)
        super().check_weights(weights)
        check_used(self.p.adam, [name for weight in weights for name in weight.names])

    def slots(self, weight: Weight) -> dict[str, Slot]:
        uses_adam, slots = self._uses_adam(weight), {}
        if any(uses_adam):
            slots |= super().slots(weight)
        return slots if all(uses_adam) else slots | self.matrix_slots(weight)

    def move(self, update: Update) -> Move:
        uses_adam, weight = self._uses_adam(update.weight), update.weight
        if all(uses_adam):
            return self.adam_move(update)
        move = self.matrix_move(update)
        if not any(uses_adam):
            return move
        adam, slots = self.adam_move(update), update.slots  # some layers of a stacked tensor
        decrement = select(weight, uses_adam, adam.decrement, move.decrement)
        after = {
            name: select(weight, uses_adam, adam.slots.get(name, old), move.slots.get(name, old))
            for name, old in slots.items()
        }
        return Move(decrement, after)

    def is_matrix(self, weight: Weight) -> bool:
        """Returns whether a weight has the shape of a matrix that this optimizer can move."""
        return matrix_shape(weight) is not None

    def adam_move(self, update: Update) -> Move:
        """Returns Adam's decrement, and its next slots."""
        return super().move(update)

    def matrix_slots(self, weight: Weight) -> dict[str, Slot]:
        """Returns the slots of a matrix, {name: Slot}."""
        raise NotImplementedError(f"{type(self).__name__} has no matrix_slots")

    def matrix_move(self, update: Update) -> Move:
        """Returns the decrement of a matrix, after weight decay, and its next slots."""
        raise NotImplementedError(f"{type(self).__name__} has no matrix_move")

    def _uses_adam(self, weight: Weight) -> list[bool]:
        """Returns for each of `weight.names` whether Adam moves that weight."""
        if not self.is_matrix(weight):
            return [True] * len(weight.names)
        return [bool(match_patterns(self.p.adam, name)) for name in weight.names]


def matrix_shape(weight: Weight) -> tuple[int, int] | None:
    """Returns (R, C) of one weight, without its stacked axes; None for vectors and tables.

    The first axes whose sizes multiply to the weight's `fan_in` are inputs; else only the first.
    """
    if weight.rank < 2 or TABLE_DIM in weight.dims:
        return None
    sizes = weight.shape[weight.num_stacked :]
    products = list(itertools.accumulate(sizes[:-1], operator.mul))
    rows = sizes[0]
    if weight.fan_in is not None and weight.fan_in in products:
        rows = weight.fan_in
    return rows, math.prod(sizes) // rows if rows else 0


def as_matrices(weight: Weight, x: tf.Tensor) -> tf.Tensor:
    """Returns x, [*weight.shape] or in rows, as matrices [*weight.stack_shape, R, C].

    Each device gets whole matrices, and so computes all of their products.
    """
    x = x if weight.row_columns is None else weight.row_columns.gather(x)
    return tf.reshape(x, [*weight.stack_shape, *(matrix_shape(weight) or ())])


def from_matrices(weight: Weight, x: tf.Tensor) -> tf.Tensor:
    """Inverts `as_matrices`: returns [*weight.shape], or rows if `as_matrices` got rows."""
    x = tf.reshape(x, weight.shape)
    return x if weight.row_columns is None else weight.row_columns.cut(x)
