"""The cells of AmoebaNet-D, found by evolution (Real et al. 2019).

A cell takes the results of the two cells before it, x and `before`, and computes five more nodes,
each the sum of two operations on earlier nodes; some of the nodes form its result:

    node 0   x, projected to the cell's width by a convolution
    node 1   before, likewise
    node i   operation(node) + operation(node)
    result   nodes concatenated along channels; a cell of width F returns 4 F or 3 F channels

A cell returns the pair (result, x), so that cells can be layers of a `Chain` or a pipeline. The
graph of operations is torchgpipe's, which follows the authors' implementation for TPUs: the normal
cell returns nodes 0, 3, 4 and 6 (Real et al. have 4, 5 and 6), as only this gives the model sizes
of GPipe's table 1. Unlike torchgpipe, 3x3 max pooling takes the maximum, not the mean, and SAME
padding adds to the end of an image first, as in TensorFlow.

Axes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from lingo.config.lazy import tf
from lingo.layers.layer import Layer
from lingo.layers.vision.pool import AveragePool, MaxPool
from lingo.layers.vision.relu_conv_norm import FactorizedReduction, ReluConvNorm

Operation = Literal[
    "none", "max_pool_2x2", "max_pool_3x3", "avg_pool_3x3", "conv_1x1", "conv_3x3", "conv_1x7_7x1"
]
"""An operation between two nodes. Convolutions larger than 1x1 have a quarter of the width."""

Shape = Sequence[int]  # [B, H, W, C]
Pair = tuple[Any, Any]  # tensors [B, H, W, C]: a result, and the x it was computed from


class Edge(NamedTuple):
    """An operation and its input node."""

    node: int
    operation: Operation


class Genotype(NamedTuple):
    """The architecture of a cell, as evolution found it."""

    sums: tuple[tuple[Edge, Edge], ...]  # the two edges of each of the nodes 2, 3, ...
    result: tuple[int, ...]  # the nodes that a cell returns


NORMAL = Genotype(
    sums=(
        (Edge(1, "conv_1x1"), Edge(1, "max_pool_3x3")),
        (Edge(0, "conv_1x7_7x1"), Edge(1, "none")),
        (Edge(0, "conv_1x1"), Edge(0, "conv_1x7_7x1")),
        (Edge(2, "max_pool_3x3"), Edge(2, "none")),
        (Edge(1, "avg_pool_3x3"), Edge(5, "conv_1x1")),
    ),
    result=(0, 3, 4, 6),
)
REDUCTION = Genotype(
    sums=(
        (Edge(0, "max_pool_2x2"), Edge(0, "max_pool_3x3")),
        (Edge(1, "conv_3x3"), Edge(2, "none")),
        (Edge(2, "conv_1x7_7x1"), Edge(2, "max_pool_3x3")),
        (Edge(1, "max_pool_2x2"), Edge(3, "none")),
        (Edge(2, "avg_pool_3x3"), Edge(3, "conv_1x1")),
    ),
    result=(4, 5, 6),
)


class Cell(Layer, interface=True):
    """A cell of AmoebaNet-D. It takes and returns a pair, (result, x)."""

    dim: int  # channels of x
    before_dim: int  # channels of `before`
    num_filters: int  # channels of each node
    after_reduction: bool = False  # whether x is half as high and wide as `before`
    unit: ReluConvNorm = ReluConvNorm  # the convolutions
    reduction: FactorizedReduction = FactorizedReduction  # of `before`, after a reduction
    max_pool: MaxPool = MaxPool
    average_pool: AveragePool = AveragePool

    genotype: ClassVar[Genotype]  # the architecture
    stride: ClassVar[int]  # of operations on nodes 0 and 1

    def setup(self) -> None:
        p = self.p
        self.squeeze = p.unit.build(dim=p.dim, output_dim=p.num_filters)
        self.align = None
        if p.after_reduction:
            self.align = p.reduction.build(dim=p.before_dim, output_dim=p.num_filters)
        elif p.before_dim != p.num_filters:
            self.align = p.unit.build(dim=p.before_dim, output_dim=p.num_filters)
        self.operations = {
            f"{node}_{i}": layer
            for node, edges in enumerate(self.genotype.sums, 2)
            for i, edge in enumerate(edges)
            if (layer := self._operation(edge)) is not None
        }

    def __call__(self, pair: Pair) -> Pair:
        """Returns the result [B, H, W, C''], half as high and wide from a reduction cell, and x.

        The pair is x [B, H, W, C] and `before` [B, H, W, C'], any float type; `before` has twice
        the height and width `after_reduction`.
        """
        x, before = (tf.cast(state, self.p.dtype) for state in pair)
        nodes = [self.squeeze(x), self.align(before) if self.align else before]
        for edges in self._sums():
            left, right = (layer(nodes[node]) if layer else nodes[node] for node, layer in edges)
            nodes.append(left + right)
        return tf.concat([nodes[i] for i in self.genotype.result], axis=-1), x

    def output_shape(self, shape: tuple[Shape, Shape]) -> tuple[Shape, Shape]:
        """Returns the shapes of the result and of x for the shapes of x and `before`."""
        x, _ = shape
        *front, channels = self._node_shapes(shape)[-1]
        return (*front, channels * len(self.genotype.result)), tuple(x)

    def flops(self, shape: tuple[Shape, Shape]) -> int:
        x, before = shape
        nodes = self._node_shapes(shape)
        total = self.squeeze.flops(x) + (self.align.flops(before) if self.align else 0)
        for edges in self._sums():
            total += sum(layer.flops(nodes[node]) for node, layer in edges if layer)
        return total

    def _operation(self, edge: Edge) -> Layer | None:
        """Returns the layer of an edge; None for the identity."""
        p, stride = self.p, self.stride if edge.node < 2 else 1
        convolve = {"dim": p.num_filters, "output_dim": p.num_filters, "stride": stride}
        match edge.operation:
            case "none":
                return None
            case "max_pool_2x2":
                return p.max_pool.build(window=(2, 2), stride=stride)
            case "max_pool_3x3":
                return p.max_pool.build(window=(3, 3), stride=stride)
            case "avg_pool_3x3":
                return p.average_pool.build(window=(3, 3), stride=stride)
            case "conv_1x1":
                return p.unit.build(**convolve)
            case "conv_3x3":
                return p.unit.build(**convolve, narrow=[(3, 3)])
            case "conv_1x7_7x1":
                return p.unit.build(**convolve, narrow=[(1, 7), (7, 1)])

    def _sums(self) -> Iterator[list[tuple[int, Layer | None]]]:
        """Yields the two edges of each of the nodes 2, 3, ...: input node and layer."""
        for node, edges in enumerate(self.genotype.sums, 2):
            yield [(e.node, self.operations.get(f"{node}_{i}")) for i, e in enumerate(edges)]

    def _node_shapes(self, shape: tuple[Shape, Shape]) -> list[Shape]:
        x, before = shape
        nodes = [self.squeeze.output_shape(x)]
        nodes.append(self.align.output_shape(before) if self.align else tuple(before))
        for (node, layer), _ in self._sums():
            nodes.append(layer.output_shape(nodes[node]) if layer else nodes[node])
        return nodes


class NormalCell(Cell):
    """A cell that keeps height and width; its result has 4 * num_filters channels."""

    genotype = NORMAL
    stride = 1


class ReductionCell(Cell):
    """A cell that halves height and width; its result has 3 * num_filters channels."""

    genotype = REDUCTION
    stride = 2
