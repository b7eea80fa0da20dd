"""Adagrad: divides each element's step by the root of the sum of its squared gradients."""

from __future__ import annotations

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.optim.optimizer import Move, Optimizer, Slot, Update, Weight


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011, fig. 1, diagonal); `epsilon` is under the root, as in Keras."""

    initial_accumulator_value: float = 0.1  # initial sum of squares
    epsilon: float = 1e-7  # added to the sum of squares, under the root

    takes_rows = True
    skips_zeros = True

    def check(self) -> None:
        super().check()
        ranges.check_not_negative(self.p, "initial_accumulator_value", "epsilon")

    def slots(self, weight: Weight) -> dict[str, Slot]:
        return {"accumulator": Slot(weight.shape, self.p.initial_accumulator_value, weight.names)}

    def move(self, update: Update) -> Move:
        total = update.slots["accumulator"] + tf.square(update.gradient)
        decrement = update.rate * update.gradient / tf.sqrt(total + self.p.epsilon)
        return Move(decrement, {"accumulator": total})
