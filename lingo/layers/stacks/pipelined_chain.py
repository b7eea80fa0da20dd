"""Unlike layers as a pipeline: contiguous stages of equal cost, unrolled, each on a device.

    stage        = the layers of a part of the exact best split (lingo.mesh.pipeline.partition)
    micro-batch  = rows dealt out, as to those of `Pipeline`
    for tick, stage, micro-batch = tick - stage:       # all forward, then all backward (GPipe)
        x[micro-batch] = stage(x[micro-batch])         # only x is kept; the rest is computed again

There is a copy of the computation in the program for each stage and micro-batch: what alike layers
have in a loop (`Pipeline`), unlike ones cannot.
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
    first_shape,
    merge_microbatches,
    micro_batch_shape,
    rows_together,
    split_microbatches,
)
from lingo.layers.wrap.remat import recompute
from lingo.mesh.pipeline.partition import partition
from lingo.ops.device import on_device


class PipelinedChain(Chain):
    """Layers one after the other, in stages that work on micro-batches at once (Huang et al. 2019).

    Gradients keep what passes between stages, and nothing else (sec. 2.3). Results are those of
    `Chain`; but what layers compute over the examples of a call, such as the statistics of
    `BatchNorm`, they compute over a micro-batch. In training alone: elsewhere it is a `Chain`.
    """

    num_stages: int  # K, at most as many as there are layers
    num_micro_batches: int  # M, into how many equal parts a batch is cut
    times: list[float] | None = None  # of each layer, measured; None: the operations they do

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

    def blocks(self, shape: Any) -> list[list[range]]:
        """Returns of the only round which layers stand in each stage.

        Args:
            shape: of the input for one micro-batch; tuples of shapes for several tensors. With
                `times` it is not used.
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
        shape = micro_batch_shape(self, _shape(x))
        together = rows_together([self], first_shape(shape))
        found, rows = _parts(x, num, together), _parts(call.rows, num, together)
        stages = [self.layers[layers.start : layers.stop] for layers in self._stages(shape)]
        values = [call.of(layers) for layers in stages]
        for tick in range(num + len(stages) - 1):
            for k, layers in enumerate(stages):
                if 0 <= (i := tick - k) < num:
                    more = i < num - 1
                    found[i], handed = _run_stage(layers, values[k], found[i], rows[i], more=more)
                    values[k] = {**values[k], "weights": handed}
        return tf.nest.map_structure(lambda *v: merge_microbatches(tf.stack(v), together), *found)

    def _stages(self, shape: Any) -> list[range]:
        """Returns which layers stand in each stage: as the devices have them, or by cost."""
        devices = context.current().devices
        if self.layers[0].path not in devices:
            return self.blocks(shape)[0]
        # neighbouring stages are never on one device
        runs = itertools.groupby(
            range(len(self.layers)), key=lambda i: devices[self.layers[i].path]
        )
        return [range(min(run), max(run) + 1) for run in (list(run) for _, run in runs)]


def _run_stage(
    layers: Sequence[Layer], values: Any, x: Any, rows: tf.Tensor | None, *, more: bool
) -> tuple[Any, Any]:
    """Computes a stage for a micro-batch; for its gradient it is computed again.

    The weights go through it to the next micro-batch: so their gradients add up where the stage
    stands, one micro-batch after the other, and never more than two of them are there.

    Args:
        layers: of the stage.
        values: their weights and states, {field: {program path: tensor}}.
        x: what comes in.
        rows: of the micro-batch.
        more: whether another micro-batch follows.

    Returns:
        What goes out; and the weights for the next micro-batch, {} after the last.
    """
    call = context.current()
    device = call.devices.get(layers[0].path)

    def body(values: Any, x: Any, rows: tf.Tensor | None) -> Any:
        inner = call.derive(rows=rows, **values)
        with context.enter_call(inner):
            for layer in layers:
                x = layer(x)
        handed = values["weights"] if more else {}
        return x, inner.sides.additive_fields() | inner.sides.per_layer_fields(), handed

    y, sides, handed = recompute(body, values, x, rows, device=device)
    with on_device(device):
        call.sides.add(sides)
    return y, handed


def _parts(x: Any, num: int, together: int) -> list[Any]:
    """Returns a batch in micro-batches: tensors, tuples of them, or None of None."""
    if x is None:
        return [None] * num
    parts = tf.nest.map_structure(
        lambda v: split_microbatches(tf.convert_to_tensor(v), num, together), x
    )
    return [tf.nest.map_structure(lambda v, i=i: v[i], parts) for i in range(num)]


def _shape(x: Any) -> Any:
    """Returns the shape of a tensor, a tuple of shapes for a tuple of tensors."""
    return tuple(map(_shape, x)) if isinstance(x, (tuple, list)) else tuple(x.shape)
