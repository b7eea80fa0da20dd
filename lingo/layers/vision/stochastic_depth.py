"""Stochastic depth: leaves out the residual branch of an example at random.

Axes: B batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config.lazy import tf
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.layer import Layer
from lingo.layers.residual import Residual, ResidualCall


class StochasticDepth(Layer):
    """Zeroes a residual branch in training, for each example by itself (Huang et al. 2016, sec. 3).

    What is left is divided by the probability of survival, 1 - `rate`, so nothing changes outside
    training; in the paper, evaluation multiplies instead. What is zeroed depends on the layer, the
    step and the example, so it is the same in any micro-batch and on any replica. The branch is
    computed in any case.
    """

    rate: float = 0.2  # probability that a branch is zeroed, in [0, 1)

    positionwise = True

    def check(self) -> None:
        check_rate("rate", self.p.rate)

    def __call__(self, branch: tf.Tensor) -> tf.Tensor:
        """Returns the branch, [B, ...], any float type, or zeros, for each example."""
        return dropout(self, branch, rate=self.p.rate, form="example")

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result."""
        return tuple(shape)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []
