"""Where the tensors of a step are: on one device, or as a runtime of many devices splits them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lingo.config.lazy import tf
from lingo.layers.context import Rules
from lingo.learner.state import Slots, TrainState, WhichWeights
from lingo.optim.optimizer import Weight

T = TypeVar("T")


class Placement:
    """Where a step's tensors are. Here: on one device; runtimes of many devices have subclasses.

    `rules` are the sharding rules for layers' tensors, None if nothing is split; `compiled` is
    whether XLA compiles the layers; `weights_ready` and `constant_ranges` are fields of `Call`.
    """

    rules: Rules | None = None
    gathers_weights: bool = False  # whether `update` returns sharded weights, for `gather_weights`
    keeps_parts: bool = False  # whether a step begins with sharded weights, and gathers them

    def __init__(
        self, *, compiled: bool = False, weights_ready: bool = False, constant_ranges: bool = False
    ) -> None:
        self.compiled = compiled
        self._fields = {"weights_ready": weights_ready, "constant_ranges": constant_ranges}

    def call_fields(self) -> dict[str, Any]:
        """Returns the fields of the call context (`Call`) that this placement sets."""
        return {"rules": self.rules, "compiled": self.compiled, **self._fields}

    def total(self, sums: Any) -> Any:
        """Returns the structure `sums` with each tensor summed over replicas, the same on each."""
        return sums

    def join_examples(self, values: Any) -> Any:
        """Joins the tensors [N, ...] of all devices along N; returns a structure like `values`.

        N counts something for each of a device's own examples, such as lookups. The result is the
        same on each device.
        """
        return values

    def compute(self, function: Callable[[], T]) -> T:
        """Returns `function()`, which calls no `total`: a runtime may compile it."""
        return function()

    def weights_for_layers(self, weights: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Turns weights, by path, as kept between steps, into weights as a step's layers read them.

        The results are float32 in the weights' shapes, perhaps rounded to fewer bits.
        """
        return dict(weights)

    def update_weight(self, weight: Weight) -> Weight:
        """Returns a weight's description for the optimizer; `row_columns` is set if it is split."""
        return weight

    def shard_for_update(self, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns weights, or their gradients, by path, split for the optimizer.

        `values` are float32 in the weights' shapes; `update_weight` describes the results.
        """
        return dict(values)

    def shard_for_storage(self, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns updated weights, by path, as `update` returns them: perhaps still split."""
        return dict(values)

    def gather_weights(self, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Gathers the results of `shard_for_storage`, by path, into weights in their own shapes."""
        return dict(values)

    def state_for_evaluation(self, state: TrainState, weights: WhichWeights) -> TrainState:
        """Returns a state with the weights and statistics to evaluate with, gathered."""
        selected, gather = state.select(weights), self.gather_weights
        if weights == "ema":  # averages are kept as slots
            averages = {k: v for k, v in selected.state.items() if k in state.slots}
            states = {**selected.state, **gather(averages)}  # counts have no averages
            return selected._replace(weights=gather(selected.weights), state=states)
        return state._replace(weights=gather(state.weights)) if self.keeps_parts else state

    def slots_for_update(self, slots: Slots) -> Slots:
        """Returns all slots as the optimizer gets them, from the slots kept between steps."""
        return slots

    def slots_for_storage(self, slots: Slots) -> Slots:
        """Returns all slots as they are kept between steps."""
        return slots

    def total_of_parts(self, sums: T) -> T:
        """Adds up, over devices, the sums of each device's results of `shard_for_update`."""
        return sums

    def device_scope(self, where: str) -> contextlib.AbstractContextManager[Any]:
        """Returns a context for tensors on the device of the weight or state at path `where`."""
        return contextlib.nullcontext()

    def update_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context for everything that `update` computes."""
        return contextlib.nullcontext()

    def select(self, condition: tf.Tensor, new: T, old: T) -> T:
        """Returns `new` if the condition holds, else `old`: structures of tensors of any shape."""
        return tf.cond(condition, lambda: new, lambda: old)


ONE_DEVICE = Placement()
