"""Unlike layers as a pipeline: contiguous stages of equal cost, unrolled, each on a device.

    stage        = the layers of a part of the exact best split (lingo.mesh.pipeline.partition)
    micro-batch  = a run of neighbouring rows
    for tick, stage, micro-batch = tick - stage:       # all forward, then all backward (GPipe)
        x[micro-batch] = stage(x[micro-batch])         # only x is kept; the rest is computed again

There is a copy of the computation in the program for each stage and micro-batch: what alike layers
have in a loop (`Pipeline`), unlike ones cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lingo.config import ranges
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.layers.layer import Layer
from lingo.layers.stacks.chain import Chain
from lingo.layers.wrap.remat import recompute
from lingo.lazy import tf
from lingo.mesh.pipeline.partition import partition


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
            shape: of the input; tuples of shapes for several tensors.
        """
        costs = self.p.times if self.p.times is not None else self.layer_flops(shape)
        return [list(partition(costs, self.p.num_stages))]

    def __call__(self, x: Any) -> Any:
        call, num = context.current(), self.p.num_micro_batches
        if not call.training:
            return super().__call__(x)
        size = self._micro_batch_size(x)
        (stages,) = self.blocks(_shape(x))
        parts = [slice(i * size, (i + 1) * size) for i in range(num)]
        found = [tf.nest.map_structure(lambda v, rows=rows: v[rows], x) for rows in parts]
        for tick in range(num + len(stages) - 1):
            for stage, layers in enumerate(stages):
                if 0 <= (i := tick - stage) < num:
                    rows = None if call.rows is None else call.rows[parts[i]]
                    here = call.devices[stage % len(call.devices)] if call.devices else None
                    mine = self.layers[layers.start : layers.stop]
                    found[i] = _computed(mine, found[i], rows=rows, device=here)
        return tf.nest.map_structure(lambda *v: tf.concat(v, axis=0), *found)

    def _micro_batch_size(self, x: Any) -> int:
        first, num = tf.nest.flatten(x)[0], self.p.num_micro_batches
        batch: Any = first.shape[0]
        where = self.path or type(self).__name__
        if batch is None or batch % num:
            raise ParamError(
                f"{where}: {batch} examples are not num_micro_batches={num} equal parts: a batch,"
                " or what an accumulation step has of it, has to be a multiple"
            )
        for layer in self.tree():
            if batch // num % (together := layer.rows_together(first.shape)):
                raise ParamError(
                    f"{where}: {layer.path} computes {together} neighbouring examples as one, and"
                    f" a micro-batch has {batch // num}: num_micro_batches={num} has to leave a"
                    " multiple"
                )
        return batch // num


def _computed(
    layers: Sequence[Layer], x: Any, *, rows: tf.Tensor | None, device: str | None
) -> Any:
    """Computes a stage for a micro-batch; for its gradient it is computed again."""
    call = context.current()

    def body(values: Any, x: Any, rows: tf.Tensor | None) -> Any:
        inner = call.derive(rows=rows, **values)
        with context.entered(inner):
            for layer in layers:
                x = layer(x)
        return x, inner.sides.summed() | inner.sides.stacked()

    y, sides = recompute(body, call.of(layers), x, rows, device=device)
    call.sides.add(sides)
    return y


def _shape(x: Any) -> Any:
    """Returns the shape of a tensor, a tuple of shapes for a tuple of tensors."""
    return tuple(map(_shape, x)) if isinstance(x, (tuple, list)) else tuple(x.shape)
