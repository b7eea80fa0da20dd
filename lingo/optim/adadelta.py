"""AdaDelta: steps of the size of earlier steps, so that gradients may have any unit."""

from __future__ import annotations

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.optim.optimizer import Move, Optimizer, Slot, Update, Weight


class AdaDelta(Optimizer):
    """AdaDelta (Zeiler 2012, algorithm 1), with the paper's constants.

    The paper has no learning rate: `learning_rate=1.0` is its algorithm.
    """

    rho: float = 0.95  # decay of the means of squared gradients and of squared steps
    epsilon: float = 1e-6  # added to both means, under the roots

    takes_rows = True

    def check(self) -> None:
        super().check()
        ranges.check_fraction(self.p, "rho")
        ranges.check_positive(self.p, "epsilon")  # at 0 the first step and all later ones are 0

    def slots(self, weight: Weight) -> dict[str, Slot]:
        return dict.fromkeys(("v", "step"), Slot(weight.shape, 0.0, weight.names))

    def move(self, update: Update) -> Move:
        rho, epsilon, slots = self.p.rho, self.p.epsilon, update.slots
        v = rho * slots["v"] + (1.0 - rho) * tf.square(update.gradient)
        step = tf.sqrt(slots["step"] + epsilon) * tf.math.rsqrt(v + epsilon) * update.gradient
        squares = rho * slots["step"] + (1.0 - rho) * tf.square(step)
        return Move(update.rate * step, {"v": v, "step": squares})
