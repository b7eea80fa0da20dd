"""Optimizers for large batches: LARS and LAMB, whose steps are relative to the norm of each weight.

    LARS    step = rate * ratio * (gradient + decay * weight), ratio ~ |weight| / |gradient|
    LAMB    step = rate * ratio * (Adam's step + decay * weight), ratio = |weight| / |its step|

Each weight has its own ratio, even where a program stacks equal layers in one tensor. Weights with
fewer than two axes (most biases, the scales of norms) have neither decay nor ratio, as in the
papers' experiments. Biases of an attention's heads have two axes: exclude them by `no_decay` and
`no_ratio`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.optim.adam import bias_correction
from lingo.optim.optimizer import (
    Move,
    Optimizer,
    Slot,
    Update,
    UpdatedWeight,
    Weight,
    weight_norm,
)
from lingo.optim.pattern import check_patterns, check_used, match_patterns


class LayerwiseOptimizer(Optimizer, interface=True):
    """An optimizer that scales a weight's step by a ratio of norms; subclasses define `move`.

    Weight decay is not decoupled: it is a part of the step, and is scaled with it. So `move` has to
    add `decay(weight) * value` to the step and multiply the sum by `ratio`: this class does not.
    """

    min_ratio_rank: int = 2  # weights with fewer axes, such as scales and biases, have ratio 1
    no_ratio: tuple[str, ...] = ()  # regular expressions of whole names: these weights have ratio 1

    def check(self) -> None:
        super().check()
        ranges.check_not_negative(self.p, "min_ratio_rank")
        check_patterns(self.p.no_ratio)

    def check_weights(self, weights: Iterable[Weight]) -> None:
        weights = list(weights)
        super().check_weights(weights)
        check_used(self.p.no_ratio, [name for weight in weights for name in weight.names])

    def update(self, update: Update) -> UpdatedWeight:
        """Returns the weight and slots after one step, weight decay included."""
        move = self.valid_move(update)
        return UpdatedWeight(update.value - move.decrement, move.slots)

    def decay(self, weight: Weight) -> np.ndarray:
        """Returns each weight's decay (0: no decay), in the shape of `per_weight`."""
        return per_weight(
            weight, [self.p.weight_decay * self._decays(weight, name) for name in weight.names]
        )

    def ratio(self, weight: Weight, numerator: tf.Tensor, denominator: tf.Tensor) -> tf.Tensor:
        """Returns numerator / denominator, or 1 where either is 0 or the weight has no ratio.

        Arguments and result are float32 [*weight.stack_shape, 1, ...]: a number per weight in a
        tensor.
        """
        has_ratio = per_weight(weight, [self._has_ratio(weight, name) for name in weight.names])
        is_usable = (numerator > 0) & (denominator > 0) & (has_ratio > 0)
        return tf.where(is_usable, numerator / tf.where(is_usable, denominator, 1.0), 1.0)

    def _has_ratio(self, weight: Weight, name: str) -> bool:
        return weight.rank >= self.p.min_ratio_rank and not match_patterns(self.p.no_ratio, name)


class Lars(LayerwiseOptimizer):
    """LARS: momentum with a rate for each weight (You et al. 2017, algorithm 1).

    The ratio is trust_coefficient * |w| / (|g| + decay * |w| + epsilon). With
    `accumulate="updates"` the slot sums rate * ratio * gradient, as in the paper ("unscaled
    momentum" in Kumar et al. 2019, sec. 3). With "gradients" the slot sums gradients, and rate and
    ratio multiply the sum, as in MLPerf's reference ("scaled momentum"). The two differ when rate
    or ratio change.
    """

    momentum: float = 0.9  # decay of the sum of past gradients or updates
    trust_coefficient: float = 0.001  # eta: a step's norm at rate 1, relative to the weight's norm
    epsilon: float = 0.0  # added to the ratio's denominator
    accumulate: Literal["gradients", "updates"] = "updates"  # what the slot sums

    takes_rows = True

    def check(self) -> None:
        super().check()
        ranges.check_fraction(self.p, "momentum")
        ranges.check_positive(self.p, "trust_coefficient")
        ranges.check_not_negative(self.p, "epsilon")

    def slots(self, weight: Weight) -> dict[str, Slot]:
        return {"momentum": Slot(weight.shape, 0.0, weight.names)}

    def move(self, update: Update) -> Move:
        p, weight, value, grad = self.p, update.weight, update.value, update.gradient
        decay = self.decay(weight)
        norm, grad_norm = weight_norm(weight, value), weight_norm(weight, grad)
        # The ratio is 1 for a gradient of 0, even if the weight decays, as in MLPerf's reference
        usable_norm = tf.where(grad_norm > 0, grad_norm + decay * norm + p.epsilon, 0.0)
        rate = update.rate * self.ratio(weight, p.trust_coefficient * norm, usable_norm)
        step = grad + decay * value
        if p.accumulate == "updates":
            total = p.momentum * update.slots["momentum"] + rate * step
            return Move(total, {"momentum": total})
        total = p.momentum * update.slots["momentum"] + step
        return Move(rate * total, {"momentum": total})


class Lamb(LayerwiseOptimizer):
    """LAMB: Adam with a rate for each weight (You et al. 2020, algorithm 2).

    `epsilon` is added to the root after bias correction, as in the paper. The ratio is
    phi(|weight|) / |step|, where the paper's phi limits a norm to `min_norm`..`max_norm`.
    """

    weight_decay: float = 0.01  # fraction of a weight added to Adam's step
    beta1: float = 0.9  # decay of the mean of gradients
    beta2: float = 0.999  # decay of the mean of squared gradients
    epsilon: float = 1e-6  # added to the root of the mean square
    bias_correction: bool = True  # whether means are divided by 1 - beta^steps
    min_norm: float = 0.0  # least norm of a weight in the ratio
    max_norm: float | None = None  # largest norm of a weight in the ratio; None: no limit

    takes_rows = True

    def check(self) -> None:
        super().check()
        ranges.check_fraction(self.p, "beta1", "beta2")
        ranges.check_not_negative(self.p, "epsilon", "min_norm")
        ranges.check_positive(self.p, "max_norm")

    def slots(self, weight: Weight) -> dict[str, Slot]:
        return dict.fromkeys(("m", "v"), Slot(weight.shape, 0.0, weight.names))

    def move(self, update: Update) -> Move:
        p, weight, value = self.p, update.weight, update.value
        m, v, grad = update.slots["m"], update.slots["v"], update.gradient
        m += (1.0 - p.beta1) * (grad - m)
        v += (1.0 - p.beta2) * (tf.square(grad) - v)
        mean, square = m, v
        if p.bias_correction:
            mean = m / bias_correction(p.beta1, update.step)
            square = v / bias_correction(p.beta2, update.step)
        step = mean / (tf.sqrt(square) + p.epsilon) + self.decay(weight) * value
        norm = weight_norm(weight, value)
        limited = tf.clip_by_value(norm, p.min_norm, np.inf if p.max_norm is None else p.max_norm)
        ratio = self.ratio(weight, tf.where(norm > 0, limited, 0.0), weight_norm(weight, step))
        return Move(update.rate * ratio * step, {"m": m, "v": v})


def per_weight(weight: Weight, values: Sequence[float]) -> np.ndarray:
    """Returns one value per name in `weight.names`, shaped to multiply the weights of a tensor.

    The result is float32 [*weight.stack_shape, 1, ...], with an axis for each of `weight.axes`.
    """
    ones = [1 for _ in weight.axes]
    return np.reshape(np.asarray(values, np.float32), [*weight.stack_shape, *ones])
