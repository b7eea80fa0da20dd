"""Stochastic gradient descent, with momentum."""

from __future__ import annotations

from typing import Literal

from lingo.config import ranges
from lingo.config.params import ParamError
from lingo.optim.optimizer import Move, Optimizer, Slot, Update, Weight


class Sgd(Optimizer):
    """Gradient descent, with optional momentum (Sutskever et al. 2013, sec. 2).

    The slot is a decayed sum over steps. With `accumulate="gradients"` the slot sums gradients, and
    the learning rate multiplies the sum, so that a lower rate takes effect at once, as in
    TensorFlow 1 and PyTorch. With "updates" the slot sums rate * gradient, as in the paper and
    Keras. The two are equal while the rate is constant.
    """

    momentum: float = 0.0  # decay of the sum of past gradients; 0: no sum is kept
    nesterov: bool = False  # whether to look ahead: the gradient counts once more
    accumulate: Literal["gradients", "updates"] = "gradients"  # what the slot sums

    takes_rows = True
    skips_zeros = True

    def check(self) -> None:
        super().check()
        ranges.check_fraction(self.p, "momentum")
        for name, plain in (("nesterov", False), ("accumulate", "gradients")):
            if getattr(self.p, name) != plain and not self.p.momentum:
                raise ParamError(f"{name}={getattr(self.p, name)!r} needs a momentum, which is 0")

    def dense_reason(self, weight: Weight) -> str | None:
        if self.p.momentum:
            return f"momentum={self.p.momentum} goes on moving rows without a gradient"
        return super().dense_reason(weight)

    def slots(self, weight: Weight) -> dict[str, Slot]:
        return {"momentum": Slot(weight.shape, 0.0, weight.names)} if self.p.momentum else {}

    def move(self, update: Update) -> Move:
        rate, grad = update.rate, update.gradient
        if not self.p.momentum:
            return Move(rate * grad, {})
        sums_updates = self.p.accumulate == "updates"
        term = rate * grad if sums_updates else grad
        total = self.p.momentum * update.slots["momentum"] + term
        ahead = term + self.p.momentum * total if self.p.nesterov else total
        return Move(ahead if sums_updates else rate * ahead, {"momentum": total})


class Momentum(Sgd):
    """Gradient descent with momentum 0.9, as in most recipes for images."""

    momentum: float = 0.9  # decay of the sum of past gradients

    takes_rows = True
