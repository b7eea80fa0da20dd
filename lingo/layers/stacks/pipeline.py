"""A stack of identical layers as a pipeline: stages compute different micro-batches in parallel.

Layers are assigned to stages in order: with 8 layers in 4 stages, stage 0 has layers 0 and 1. With
`circular_repeats` each stage has layers for each repeat, and micro-batches pass all stages once per
repeat:

    stage              0      1      2      3
    repeat 0 layers  0 1    2 3    4 5    6 7
    repeat 1 layers  8 9  10 11  12 13  14 15

All stages are vectorized along the axis `stage`. If a mesh shards this axis, each device holds the
weights of its stages, and devices exchange only activations. The layers in the field `layer` are
the *pattern*, and calling each of them once is a *pattern step*. A *tick* of the schedule is the
time in which each stage computes one micro-batch.

Axes: B batch, M micro-batches, K stages, R repeats, J pattern steps of a stage in a repeat, N ticks
of the schedule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError, inherited_values
from lingo.layers import context
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.stacks.lift import vmap_layer
from lingo.layers.stacks.micro_batches import (
    examples_together,
    merge_microbatches,
    micro_batch_shape,
    split_microbatches,
    with_sharding,
)
from lingo.layers.stacks.repeat import layer_index, scan_layers
from lingo.layers.stacks.stack import Stack
from lingo.layers.wrap.remat import recompute
from lingo.ops.scan import scan, scan_recomputed, unstack
from lingo.ops.shape import expand_like, swap_leading_axes
from lingo.ops.stage_loop import shift_register


class Pipeline(Stack):
    """Layers in stages that compute micro-batches in parallel (Huang et al. 2019).

    Losses, gradients and random numbers equal `Stack`'s, also for layers that compute sums over the
    batch. In training M must divide the batch size. Outside training, a sharded pipeline replaces M
    by the greatest common divisor of M and the batch size. A pipeline with all stages on one device
    then runs its layers one after the other by a scan, as `Repeat` does. `step`, which computes few
    positions, always does so.

    The schedule is GSPMD's (Xu et al. 2021, sec. 3.3). A stage is idle for (K - 1) / (M R + K - 1)
    of the time; on one device, it computes results that are dropped in this time. If stages have
    unequal numbers of layers, pattern steps that change nothing pad the last stages: 6 layers in 4
    stages take as long as 8. A stage may have no layer at all, so that one K works for models of
    any depth.
    """

    num_stages: int  # K
    num_micro_batches: int  # M, the number of equal parts of a batch in training
    circular_repeats: int = 1  # R, how often a micro-batch passes all stages
    remat: bool = False  # whether gradients keep only the activations between stages

    positionwise = True  # layers inside have their own

    common: ClassVar[frozenset[str]] = frozenset({"position_table"})
    """Names of inputs that have no batch axis, so that all micro-batches share them."""

    def check(self) -> None:
        super().check()
        p = self.p
        ranges.check_positive(p, "num_stages", "num_micro_batches", "circular_repeats")
        if p.circular_repeats > 1 and p.num_micro_batches < p.num_stages:
            raise ParamError(
                f"num_micro_batches={p.num_micro_batches} is less than num_stages={p.num_stages}:"
                " with circular_repeats the first micro-batch would leave the last stage too late"
                " for its next repeat"
            )
        if self._steps_per_stage * p.num_stages * (p.circular_repeats - 1) >= self._num_steps:
            num = self._steps_per_stage * len(self.pattern)
            raise ParamError(
                f"num_layers={p.num_layers}: {num} for each of num_stages={p.num_stages} leave no"
                f" layer for the last of circular_repeats={p.circular_repeats}"
            )

    @property
    def _num_steps(self) -> int:
        return self.p.num_layers // len(self.pattern)

    @property
    def _steps_per_stage(self) -> int:
        """J, the number of pattern steps of a stage in one repeat, padding included."""
        return -(-self._num_steps // (self.p.num_stages * self.p.circular_repeats))

    def setup(self) -> None:
        # Each repeat has its own tensors: a mesh cuts a tensor into runs of layers, so each layer
        # is then on the device of its stage.
        size, per_repeat = len(self.pattern), self._steps_per_stage * self.p.num_stages
        starts = range(0, self._num_steps, per_repeat)
        self.steps_per_repeat = [min(per_repeat, self._num_steps - first) for first in starts]
        self.repeats: list[list[Layer]] = []
        for first, num in zip(starts, self.steps_per_repeat, strict=True):
            self.repeats.append([layer.build(**inherited_values()) for layer in self.pattern])
            for start, layer in enumerate(self.repeats[-1], first * size):
                self.copies("layers", layer, num, start=start, step=size, axis="stage")

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        x = tf.cast(x, self.p.dtype)
        num = self._num_micro_batches(x)
        if num is None:
            return self._one_by_one("__call__", x, inputs=inputs)
        return self._run(x, inputs.by_name(), num)

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        return self._one_by_one("step", tf.cast(x, self.p.dtype), index, inputs=inputs)

    def flops(self, shape: Sequence[int], *, memory_length: int | None = None) -> int:
        return sum(self.layer_flops(shape, memory_length=memory_length))

    def stage_layers(self, shape: Sequence[int]) -> list[list[range]]:
        """Returns the indices of each stage's layers, R lists (one per repeat) of K ranges.

        They do not depend on the input's shape.
        """
        del shape
        size, num = self._steps_per_stage * len(self.pattern), self.p.num_stages
        starts = range(0, self.p.circular_repeats * num * size, size)
        stages = [range(start, min(start + size, self.p.num_layers)) for start in starts]
        return [stages[i : i + num] for i in range(0, len(stages), num)]

    def layer_flops(self, shape: Sequence[int], *, memory_length: int | None = None) -> list[int]:
        """Returns the operations of each layer's matrix products in a forward call.

        `shape` is the shape of the input.
        """
        shape = tuple(shape)  # a new tensor: a layer does not read the pipeline's own input
        flops: list[int] = []
        for layers, num in zip(self.repeats, self.steps_per_repeat, strict=True):
            flops += [layer.flops(shape, memory_length=memory_length) for layer in layers] * num
        return flops

    def _one_by_one(self, method: str, x: tf.Tensor, *args: Any, inputs: CallInputs) -> tf.Tensor:
        for layers, num in zip(self.repeats, self.steps_per_repeat, strict=True):

            def pattern_step(x: tf.Tensor, layers: Sequence[Layer] = layers) -> tf.Tensor:
                for layer in layers:
                    x = getattr(layer, method)(x, *args, inputs=inputs)
                return x

            x = scan_layers(pattern_step, x, layers, num)
        return x

    def _num_micro_batches(self, x: tf.Tensor) -> int | None:
        """Returns M for a batch x [B, ...]; None: run the layers one after the other."""
        call, p = context.current(), self.p
        parts = 1 if call.rules is None else call.rules.parts("stage")
        if p.num_stages % parts:
            raise ParamError(
                f"{self._name}: num_stages={p.num_stages} is not a multiple of the {parts} parts of"
                " the mesh along its axis stage"
            )
        if not call.training:
            return None if parts == 1 else self._largest_divisor(x)
        micro_batch_shape(self, tuple(x.shape))  # raises ParamError if M does not divide the batch
        return p.num_micro_batches

    def _largest_divisor(self, x: tf.Tensor) -> int | None:
        """Returns the largest divisor of M that a batch x [B, ...] can be cut into.

        None: B is unknown, or the divisor is too small for circular repeats.
        """
        batch: Any = x.shape[0]
        if batch is None:
            return None
        num = math.gcd(batch // self._examples_together(x), self.p.num_micro_batches)
        return None if self.p.circular_repeats > 1 and num < self.p.num_stages else num

    def _examples_together(self, x: tf.Tensor) -> int:
        """Returns the number of neighbouring examples of x [B, ...] that must stay together."""
        shape: Any = x.shape
        return examples_together(self.repeats[0], shape)

    def _run(self, x: tf.Tensor, inputs: Mapping[str, Any], num: int) -> tf.Tensor:
        call, together = context.current(), self._examples_together(x)
        shared = {k: v for k, v in inputs.items() if k in self.common}
        per_example = {"inputs": {k: v for k, v in inputs.items() if k not in self.common}}
        if call.rows is not None:  # the context may have none if nothing is random
            per_example["rows"] = call.rows
        x, per_example = tf.nest.map_structure(
            lambda v: with_sharding(split_microbatches(v, num, together), None), (x, per_example)
        )
        values = [self._values_by_stage(call, i) for i in range(len(self.repeats))]
        arrays = unstack(values, self._steps_per_stage) if call.compiled else None

        def stages(index: tf.Tensor, x: tf.Tensor, per_example: Any) -> tuple[tf.Tensor, Any]:
            repeats = tf.clip_by_value(index // num, 0, self.p.circular_repeats - 1)
            counts = (index >= 0) & (index < num * self.p.circular_repeats)
            args = (values, x, per_example, shared, repeats, counts)
            compute = partial(self._compute_stages, call, arrays)
            return recompute(compute, *args) if self.p.remat else compute(*args)

        y, (additive, per_layer) = shift_register(
            stages,
            x,
            per_example,
            num_stages=self.p.num_stages,
            num_repeats=self.p.circular_repeats,
            with_sharding=lambda tensors, axis: tf.nest.map_structure(
                lambda v: with_sharding(v, axis), tensors
            ),
        )
        call.sides.add(tf.nest.map_structure(lambda v: tf.reduce_sum(v, axis=0), additive))
        self._add_per_layer_sides(per_layer, num)
        return merge_microbatches(y, together)

    def _compute_stages(
        self,
        call: context.Call,
        arrays: Sequence[Any] | None,
        values: Sequence[Any],
        x: tf.Tensor,
        per_example: Any,
        shared: Mapping[str, Any],
        repeats: tf.Tensor,
        counts: tf.Tensor,
    ) -> tuple[tf.Tensor, Any]:
        """Computes one tick of the schedule: each stage computes its current micro-batch.

        Args:
            call: the context around the pipeline.
            arrays: the result of `unstack` for `values` if the program is compiled, else None.
            values: for each repeat, its weights and states, [J, K, ...] each.
            x: activations of the stages, [K, B / M, ...].
            per_example: further inputs and `rows`, [K, B / M, ...] each.
            shared: inputs that all micro-batches share, by name.
            repeats: int32 [K], the repeat that each stage is in.
            counts: bool [K], whether each stage has a micro-batch.

        Returns:
            New activations [K, B / M, ...], and a pair of side outputs: the additive ones, summed
            over layers, and those per layer, [J, K, ...].
        """
        constants = (per_example, shared, repeats, counts)
        compute, num = partial(self._compute_pattern_step, call), self._steps_per_stage
        if call.compiled:
            # A plain scan would make the loop over ticks keep each tick's weights. XLA also needs
            # static shapes in the gradient of vectorized_map, which are known only if the loop
            # recomputes a step.
            x, (additive, per_layer) = scan_recomputed(
                compute, x, values, constants, num, arrays=arrays
            )
        else:
            x, (additive, per_layer) = scan(
                lambda j, x, values: compute(j, x, values, constants), x, values, num
            )
        return x, (tf.nest.map_structure(lambda v: tf.reduce_sum(v, axis=0), additive), per_layer)

    def _compute_pattern_step(
        self,
        call: context.Call,
        j: tf.Tensor,
        x: tf.Tensor,
        values: Sequence[Any],
        constants: tuple[Any, Mapping[str, Any], tf.Tensor, tf.Tensor],
    ) -> tuple[tf.Tensor, Any]:
        """Computes pattern step j, an int32 scalar, of all stages in one tick.

        `values` are [K, ...] for each repeat; `constants` are `per_example`, `shared`, `repeats`
        and `counts` of `_compute_stages`. Side outputs per layer are [K, ...].
        """
        per_example, shared, repeats, counts = constants
        index = (repeats * self.p.num_stages + tf.range(self.p.num_stages)) * self._steps_per_stage
        index += j
        is_step, inner = index < self._num_steps, call.derive(**_select_repeat(values, repeats))
        with context.enter_call(inner):
            y = x = with_sharding(x, "stage")  # without this, the loop may store x unsharded
            for layer in self.repeats[0]:
                y = vmap_layer(
                    layer,
                    self.p.num_stages,
                    y,
                    axis="stage",
                    rows=per_example.get("rows"),
                    index=layer_index(layer, index),
                    counts=counts & is_step,
                    common=shared,
                    **per_example["inputs"],
                )
        # lossless if the layer computes in a narrower type
        y = tf.where(expand_like(is_step, x), tf.cast(y, x.dtype), x)
        return y, (inner.sides.additive_fields(), inner.sides.per_layer_fields())

    def _values_by_stage(self, call: context.Call, i: int) -> Any:
        """Returns the weights and states of repeat i, [J, K, ...] each: {field: {path: tensor}}.

        Repeat 0's layers compute all repeats, so the tensors have the paths of these layers.
        """
        missing = self._steps_per_stage * self.p.num_stages - self.steps_per_repeat[i]

        def by_stage(value: tf.Tensor) -> tf.Tensor:
            # pad with copies of real weights: results of padding are dropped, but must not be nan
            filled = tf.concat([value, *[value[-1:]] * missing], axis=0) if missing else value
            shape = [self.p.num_stages, self._steps_per_stage, *value.shape[1:]]
            return swap_leading_axes(tf.reshape(filled, shape))

        by_field: dict[str, dict[str, Any]] = {}
        for layer, first in zip(self.repeats[i], self.repeats[0], strict=True):
            for field, values in call.of([layer]).items():
                renamed = {first.path + k.removeprefix(layer.path): v for k, v in values.items()}
                by_field.setdefault(field, {}).update(tf.nest.map_structure(by_stage, renamed))
        return by_field

    def _add_per_layer_sides(self, sides: Mapping[str, Any], num: int) -> None:
        """Adds the side outputs of each layer to the context, summed over micro-batches.

        `sides` are [N, J, K, ...] tensors, for N ticks, under the paths of repeat 0's layers. `num`
        is the number of micro-batches.
        """
        call, p = context.current(), self.p
        num_ticks = num * p.circular_repeats + p.num_stages - 1
        index = tf.range(num_ticks)[:, None] - tf.range(p.num_stages)
        for i, num_steps in enumerate(self.steps_per_repeat):
            is_in = index // num == i

            def by_layer(value: tf.Tensor, is_in: tf.Tensor = is_in, num: int = num_steps) -> Any:
                mine = tf.where(expand_like(is_in[:, None], value), value, tf.zeros_like(value))
                by_stage = swap_leading_axes(tf.reduce_sum(mine, axis=0))
                return tf.reshape(by_stage, [-1, *value.shape[3:]])[:num]

            for layer, first in zip(self.repeats[i], self.repeats[0], strict=True):
                for field, values in sides.items():
                    mine = {
                        layer.path + k.removeprefix(first.path): v
                        for k, v in values.items()
                        if k.startswith(f"{first.path}/")
                    }
                    call.sides.add({field: tf.nest.map_structure(by_layer, mine)})

    @property
    def _name(self) -> str:
        return self.path or type(self).__name__


def _select_repeat(values: Sequence[Any], repeats: tf.Tensor) -> Any:
    """Selects for each stage the values of the repeat that the stage is in.

    `values` has for each repeat a structure of [K, ...] tensors; `repeats` is int32 [K].
    """

    def select(first: tf.Tensor, *others: tf.Tensor) -> tf.Tensor:
        # not tf.gather, for which a partitioner would send weights between devices
        for i, other in enumerate(others, 1):
            first = tf.where(expand_like(repeats == i, other), other, first)
        return first

    return tf.nest.map_structure(select, *values)
