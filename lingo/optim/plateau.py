"""A factor of the learning rate that falls when evaluations stop improving."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from lingo.config import ranges
from lingo.config.params import Configurable


class Plateau(Configurable):
    """Lowers the learning rate of a schedule further, as Keras's `ReduceLROnPlateau` does.

    The evaluations of `evaluate.metric` decide. The factor is part of the run's state: each
    checkpoint has it, and a resumed run goes on as an uninterrupted one.
    """

    factor: float = 0.1  # of the learning rate, at each fall
    patience: int = 10  # evaluations in a row without an improvement before a fall
    cooldown: int = 0  # evaluations after a fall that are not counted
    min_delta: float = 1e-4  # an improvement is more than this
    min_factor: float = 0.0  # least product of all factors

    def check(self) -> None:
        ranges.check_finite(self.p)
        ranges.check_fraction(self.p, "factor", "min_factor")
        ranges.check_positive(self.p, "factor", "patience")
        ranges.check_not_negative(self.p, "cooldown", "min_delta")

    def product(self, scores: Sequence[float | None], goal: Literal["min", "max"]) -> float:
        """Returns the factor of the learning rate after evaluations.

        `scores` are the metric's values in order; None: the value was not finite.
        """
        p, product, best, num_worse, num_cooling = self.p, 1.0, math.inf, 0, 0
        for score in scores:
            value = math.inf if score is None else score if goal == "min" else -score
            num_cooling = max(num_cooling - 1, 0)
            if value < best - p.min_delta:
                best, num_worse = value, 0
            elif num_cooling == 0:
                num_worse += 1
            if num_worse >= p.patience and product > p.min_factor:
                product = self.next_product(product)
                num_worse, num_cooling = 0, p.cooldown
        return product

    def next_product(self, product: float) -> float:
        """Returns the factor of the learning rate after one more fall."""
        return max(product * self.p.factor, self.p.min_factor)

    def falls(self, scores: Sequence[float | None], goal: Literal["min", "max"]) -> bool:
        """Returns whether the learning rate falls after the last of some evaluations."""
        return self.product(scores, goal) < self.product(scores[:-1], goal)
