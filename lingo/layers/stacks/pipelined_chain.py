"""Different layers as a pipeline: contiguous stages of about equal cost, unrolled, one per device.

    stages        = the optimal partition of the layers (lingo.mesh.pipeline.partition)
    micro-batches = split_microbatches(batch), as for `Pipeline`
    for tick, stage, micro-batch = tick - stage:       # all forward, then all backward (GPipe)
        x[micro-batch] = stage(x[micro-batch])         # only x is stored; the rest is recomputed

The program has a copy of the computation for each stage and micro-batch, as layers that differ
cannot share a loop like those of `Pipeline`.

Axes: B batch, M micro-batches, K stages.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.layers.layer import Layer
from lingo.layers.stacks.chain import Chain
from lingo.layers.stacks.micro_batches import (
    examples_together,
    first_shape,
    merge_microbatches,
    micro_batch_shape,
    split_microbatches,
)
from lingo.layers.wrap.remat import recompute
from lingo.mesh.pipeline.partition import partition
from lingo.ops.device import on_device


class PipelinedChain(Chain):
    """Different layers in stages that compute micro-batches in parallel (Huang et al. 2019).

    Only the activations between stages are stored for gradients (sec. 2.3). Results equal those of
    `Chain`, except that what layers compute over the examples of a call, such as the statistics of
    `BatchNorm`, they compute over a micro-batch. Outside training it computes as a `Chain`.
    """

    num_stages: int  # K, at most as many as there are layers
    num_micro_batches: int  # M, into how many equal parts a batch is cut
    times: list[float] | None = None  # measured, of each layer, to balance stages; None: by FLOPs

    positionwise = True  # layers inside have their own

    def check(self) -> None:
        super().check()
        p = self.p
        ranges.check_positive(p, "num_stages", "num_micro_batches")
        if p.num_stages > len(p.layers):
            raise ParamError(
                f"num_stages={p.num_stages} for {len(p.layers)} layers: each stage needs one"
            )
        if p.times is not None and len(p.times) != len(p.layers):
            raise ParamError(
                f"times has {len(p.times)} numbers, one for each of the {len(p.layers)} layers is"
                " wanted"
            )

    def stage_layers(self, shape: Any) -> list[list[range]]:
        """Returns the layers of each stage, in a list of one, by the shape for a micro-batch."""
        costs = self.p.times if self.p.times is not None else self.layer_flops(shape)
        return [list(partition(costs, self.p.num_stages))]

    def __call__(self, x: Any) -> Any:
        call, num = context.current(), self.p.num_micro_batches
        if not call.training:
            for layer in self.layers:
                with on_device(call.devices.get(layer.path)):
                    x = layer(x)
            return x
        shape = micro_batch_shape(self, _shape(x))
        together = examples_together([self], first_shape(shape))
        parts, rows = _parts(x, num, together), _parts(call.rows, num, together)
        stages = [self.layers[layers.start : layers.stop] for layers in self._stages(shape)]
        values = [call.of(layers) for layers in stages]
        for tick in range(num + len(stages) - 1):
            for k, layers in enumerate(stages):
                if 0 <= (i := tick - k) < num:
                    more = i < num - 1
                    parts[i], passed = _run_stage(layers, values[k], parts[i], rows[i], more=more)
                    values[k] = {**values[k], "weights": passed}
        return tf.nest.map_structure(lambda *v: merge_microbatches(tf.stack(v), together), *parts)

    def _stages(self, shape: Any) -> list[range]:
        """Returns the layers of each stage: as the context's `devices` assigns them, or by cost."""
        devices = context.current().devices
        if self.layers[0].path not in devices:
            return self.stage_layers(shape)[0]
        # neighbouring stages are always on different devices
        runs = itertools.groupby(
            range(len(self.layers)), key=lambda i: devices[self.layers[i].path]
        )
        return [range(min(run), max(run) + 1) for run in (list(run) for _, run in runs)]


def _run_stage(
    layers: Sequence[Layer], values: Any, x: Any, rows: tf.Tensor | None, *, more: bool
) -> tuple[Any, Any]:
    """Computes a stage on a micro-batch; its gradient recomputes it.

    The weights pass through the stage to the next micro-batch, if there is one `more`. So their
    gradients are summed on the stage's device, one micro-batch after the other, with at most two of
    them in memory. Returns the output of the stage, and the weights for the next micro-batch.
    """
    call = context.current()
    device = call.devices.get(layers[0].path)

    def body(values: Any, x: Any, rows: tf.Tensor | None) -> Any:
        inner = call.derive(rows=rows, **values)
        with context.enter_call(inner):
            for layer in layers:
                x = layer(x)
        passed = values["weights"] if more else {}
        return x, inner.sides.additive_fields() | inner.sides.per_layer_fields(), passed

    y, sides, passed = recompute(body, values, x, rows, device=device)
    with on_device(device):
        call.sides.add(sides)
    return y, passed


def _parts(x: Any, num: int, together: int) -> list[Any]:
    """Splits a batch, [B, ...] or a structure of those, into M micro-batches; None into None."""
    if x is None:
        return [None] * num
    parts = tf.nest.map_structure(
        lambda v: split_microbatches(tf.convert_to_tensor(v), num, together), x
    )
    return [tf.nest.map_structure(lambda v, i=i: v[i], parts) for i in range(num)]


def _shape(x: Any) -> Any:
    """Returns the shape of a tensor; a tuple of shapes for a tuple of tensors."""
    return tuple(map(_shape, x)) if isinstance(x, (tuple, list)) else tuple(x.shape)
