"""Where the tensors of a step are: what a runtime tells the pure functions of the step about it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from lingo.config.lazy import tf
from lingo.layers.context import Rules

T = TypeVar("T")


class Placement:
    """Everything on one device, and whole; runtimes of many devices derive from it.

    Attributes:
        rules: put shardings on what layers compute; None where nothing is split.
        compiled: whether XLA compiles what layers compute.
    """

    rules: Rules | None = None

    def __init__(self, *, compiled: bool = False) -> None:
        """Places nothing yet.

        Args:
            compiled: whether XLA compiles what layers compute.
        """
        self.compiled = compiled

    def call_fields(self) -> dict[str, Any]:
        """Returns what the call context says of it: fields of `Call`."""
        return {"rules": self.rules, "compiled": self.compiled}

    def total(self, sums: Any) -> Any:
        """Returns a structure of tensors added up over replicas: the same on all of them."""
        return sums

    def compute(self, function: Callable[[], T]) -> T:
        """Returns what a function does that stands between two totals: a runtime may compile it."""
        return function()

    def shard_for_update(self, where: str, value: Any) -> Any:
        """Returns a weight, or its gradient, split as the optimizer works on it.

        Args:
            where: program path of the weight.
            value: float32 tensor of the weight's shape.
        """
        del where
        return value

    def shard_for_storage(self, where: str, value: Any) -> Any:
        """Returns a weight after its update, split as it is between steps."""
        del where
        return value

    def device_scope(self, where: str) -> contextlib.AbstractContextManager[Any]:
        """Returns a context for what is made where a weight or state stands.

        Args:
            where: its program path; "" for the step.
        """
        del where
        return contextlib.nullcontext()

    def update_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context for all that `update` computes."""
        return contextlib.nullcontext()

    def select(self, condition: tf.Tensor, new: T, old: T) -> T:
        """Returns one of two structures of tensors: `new` if a condition is met, or else `old`.

        Args:
            condition: bool scalar.
            new: of `update`: weights, slots and state, each by program path.
            old: likewise.
        """
        return tf.cond(condition, lambda: new, lambda: old)


ONE_DEVICE = Placement()
