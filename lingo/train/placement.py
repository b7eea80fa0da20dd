"""Where the tensors of a step are: what a runtime tells the pure functions of the step about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lingo.layers.context import Rules

T = TypeVar("T")


class Placement:
    """Everything on one device, and whole; runtimes of many devices derive from it.

    Attributes:
        rules: put shardings on what layers compute; None where nothing is split.
        compiled: whether XLA compiles what layers compute.
        devices: names of those that stages of unlike layers stand on; (): all on one.
    """

    rules: Rules | None = None

    def __init__(self, *, compiled: bool = False, devices: tuple[str, ...] = ()) -> None:
        """Places nothing yet.

        Args:
            compiled: whether XLA compiles what layers compute.
            devices: names of those that stages of unlike layers stand on.
        """
        self.compiled, self.devices = compiled, devices

    def call(self) -> dict[str, Any]:
        """Returns what the call context says of it: fields of `Call`."""
        return {"rules": self.rules, "compiled": self.compiled, "devices": self.devices}

    def total(self, sums: Any) -> Any:
        """Returns a structure of tensors added up over replicas: the same on all of them."""
        return sums

    def compute(self, function: Callable[[], T]) -> T:
        """Returns what a function does that stands between two totals: a runtime may compile it."""
        return function()

    def for_update(self, where: str, value: Any) -> Any:
        """Returns a weight, or its gradient, split as the optimizer works on it.

        Args:
            where: program path of the weight.
            value: float32 tensor of the weight's shape.
        """
        del where
        return value

    def at_rest(self, where: str, value: Any) -> Any:
        """Returns a weight after its update, split as it is between steps."""
        del where
        return value


ONE_DEVICE = Placement()
