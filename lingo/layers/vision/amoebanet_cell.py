"""The cells of AmoebaNet-D, found by evolution (Real et al. 2019).

A cell takes what the two cells before it returned, x and `before`, and makes five further nodes,
each the sum of two operations on nodes made earlier; some of the nodes are its result:

    node 0   x, squeezed to the cell's width by a convolution
    node 1   before, likewise
    node i   operation(node) + operation(node)
    result   nodes side by side, along the channels; a cell of width F returns 4 F or 3 F of them

A cell hands on the pair (result, x), so that cells stand in a `Chain`, or a pipeline, one after the
other. Which operation connects which nodes is what torchgpipe's implementation has, after that of
the authors for TPUs: the normal cell returns nodes 0, 3, 4 and 6 (Real et al. have 4, 5 and 6), and
only so do sizes of models come out as GPipe's table 1 has them. Unlike torchgpipe, the largest
value of 3x3 is one, no mean, and an image is padded at its end first, as TensorFlow does.

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
"""What stands between two nodes. Convolutions of windows above 1x1 have a quarter of the width."""

Shape = Sequence[int]  # [B, H, W, C]
Pair = tuple[Any, Any]  # of tensors [B, H, W, C]: a result, and what it was made of


class Edge(NamedTuple):
    """An operation, and the node that it takes."""

    node: int
    operation: Operation


class Genotype(NamedTuple):
    """What evolution chose.

    Attributes:
        sums: the two edges whose sum is node 2, 3, ...
        result: the nodes that a cell returns.
    """

    sums: tuple[tuple[Edge, Edge], ...]
    result: tuple[int, ...]


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


class Cell(Layer, kind=True):
    """A cell of AmoebaNet-D. It takes and returns a pair, (result, x).

    Attributes:
        genotype: its nodes.
        stride: of operations on nodes 0 and 1.
    """

    dim: int  # channels of x
    before_dim: int  # channels of `before`
    num_filters: int  # channels of each node
    after_reduction: bool = False  # whether x is half as high and wide as `before`
    unit: ReluConvNorm = ReluConvNorm  # the convolutions
    reduction: FactorizedReduction = FactorizedReduction  # of `before`, after a reduction
    max_pool: MaxPool = MaxPool
    average_pool: AveragePool = AveragePool

    genotype: ClassVar[Genotype]
    stride: ClassVar[int]

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
        """Computes the nodes of a cell.

        Args:
            pair: [B, H, W, C] and [B, H, W, C'], any float type; the second of twice the height and
                width `after_reduction`.

        Returns:
            The result, [B, H, W, C''], of a reduction half as high and wide, in the layer's dtype;
            and the first input.
        """
        x, before = (tf.cast(state, self.p.dtype) for state in pair)
        nodes = [self.squeeze(x), self.align(before) if self.align else before]
        for edges in self._sums():
            left, right = (layer(nodes[node]) if layer else nodes[node] for node, layer in edges)
            nodes.append(left + right)
        return tf.concat([nodes[i] for i in self.genotype.result], axis=-1), x

    def output_shape(self, shape: tuple[Shape, Shape]) -> tuple[Shape, Shape]:
        """Returns the shapes of the result and of x, for those of x and `before`."""
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
        """Returns the layer of an edge; None where the node is taken as it is."""
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
        """Yields the edges whose sum is each further node: the node that they take, the layer."""
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
