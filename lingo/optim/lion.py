"""Lion: moves every element by the learning rate, with the sign of a mean of gradients."""

from __future__ import annotations

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.optim.optimizer import Move, Optimizer, Slot, Update, Weight


class Lion(Optimizer):
    """Lion (Chen et al. 2023, algorithm 2): one slot, half of Adam's memory.

    Its learning rate is usually 3 to 10 times smaller than AdamW's, and its weight decay 3 to 10
    times larger (sec. 5).
    """

    beta1: float = 0.9  # share of the kept mean in the sum whose sign is taken
    beta2: float = 0.99  # decay of the kept mean of gradients

    takes_rows = True

    def check(self) -> None:
        super().check()
        ranges.check_fraction(self.p, "beta1", "beta2")

    def slots(self, weight: Weight) -> dict[str, Slot]:
        return {"m": Slot(weight.shape, 0.0, weight.names)}

    def move(self, update: Update) -> Move:
        p, m, grad = self.p, update.slots["m"], update.gradient
        direction = tf.sign(p.beta1 * m + (1.0 - p.beta1) * grad)
        return Move(update.rate * direction, {"m": p.beta2 * m + (1.0 - p.beta2) * grad})
