"""What a benchmark wants of the numbers that it measures.

bounds = Bounds()
bounds.hold("step / by hand", 1.05, at_most(1.02))
bounds.exit_code()      # 1, and prints: missed: step / by hand is 1.05, wanted <= 1.02
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Bound(NamedTuple):
    """The numbers between two, both included."""

    least: float
    most: float

    def holds(self, value: float) -> bool:
        """Returns whether a number is one of them; not a number is none."""
        return self.least <= value <= self.most

    def __str__(self) -> str:
        if self.least == -math.inf:
            return f"<= {self.most:.3g}"
        return f">= {self.least:.3g}" if self.most == math.inf else f"{self.least} to {self.most}"


def at_most(value: float) -> Bound:
    """Returns the bound of what ought to be small."""
    return Bound(-math.inf, value)


def at_least(value: float) -> Bound:
    """Returns the bound of what ought to be large."""
    return Bound(value, math.inf)


class Bounds:
    """Which of the wanted numbers of a benchmark were missed."""

    def __init__(self) -> None:
        self._missed: list[str] = []

    def hold(self, name: str, value: float, wanted: Bound | None) -> None:
        """Holds a number against what is wanted of it; None: nothing is."""
        if wanted is not None and not wanted.holds(value):
            self._missed.append(f"{name} is {value:.4g}, wanted {wanted}")

    def exit_code(self) -> int:
        """Prints what was missed; returns 1 if anything was, else 0."""
        for line in self._missed:
            print(f"missed: {line}")
        return int(bool(self._missed))
