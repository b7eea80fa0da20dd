"""Adam, and AdamW: Adam with decoupled weight decay."""

from __future__ import annotations

import math

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.optim.optimizer import Move, Optimizer, Slot, Update, Weight


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015), in the order of operations at the end of its sec. 2.

    `epsilon` is added to the root of the mean square before bias correction (the paper's
    epsilon-hat), as in Keras, TensorFlow and Lingvo.
    """

    beta1: float = 0.9  # decay of the mean of gradients
    beta2: float = 0.999  # decay of the mean of squared gradients
    epsilon: float = 1e-7  # added to the root of the mean square

    takes_rows = True

    def check(self) -> None:
        super().check()
        ranges.check_fraction(self.p, "beta1", "beta2")
        ranges.check_not_negative(self.p, "epsilon")

    def slots(self, weight: Weight) -> dict[str, Slot]:
        return dict.fromkeys(("m", "v"), Slot(weight.shape, 0.0, weight.names))

    def move(self, update: Update) -> Move:
        p, grad, slots, step = self.p, update.gradient, update.slots, update.step
        m = slots["m"] + (1.0 - p.beta1) * (grad - slots["m"])
        v = slots["v"] + (1.0 - p.beta2) * (tf.square(grad) - slots["v"])
        root, divisor = tf.sqrt(bias_correction(p.beta2, step)), bias_correction(p.beta1, step)
        size = update.rate * root / divisor
        return Move(size * m / (tf.sqrt(v) + p.epsilon), {"m": m, "v": v})


class AdamW(Adam):
    """Adam with the weight decay of its authors' implementation (Loshchilov & Hutter 2019)."""

    weight_decay: float = 0.01  # fraction of a weight removed per step, times the learning rate

    takes_rows = True


def bias_correction(beta: float, step: tf.Tensor) -> tf.Tensor:
    """Returns 1 - beta^(step + 1), accurately for a beta near 1, too: a float32 scalar."""
    log = math.log(beta) if beta > 0 else -math.inf
    return -tf.math.expm1(log * (tf.cast(step, tf.float32) + 1.0))
