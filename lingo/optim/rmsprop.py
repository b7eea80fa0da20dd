"""RMSProp: divides each element's step by the root of a moving mean of its squared gradients."""

from __future__ import annotations

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.optim.optimizer import Move, Optimizer, Slot, Update, Weight


class RmsProp(Optimizer):
    """RMSProp (Tieleman & Hinton 2012, lecture 6.5), or centered (Graves 2013, eq. 38-45).

    `epsilon` is under the root, and momentum sums rate * gradient / root, as in TensorFlow 2 and
    Keras, where the mean square starts at 0. In TensorFlow 1 the mean square starts at 1, so that
    the first updates are smaller: recipes published for TensorFlow 1 need
    `initial_mean_square=1.0`. A variance that rounding makes negative counts as 0; Keras takes its
    root.
    """

    rho: float = 0.9  # decay of the mean of squared gradients
    momentum: float = 0.0  # decay of the sum of past updates; 0: no sum is kept
    epsilon: float = 1e-7  # added to the mean square, under the root
    centered: bool = False  # divide by the gradient's standard deviation, not its root mean square
    initial_mean_square: float = 0.0  # initial mean of squared gradients

    takes_rows = True

    def check(self) -> None:
        super().check()
        ranges.check_fraction(self.p, "rho", "momentum")
        ranges.check_not_negative(self.p, "epsilon", "initial_mean_square")

    def slots(self, weight: Weight) -> dict[str, Slot]:
        v = Slot(weight.shape, self.p.initial_mean_square, weight.names)
        names = [*["m"] * self.p.centered, *["momentum"] * (self.p.momentum > 0)]
        return {"v": v, **dict.fromkeys(names, v._replace(fill=0.0))}

    def move(self, update: Update) -> Move:
        p, grad, slots = self.p, update.gradient, update.slots
        after = {"v": slots["v"] + (1.0 - p.rho) * (tf.square(grad) - slots["v"])}
        spread = after["v"]
        if p.centered:
            after["m"] = slots["m"] + (1.0 - p.rho) * (grad - slots["m"])
            spread = tf.maximum(spread - tf.square(after["m"]), 0.0)
        decrement = update.rate * grad / tf.sqrt(spread + p.epsilon)
        if p.momentum:
            decrement = after["momentum"] = p.momentum * slots["momentum"] + decrement
        return Move(decrement, after)
