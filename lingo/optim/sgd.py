"""Stochastic gradient descent, with momentum."""

from __future__ import annotations

from collections.abc import Mapping

from lingo.config.params import ParamError
from lingo.lazy import tf
from lingo.optim.optimizer import Optimizer, Slot, Updated, Weight


class Sgd(Optimizer):
    """Gradient descent; with momentum in the form of Sutskever et al. (2013), sec. 2.

    The slot is a decayed sum of gradients, and the learning rate multiplies that sum: a lower rate
    takes effect at once. (Keras, like the paper, keeps the sum of rate * gradient; the two are
    equal while the rate is constant.)
    """

    momentum: float = 0.0  # decay of the sum of past gradients; 0: none is kept
    nesterov: bool = False  # look ahead: the gradient counts once more

    def check(self) -> None:
        super().check()
        if not 0 <= self.p.momentum < 1:
            raise ParamError(f"momentum={self.p.momentum} is not in [0, 1)")
        if self.p.nesterov and not self.p.momentum:
            raise ParamError("nesterov=True needs a momentum, which is 0")

    def slots(self, weight: Weight) -> dict[str, Slot]:
        return {"momentum": Slot(weight.shape, 0.0, weight.names)} if self.p.momentum else {}

    def update(
        self,
        weight: Weight,
        value: tf.Tensor,
        grad: tf.Tensor,
        slots: Mapping[str, tf.Tensor],
        step: tf.Tensor,
    ) -> Updated:
        rate = self.rate(step)
        if not self.p.momentum:
            return Updated(value - rate * grad, {})
        total = self.p.momentum * slots["momentum"] + grad
        move = grad + self.p.momentum * total if self.p.nesterov else total
        return Updated(value - rate * move, {"momentum": total})
