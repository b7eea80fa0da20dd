"""Adam, and AdamW: Adam with decoupled weight decay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from lingo.config.params import ParamError
from lingo.lazy import tf
from lingo.optim.optimizer import Optimizer, Slot, Updated, Weight, select
from lingo.optim.pattern import check_patterns, check_used, matching


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015), in the order of operations at the end of its sec. 2.

    There `epsilon` stands beside the uncorrected root, as in Keras, TensorFlow and Lingvo. Weight
    decay is decoupled (Loshchilov & Hutter 2019, algorithm 2): the weight shrinks by
    learning rate * weight_decay, whatever its gradient is.
    """

    beta1: float = 0.9  # decay of the mean of gradients
    beta2: float = 0.999  # decay of the mean of their squares
    epsilon: float = 1e-7  # added to the root of the mean square
    weight_decay: float = 0.0  # part of a weight taken off per step, times the learning rate
    min_decay_rank: int = 2  # weights of fewer axes do not decay: scales and biases
    no_decay: tuple[str, ...] = ()  # regular expressions: weights of these whole names do not decay

    def check(self) -> None:
        super().check()
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self.p, name) < 1:
                raise ParamError(f"{name}={getattr(self.p, name)} is not in [0, 1)")
        for name in ("epsilon", "weight_decay"):
            if getattr(self.p, name) < 0:
                raise ParamError(f"{name}={getattr(self.p, name)} is negative")
        check_patterns(self.p.no_decay)

    def check_weights(self, weights: Iterable[Weight]) -> None:
        check_used(self.p.no_decay, [name for weight in weights for name in weight.names])

    def slots(self, weight: Weight) -> dict[str, Slot]:
        slot = Slot(weight.shape, 0.0, weight.names)
        return {"m": slot, "v": slot}

    def update(
        self,
        weight: Weight,
        value: tf.Tensor,
        grad: tf.Tensor,
        slots: Mapping[str, tf.Tensor],
        step: tf.Tensor,
    ) -> Updated:
        p, rate = self.p, self.rate(step)
        m = slots["m"] + (1.0 - p.beta1) * (grad - slots["m"])
        v = slots["v"] + (1.0 - p.beta2) * (tf.square(grad) - slots["v"])
        size = rate * tf.sqrt(_correction(p.beta2, step)) / _correction(p.beta1, step)
        decayed = select(weight, self._decays(weight), value - rate * p.weight_decay * value, value)
        return Updated(decayed - size * m / (tf.sqrt(v) + p.epsilon), {"m": m, "v": v})

    def _decays(self, weight: Weight) -> list[bool]:
        allowed = self.p.weight_decay > 0 and weight.rank >= self.p.min_decay_rank
        return [allowed and not matching(self.p.no_decay, name) for name in weight.names]


class AdamW(Adam):
    """Adam with the weight decay of its authors' implementation (Loshchilov & Hutter 2019)."""

    weight_decay: float = 0.01  # part of a weight taken off per step, times the learning rate


def _correction(beta: float, step: tf.Tensor) -> tf.Tensor:
    """Returns 1 - beta^(step + 1), which float32 would round badly for a beta near 1."""
    log = math.log(beta) if beta > 0 else -math.inf
    return -tf.math.expm1(log * (tf.cast(step, tf.float32) + 1.0))
