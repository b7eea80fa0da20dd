"""Where the tensors of a training step are: what a runtime tells the step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from lingo.config.lazy import tf
from lingo.layers.context import Rules
from lingo.optim.optimizer import Weight

T = TypeVar("T")

Slots: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The slots of all weights: program path -> {slot: tensor}."""


class Placement:
    """Where a step's tensors are: here whole, on one device; runtimes of many devices subclass it.

    `rules` are the sharding rules for what layers compute, None where nothing is split; `compiled`
    tells whether XLA compiles that, `weights_ready` and `constant_ranges` what `Call` says of them.
    """

    rules: Rules | None = None
    gathers_weights: bool = False  # `update` returns weights as updated, then `gather_weights`

    def __init__(
        self, *, compiled: bool = False, weights_ready: bool = False, constant_ranges: bool = False
    ) -> None:
        self.compiled = compiled
        self._fields = {"weights_ready": weights_ready, "constant_ranges": constant_ranges}

    def call_fields(self) -> dict[str, Any]:
        """Returns the fields of the call context (`Call`) that this placement sets."""
        return {"rules": self.rules, "compiled": self.compiled, **self._fields}

    def total(self, sums: Any) -> Any:
        """Returns a structure of tensors, of any shape, summed over replicas: the same on each."""
        return sums

    def compute(self, function: Callable[[], T]) -> T:
        """Returns `function()`, computed between two calls of `total`: a runtime may compile it."""
        return function()

    def update_weight(self, weight: Weight) -> Weight:
        """Returns a weight's description as the optimizer gets it: perhaps with a `part`."""
        return weight

    def shard_for_update(self, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns weights, or their gradients, by path, split for the optimizer.

        They are float32 of their shapes; the results are as `update_weight` says.
        """
        return dict(values)

    def shard_for_storage(self, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns weights after their update, by path, in their shapes, as between steps."""
        return dict(values)

    def gather_weights(self, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns weights, by path, from what `shard_for_storage` returned of them."""
        return dict(values)

    def slots_for_update(self, slots: Slots) -> Slots:
        """Returns all slots as the optimizer gets them, from what is kept between steps."""
        return slots

    def slots_for_storage(self, slots: Slots) -> Slots:
        """Returns what is kept of all slots after the update."""
        return slots

    def total_of_parts(self, sums: T) -> T:
        """Returns a structure of sums over what `shard_for_update` returns, over all of it."""
        return sums

    def device_scope(self, where: str) -> contextlib.AbstractContextManager[Any]:
        """Returns a context whose tensors are on the device of a weight or state; "": the step."""
        return contextlib.nullcontext()

    def update_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context for everything that `update` computes."""
        return contextlib.nullcontext()

    def select(self, condition: tf.Tensor, new: T, old: T) -> T:
        """Returns one of two structures of tensors, of any shape: `new` if true, else `old`."""
        return tf.cond(condition, lambda: new, lambda: old)


ONE_DEVICE = Placement()
