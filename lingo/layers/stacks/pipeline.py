"""A stack of alike layers as a pipeline: stages of layers, each on another micro-batch.

Layers stand in stages, in order: with 8 layers in 4 stages, layers 0 and 1 are the first. With
`circular_repeats` each stage has so many blocks, and micro-batches go round:

    stage             0      1      2      3
    round 0 layers  0 1    2 3    4 5    6 7
    round 1 layers  8 9  10 11  12 13  14 15

All stages compute side by side, lifted along the axis `stage`, which a mesh may split: then a
device holds the weights of its stages, and nothing but activations goes from one to the next.

Axes: B batch, M micro-batches, K stages, J turns of the pattern in a block, R rounds.
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
from lingo.layers.layer import Layer
from lingo.layers.lift import lift
from lingo.layers.stacks.micro_batches import (
    dealt,
    gathered,
    micro_batch_shape,
    placed,
    rows_together,
)
from lingo.layers.stacks.repeat import layer_index, scan_layers
from lingo.layers.stacks.stack import Stack
from lingo.layers.wrap.remat import recompute
from lingo.ops.scan import scan
from lingo.ops.shape import beside, swapped
from lingo.ops.shift_register import shift_register


class Pipeline(Stack):
    """Layers one after the other, in stages that work on micro-batches at once (Huang et al. 2019).

    Losses, gradients and random numbers are those of `Stack`, also of layers that add something up
    over the batch. In training M divides the batch; elsewhere the greatest common divisor of the
    two is taken, and on devices that hold all stages, layers just follow each other: these, and
    `step`, which computes few positions, go through the layers as `Repeat` does.

    The schedule is that of GSPMD (Xu et al. 2021, sec. 3.3): a stage is idle (on one device:
    computes in vain) in (K - 1) / (M R + K - 1) of the time. Turns that fill up the last blocks do
    nothing, in the time of the others: 6 layers in 4 stages stand in blocks of 2, and take as long
    as 8. A stage may have no layer at all, so that one K is for models of any depth.
    """

    num_stages: int  # K
    num_micro_batches: int  # M, into how many equal parts a batch in training is cut
    circular_repeats: int = 1  # R, how many blocks of layers a stage has
    remat: bool = False  # whether gradients keep only what passes between stages

    common: ClassVar[frozenset[str]] = frozenset({"position_table"})
    """Inputs that are not of examples: all micro-batches have the same."""

    def check(self) -> None:
        super().check()
        p = self.p
        ranges.check_positive(p, "num_stages", "num_micro_batches", "circular_repeats")
        if p.circular_repeats > 1 and p.num_micro_batches < p.num_stages:
            raise ParamError(
                f"num_micro_batches={p.num_micro_batches} is less than num_stages={p.num_stages}:"
                " with circular_repeats the first would leave the last stage too late for its next"
                " round"
            )
        if self._block * p.num_stages * (p.circular_repeats - 1) >= self._turns:
            raise ParamError(
                f"num_layers={p.num_layers}: blocks of {self._block * len(self.pattern)} in"
                f" num_stages={p.num_stages} leave none for the last of"
                f" circular_repeats={p.circular_repeats}"
            )

    @property
    def _turns(self) -> int:
        """How often the pattern is repeated in all."""
        return self.p.num_layers // len(self.pattern)

    @property
    def _block(self) -> int:
        """J: how often the pattern is repeated in a block."""
        return -(-self._turns // (self.p.num_stages * self.p.circular_repeats))

    def setup(self) -> None:
        # a round is a tensor of its own: so its blocks stand where their stages do
        size, per_round = len(self.pattern), self._block * self.p.num_stages
        self.turns = [
            min(per_round, self._turns - first) for first in range(0, self._turns, per_round)
        ]
        self.rounds: list[list[Layer]] = []
        for i, turns in enumerate(self.turns):
            self.rounds.append([layer.build(**inherited_values()) for layer in self.pattern])
            for place, layer in enumerate(self.rounds[i]):
                start = i * per_round * size + place
                self.repeated("layers", layer, turns, start=start, step=size, axis="stage")

    def __call__(self, x: tf.Tensor, **inputs: Any) -> tf.Tensor:
        given = {name: value for name, value in inputs.items() if value is not None}
        x = tf.cast(x, self.p.dtype)
        num = self._num_micro_batches(x)
        return self._one_by_one("__call__", x, **given) if num is None else self._run(x, given, num)

    def step(self, x: tf.Tensor, index: tf.Tensor, **inputs: Any) -> tf.Tensor:
        return self._one_by_one("step", tf.cast(x, self.p.dtype), index, **inputs)

    def flops(self, shape: Sequence[int]) -> int:
        return sum(self.layer_flops(shape))

    def blocks(self, shape: Sequence[int]) -> list[list[range]]:
        """Returns for each round, and each stage in it, which layers stand there.

        Args:
            shape: of the input; not used, for layers are alike.
        """
        del shape
        size, num = self._block * len(self.pattern), self.p.num_stages
        starts = range(0, self.p.circular_repeats * num * size, size)
        found = [range(start, min(start + size, self.p.num_layers)) for start in starts]
        return [found[i : i + num] for i in range(0, len(found), num)]

    def layer_flops(self, shape: Sequence[int]) -> list[int]:
        """Returns the operations of each layer, as `flops` those of all."""
        return [layer.flops(shape) for layer in self.rounds[0]] * self._turns

    def _one_by_one(self, method: str, x: tf.Tensor, *args: Any, **inputs: Any) -> tf.Tensor:
        for layers, turns in zip(self.rounds, self.turns, strict=True):

            def turn(x: tf.Tensor, layers: Sequence[Layer] = layers) -> tf.Tensor:
                for layer in layers:
                    x = getattr(layer, method)(x, *args, **inputs)
                return x

            x = scan_layers(turn, x, layers, turns)
        return x

    # ---- micro-batches -----------------------------------------------------------------------

    def _num_micro_batches(self, x: tf.Tensor) -> int | None:
        """Returns M for a batch; None if layers are to follow each other."""
        call, p = context.current(), self.p
        parts = 1 if call.rules is None else call.rules.parts("stage")
        if p.num_stages % parts:
            raise ParamError(
                f"{self._name}: num_stages={p.num_stages} do not stand on {parts} equal parts of"
                " the mesh: its axis stage has to divide them"
            )
        if not call.training:
            return None if parts == 1 else self._fitting(x)
        micro_batch_shape(self, tuple(x.shape))  # refuses what does not divide
        return p.num_micro_batches

    def _fitting(self, x: tf.Tensor) -> int | None:
        batch: Any = x.shape[0]
        if batch is None:
            return None
        num = math.gcd(batch // self._rows_together(x), self.p.num_micro_batches)
        return None if self.p.circular_repeats > 1 and num < self.p.num_stages else num

    def _rows_together(self, x: tf.Tensor) -> int:
        """Returns how many neighbouring rows cannot be parted."""
        shape: Any = x.shape
        return rows_together(self.rounds[0], shape)

    # ---- the pipeline ------------------------------------------------------------------------

    def _run(self, x: tf.Tensor, inputs: Mapping[str, Any], num: int) -> tf.Tensor:
        call, together = context.current(), self._rows_together(x)
        shared = {k: v for k, v in inputs.items() if k in self.common}
        riders = {k: v for k, v in inputs.items() if k not in self.common}
        # they may have no rows, if nothing is random
        riders = {"inputs": riders} | ({} if call.rows is None else {"rows": call.rows})
        x, riders = tf.nest.map_structure(
            lambda v: placed(dealt(v, num, together), None), (x, riders)
        )
        values = [self._blocks(call, i) for i in range(len(self.rounds))]

        def stages(items: tf.Tensor, x: tf.Tensor, riders: Any) -> tuple[tf.Tensor, Any]:
            rounds = tf.clip_by_value(items // num, 0, self.p.circular_repeats - 1)
            counts = (items >= 0) & (items < num * self.p.circular_repeats)
            args = (self._of_rounds(values, rounds), x, riders, shared, rounds, counts)
            compute = partial(self._stages, call)
            return recompute(compute, *args) if self.p.remat else compute(*args)

        y, (added, kept) = shift_register(
            stages,
            x,
            riders,
            num_stages=self.p.num_stages,
            num_rounds=self.p.circular_repeats,
            placed=lambda tensors, axis: tf.nest.map_structure(lambda v: placed(v, axis), tensors),
        )
        call.sides.add(tf.nest.map_structure(lambda v: tf.reduce_sum(v, axis=0), added))
        self._keep(kept, num)
        return gathered(y, together)

    def _stages(
        self,
        call: context.Call,
        values: Any,
        x: tf.Tensor,
        riders: Any,
        shared: Mapping[str, Any],
        rounds: tf.Tensor,
        counts: tf.Tensor,
    ) -> tuple[tf.Tensor, Any]:
        """Computes what all stages do in a tick.

        Args:
            call: the context of the pipeline.
            values: its weights and states, [J, K, ...] each, those of the round that a stage is in.
            x: [K, B / M, ...].
            riders: `inputs` and `rows`, likewise.
            shared: inputs without an axis of examples.
            rounds: int32 [K].
            counts: bool [K], whether a stage has a micro-batch.

        Returns:
            [K, B / M, ...]; and what adds up and what layers keep of side outputs, [J, K, ...].
        """
        num, compute = self.p.num_stages, partial(self._turn, call)
        first = (rounds * num + tf.range(num)) * self._block

        def turn(j: tf.Tensor, x: tf.Tensor, values: Any) -> tuple[tf.Tensor, Any]:
            args = (first + j, values, x, riders, shared, counts)
            # XLA has to know the shapes in a gradient, which vectorized_map computes: from within
            # the loop of the gradient it can, from the loop before it cannot
            return recompute(compute, *args) if call.compiled else compute(*args)

        x, (added, kept) = scan(turn, x, values, self._block)
        return x, (tf.nest.map_structure(lambda v: tf.reduce_sum(v, axis=0), added), kept)

    def _turn(
        self,
        call: context.Call,
        index: tf.Tensor,
        values: Any,
        x: tf.Tensor,
        riders: Any,
        shared: Mapping[str, Any],
        counts: tf.Tensor,
    ) -> tuple[tf.Tensor, Any]:
        """Computes one turn of the pattern in all stages, int32 [K] of all; else as `_stages`."""
        is_turn, inner = index < self._turns, call.derive(**values)
        with context.entered(inner):
            y = x = placed(x, "stage")  # else what the loop keeps of it may be gathered
            for layer in self.rounds[0]:
                y = lift(
                    layer,
                    self.p.num_stages,
                    y,
                    axis="stage",
                    rows=riders.get("rows"),
                    index=layer_index(layer, index),
                    counts=counts & is_turn,
                    common=shared,
                    **riders["inputs"],
                )
        # a layer of narrower type loses nothing by the cast
        y = tf.where(beside(is_turn, x), tf.cast(y, x.dtype), x)
        return y, (inner.sides.summed(), inner.sides.stacked())

    # ---- weights and statistics --------------------------------------------------------------

    def _blocks(self, call: context.Call, i: int) -> Any:
        """Returns weights and states of a round, [J, K, ...] each, by the paths of the first."""
        missing = self._block * self.p.num_stages - self.turns[i]

        def blocks(value: tf.Tensor) -> tf.Tensor:
            # a block is filled up with true weights: in vain, but without nan
            filled = tf.concat([value, *[value[-1:]] * missing], axis=0) if missing else value
            shape = [self.p.num_stages, self._block, *value.shape[1:]]
            return swapped(tf.reshape(filled, shape))

        found: dict[str, dict[str, Any]] = {}
        for layer, first in zip(self.rounds[i], self.rounds[0], strict=True):
            for field, values in call.of([layer]).items():
                renamed = {first.path + k.removeprefix(layer.path): v for k, v in values.items()}
                found.setdefault(field, {}).update(tf.nest.map_structure(blocks, renamed))
        return found

    def _of_rounds(self, values: Sequence[Any], rounds: tf.Tensor) -> Any:
        """Returns the weights and states that stages need in their rounds, [J, K, ...] each.

        Args:
            values: of each round.
            rounds: int32 [K].
        """

        def chosen(*alternatives: tf.Tensor) -> tf.Tensor:
            # an index would make a partitioner send weights
            found = alternatives[0]
            for i, other in enumerate(alternatives[1:], 1):
                is_in = tf.reshape(rounds == i, [1, -1, *[1] * (len(other.shape) - 2)])
                found = tf.where(is_in, other, found)
            return found

        return tf.nest.map_structure(chosen, *values)

    def _keep(self, kept: Mapping[str, Any], num: int) -> None:
        """Hands out what layers keep of side outputs, [N, J, K, ...], summed over micro-batches."""
        call, p = context.current(), self.p
        num_ticks = num * p.circular_repeats + p.num_stages - 1
        items = tf.range(num_ticks)[:, None] - tf.range(p.num_stages)
        for i, turns in enumerate(self.turns):
            in_round = items // num == i

            def of_round(value: tf.Tensor, in_round: tf.Tensor = in_round, turns: int = turns):
                chosen = tf.where(beside(in_round[:, None], value), value, tf.zeros_like(value))
                blocks = swapped(tf.reduce_sum(chosen, axis=0))
                return tf.reshape(blocks, [-1, *value.shape[3:]])[:turns]

            for layer, first in zip(self.rounds[i], self.rounds[0], strict=True):
                for field, values in kept.items():
                    mine = {
                        layer.path + k.removeprefix(first.path): v
                        for k, v in values.items()
                        if k.startswith(f"{first.path}/")
                    }
                    call.sides.add({field: tf.nest.map_structure(of_round, mine)})

    @property
    def _name(self) -> str:
        return self.path or type(self).__name__
