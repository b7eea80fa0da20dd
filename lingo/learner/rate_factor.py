"""The state of `optimizer.plateau`: a factor of all learning rates, which the trainer lowers."""

from __future__ import annotations

from collections.abc import Mapping

from lingo.config.lazy import tf
from lingo.layers.initial import ONES
from lingo.layers.tree import ParamSpec
from lingo.optim.optimizer import Optimizer

FACTOR = "plateau/factor"
"""Program path of the factor, a float32 scalar."""


def states(optimizer: Optimizer) -> dict[str, ParamSpec]:
    """Returns path -> declaration of the factor; {} if the optimizer has no plateau."""
    if optimizer.plateau is None:
        return {}
    return {FACTOR: ParamSpec(FACTOR, (), (), "float32", ONES, 1)}


def lower_rates(
    state: Mapping[str, tf.Tensor], rates: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Returns the learning rates of a step, {tag: float32 scalar}, times the factor."""
    factor = state.get(FACTOR)
    return dict(rates) if factor is None else {tag: factor * rate for tag, rate in rates.items()}
