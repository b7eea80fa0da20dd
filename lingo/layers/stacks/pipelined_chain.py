"""Different layers as a pipeline: contiguous stages of about equal cost, one per device.

    stages        = partition(costs of the layers)    # lingo.mesh.pipeline: balances the stages
    micro_batches = split_microbatches(batch)         # as for `Pipeline`
    run_stages(stages, micro_batches)                 # lingo.ops.stage_loop: GPipe's schedule, all
                                                      # forward passes, then all backward passes

The program has one copy of each layer's computation, for any number of micro-batches.

Axes: B batch, M micro-batches, K stages.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.layers.stacks.micro_batches import (
    examples_together,
    first_shape,
    merge_microbatches,
    micro_batch_shape,
    split_microbatches,
)
from lingo.layers.stacks.stack import Chain
from lingo.mesh.pipeline import partition
from lingo.ops.scope import on_device
from lingo.ops.stage_loop import Stage, run_stages


class PipelinedChain(Chain):
    """Different layers in stages that compute micro-batches in parallel (Huang et al. 2019).

    Only the activations between stages are stored for gradients (sec. 2.3). Results equal
    `Chain`'s, with one exception: values that depend on all examples of a call, such as the
    statistics of `BatchNorm`, are computed per micro-batch. Outside training there are no
    micro-batches.
    """

    num_stages: int  # K, at most the number of layers
    num_micro_batches: int  # M, the number of equal parts of a batch
    # measured time of each layer, by which stages are balanced; None: layers' FLOPs balance them
    times: list[float] | None = None

    positionwise = True  # layers inside have their own

    def check(self) -> None:
        super().check()
        p = self.p
        ranges.check_positive(p, "num_stages", "num_micro_batches")
        if p.num_stages > len(p.layers):
            raise ParamError(
                f"num_stages={p.num_stages} for {len(p.layers)} layers: each stage needs one layer"
            )
        if p.times is not None and len(p.times) != len(p.layers):
            raise ParamError(
                f"times has {len(p.times)} numbers: give one for each of the {len(p.layers)} layers"
            )

    def stage_layers(self, shape: Any) -> list[list[range]]:
        """Returns the indices of each stage's layers: a list of one list of K ranges.

        `shape` is the shape of a micro-batch. The outer list is for repeats, as in `Pipeline`.
        """
        costs = self.p.times if self.p.times is not None else self.layer_flops(shape)
        return [list(partition(costs, self.p.num_stages))]

    def __call__(self, x: Any) -> Any:
        call, num = context.current(), self.p.num_micro_batches
        if not call.training:
            for layer in self.layers:
                with on_device(call.devices.get(layer.path)):
                    x = layer(x)
            return x
        x = tf.nest.map_structure(tf.convert_to_tensor, x)
        shape = micro_batch_shape(self, _shape(x))
        together = examples_together([self], first_shape(shape))
        stages = [self._stage(layers, call) for layers in self._stages(shape)]
        parts = tf.nest.map_structure(partial(split_microbatches, num=num, together=together), x)
        rows = {} if call.rows is None else {"rows": split_microbatches(call.rows, num, together)}
        y, sides = run_stages(stages, parts, rows)
        for stage, sums in zip(stages, sides, strict=True):
            with on_device(stage.device):
                call.sides.add(sums)
        return tf.nest.map_structure(partial(merge_microbatches, together=together), y)

    def _stage(self, layers: range, call: context.Call) -> Stage:
        """Returns a stage that computes the layers with the indices `layers`.

        The stage runs on the device that the context assigns to its first layer.
        """
        mine = self.layers[layers.start : layers.stop]

        def compute(weights: Any, x: Any, inputs: Any) -> tuple[Any, Any]:
            inner = call.derive(weights=weights, **inputs)
            with context.enter_call(inner):
                for layer in mine:
                    x = layer(x)
            return x, inner.sides.additive_fields() | inner.sides.per_layer_fields()

        return Stage(compute, call.of(mine)["weights"], call.devices.get(mine[0].path))

    def _stages(self, shape: Any) -> list[range]:
        """Returns the indices of each stage's layers, for a micro-batch of shape `shape`.

        Layers on one device in the context's `devices` are a stage; without devices, stages are
        balanced by cost.
        """
        devices = context.current().devices
        if self.layers[0].path not in devices:
            return self.stage_layers(shape)[0]
        # each run of layers on one device is a stage: neighbouring stages have different devices
        runs = itertools.groupby(
            range(len(self.layers)), key=lambda i: devices[self.layers[i].path]
        )
        return [range(min(run), max(run) + 1) for run in (list(run) for _, run in runs)]


def _shape(x: Any) -> Any:
    """Returns the shape of a tensor; for several tensors, a tuple of their shapes."""
    return tuple(map(_shape, x)) if isinstance(x, (tuple, list)) else tuple(x.shape)
