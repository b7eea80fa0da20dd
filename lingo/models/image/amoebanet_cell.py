"""The cells of AmoebaNet-B and AmoebaNet-D, found by evolution (Real et al. 2019).

A cell takes the results of the two cells before it: x from the last cell, and `before` from the
cell before that. It computes five more nodes, each the sum of two operations on earlier nodes. Some
of the nodes form the cell's result:

    node 0   x, projected to the cell's width by a convolution
    node 1   before, projected to the shape of node 0 where it differs
    node i   operation(node) + operation(node)
    result   nodes concatenated along channels; a cell of width F returns 2 F to 4 F channels

A cell returns the pair (result, x), so that cells can be layers of a `Chain` or a pipeline. It
passes on any tensors that follow a pair, such as the logits of an `AuxiliaryHead`. The operations
are from the authors' implementation for TPUs, which torchgpipe follows: normal cells return nodes
0, 3, 4 and 6 (Real et al. have 4, 5 and 6 for D). So four of GPipe's five models have their
published sizes. The fifth, (18, 416), has 0.3 % more weights here. Unlike in torchgpipe, 3x3 max
pooling takes the maximum, not the mean, and SAME padding adds to the end of an image first, as in
TensorFlow.

Axes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from lingo.config.lazy import tf
from lingo.layers.dropout import StochasticDepth, check_rate
from lingo.layers.flops import new_tensor, passes_tensors
from lingo.layers.layer import Layer
from lingo.layers.vision.pool import AveragePool, MaxPool
from lingo.models.image.relu_conv_norm import FactorizedReduction, ReluConvNorm, SeparableUnit

Operation = Literal[
    "none",
    "max_pool_2x2",
    "max_pool_3x3",
    "avg_pool_3x3",
    "conv_1x1",
    "conv_3x3",
    "conv_1x7_7x1",
    "separable_3x3",
    "dilated_separable_5x5",
]
"""An operation between two nodes. Convolutions larger than 1x1 that mix channels have a quarter of
the width; separable convolutions come in pairs."""

Shape = Sequence[int]  # [B, H, W, C]
Pair = tuple[Any, ...]  # tensors [B, H, W, C]: a result and the x that it came from; maybe more


class Edge(NamedTuple):
    """An operation and its input node."""

    node: int
    operation: Operation


class Genotype(NamedTuple):
    """The architecture of a cell, as evolution found it."""

    sums: tuple[tuple[Edge, Edge], ...]  # the two edges of each of the nodes 2, 3, ...
    result: tuple[int, ...]  # the nodes that a cell returns


NORMAL_B = Genotype(
    sums=(
        (Edge(1, "conv_1x1"), Edge(1, "max_pool_3x3")),
        (Edge(0, "separable_3x3"), Edge(1, "none")),
        (Edge(1, "conv_1x1"), Edge(0, "separable_3x3")),
        (Edge(2, "conv_1x1"), Edge(2, "none")),
        (Edge(1, "avg_pool_3x3"), Edge(5, "conv_1x1")),
    ),
    result=(0, 3, 4, 6),
)
REDUCTION_B = Genotype(
    sums=(
        (Edge(0, "max_pool_2x2"), Edge(0, "max_pool_3x3")),
        (Edge(1, "conv_3x3"), Edge(2, "none")),
        (Edge(2, "dilated_separable_5x5"), Edge(2, "max_pool_3x3")),
        (Edge(1, "separable_3x3"), Edge(3, "none")),
        (Edge(4, "avg_pool_3x3"), Edge(3, "conv_1x1")),
    ),
    result=(5, 6),
)
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
    """A cell of AmoebaNet. It takes and returns a pair, (result, x)."""

    dim: int  # channels of x
    before_dim: int  # channels of `before`
    num_filters: int  # channels of each node
    after_reduction: bool = False  # whether x is half as high and wide as `before`
    unit: ReluConvNorm = ReluConvNorm  # the convolutions
    reduction: FactorizedReduction = FactorizedReduction  # shrinks `before` after a reduction
    max_pool: MaxPool = MaxPool
    average_pool: AveragePool = AveragePool
    separable: SeparableUnit = SeparableUnit
    drop_path_rate: float = 0.0  # probability that an operation gives zeros for an example
    drop_path: StochasticDepth = StochasticDepth

    genotype: ClassVar[Genotype]  # the architecture
    stride: ClassVar[int]  # of operations on nodes 0 and 1

    def check(self) -> None:
        check_rate("drop_path_rate", self.p.drop_path_rate)

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
        self.drop_paths = {
            key: p.drop_path.build(rate=p.drop_path_rate)
            for key in (self.operations if p.drop_path_rate else ())
        }

    def __call__(self, pair: Pair) -> Pair:
        """Returns the result [B, H, W, C''] and x; a reduction cell halves the result's H and W.

        The pair is x [B, H, W, C] and `before` [B, H, W, C'], any float type; with
        `after_reduction`, `before` has twice x's height and width.
        """
        x, before, *others = pair
        x, before = tf.cast(x, self.p.dtype), tf.cast(before, self.p.dtype)
        nodes = [self.squeeze(x), self.align(before) if self.align else before]
        for node, edges in enumerate(self.genotype.sums, 2):
            left, right = (
                self._compute(f"{node}_{i}", nodes[edge.node]) for i, edge in enumerate(edges)
            )
            nodes.append(left + right)
        return tf.concat([nodes[i] for i in self.genotype.result], axis=-1), x, *others

    def _compute(self, key: str, x: tf.Tensor) -> tf.Tensor:
        """Applies an edge's operation, if the edge has one; in training it may be dropped."""
        y = self.operations[key](x) if key in self.operations else x
        return self.drop_paths[key](y) if key in self.drop_paths else y

    @passes_tensors
    def output_shape(self, shape: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """Returns the shapes of the result and of x for the shapes of x and `before`."""
        x, _, *others = shape
        *front, channels = self.node_shapes(shape)[-1]
        return (*front, channels * len(self.genotype.result)), x, *others

    def flops(self, shape: tuple[Shape, ...]) -> int:
        x, before, *_ = shape
        nodes = self.node_shapes(shape)
        total = self.squeeze.flops(x) + (self.align.flops(before) if self.align else 0)
        return total + sum(layer.flops(nodes[node]) for node, layer in self.edges() if layer)

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
            case "separable_3x3":
                return p.separable.build(dim=p.num_filters, kernel=(3, 3), stride=stride)
            case "dilated_separable_5x5":
                return p.separable.build(
                    dim=p.num_filters, kernel=(5, 5), stride=stride, dilation=2
                )

    def edges(self) -> list[tuple[int, Layer | None]]:
        """Returns each edge's (input node, layer): two edges for each of the nodes 2, 3, ..."""
        return [
            (edge.node, self.operations.get(f"{node}_{i}"))
            for node, edges in enumerate(self.genotype.sums, 2)
            for i, edge in enumerate(edges)
        ]

    def node_shapes(self, shape: Sequence[Shape]) -> list[Shape]:
        """Returns the shapes of all nodes for the shapes of x and `before`."""
        x, before, *_ = shape
        nodes = [self.squeeze.output_shape(x)]
        nodes.append(self.align.output_shape(before) if self.align else before)
        for node, layer in self.edges()[::2]:
            shape = layer.output_shape(nodes[node]) if layer else nodes[node]
            nodes.append(new_tensor(shape))
        return nodes


class NormalCell(Cell):
    """A cell of AmoebaNet-D that keeps height and width, with 4 * num_filters channels."""

    genotype = NORMAL
    stride = 1


class ReductionCell(Cell):
    """A cell of AmoebaNet-D that halves height and width, with 3 * num_filters channels."""

    genotype = REDUCTION
    stride = 2


class NormalCellB(Cell):
    """A cell of AmoebaNet-B that keeps height and width, with 4 * num_filters channels."""

    genotype = NORMAL_B
    stride = 1


class ReductionCellB(Cell):
    """A cell of AmoebaNet-B that halves height and width, with 2 * num_filters channels."""

    genotype = REDUCTION_B
    stride = 2
