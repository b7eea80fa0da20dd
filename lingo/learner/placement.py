"""The placement of a step's tensors, which a runtime passes to the pure functions of the step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from lingo.config.lazy import tf
from lingo.layers.context import Rules

T = TypeVar("T")


class Placement:
    """Every tensor is whole and on one device; runtimes of many devices subclass it.

    Attributes:
        rules: sharding rules for what layers compute; None where nothing is split.
        compiled: whether XLA compiles what layers compute.
    """

    rules: Rules | None = None

    def __init__(self, *, compiled: bool = False) -> None:
        """Creates a placement; no tensor is placed yet.

        Args:
            compiled: whether XLA compiles what layers compute.
        """
        self.compiled = compiled

    def call_fields(self) -> dict[str, Any]:
        """Returns the fields of the call context (`Call`) that this placement sets."""
        return {"rules": self.rules, "compiled": self.compiled}

    def total(self, sums: Any) -> Any:
        """Returns a structure of tensors summed over replicas: the same result on each of them.

        Args:
            sums: tensors of any shape, in any structure.
        """
        return sums

    def compute(self, function: Callable[[], T]) -> T:
        """Returns `function()`, computed between two calls of `total`: a runtime may compile it."""
        return function()

    def shard_for_update(self, where: str, value: Any) -> Any:
        """Returns a weight, or its gradient, split as the optimizer needs it.

        Args:
            where: program path of the weight.
            value: float32 tensor of the weight's program shape.

        Returns:
            A tensor of the same shape and dtype.
        """
        del where
        return value

    def shard_for_storage(self, where: str, value: Any) -> Any:
        """Returns a weight after its update, split as it is between steps.

        Args:
            where: program path of the weight.
            value: float32 tensor of the weight's program shape.

        Returns:
            A tensor of the same shape and dtype.
        """
        del where
        return value

    def device_scope(self, where: str) -> contextlib.AbstractContextManager[Any]:
        """Returns a context whose tensors are on the device of a weight or state.

        Args:
            where: program path of the weight or state; "" for the step number.
        """
        del where
        return contextlib.nullcontext()

    def update_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context for everything that `update` computes."""
        return contextlib.nullcontext()

    def select(self, condition: tf.Tensor, new: T, old: T) -> T:
        """Returns one of two structures of tensors: `new` if the condition is true, else `old`.

        Args:
            condition: bool scalar.
            new: weights, slots and state after `update`, each by program path, any shape.
            old: the same before `update`.
        """
        return tf.cond(condition, lambda: new, lambda: old)


ONE_DEVICE = Placement()
