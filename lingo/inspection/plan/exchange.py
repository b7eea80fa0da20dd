"""The exchanges of devices in a step, and the part of a unit that is on one device.

A compiler combines small tensors that are ready together into one collective, which costs one
latency (XLA's `AllReduceCombiner`, `AllGatherCombiner` and `ReduceScatterCombiner`).

A product of activations x and a weight sums over dims that both have. Rules split the weight and
the activations along mesh axes. A weight that is split along axes of the batch is gathered first
(`memory.py`). For the other axes, XLA's partitioner exchanges (Xu et al. 2021, sec. 3.4):

    a summed dim of the weight is split      each device has a summand: all-reduce, or
                                             reduce-scatter if the result is split along these axes
    a summed dim of x alone is split         x is gathered
    another dim of the weight is split       the gradient of x is summed in the same way

Products of one unit with the same x share one gather of x. The backward pass mirrors the exchanges
of the forward pass, and gathers x once more for the gradient of the weight. The compiler for TPUs
adds the gradients of the same x before devices sum them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from lingo.inspection.plan.network import Kind, Network
from lingo.inspection.plan.workload import SEQUENCE_DIMS, Matrix, Unit
from lingo.layers.residual import ITEM_BYTES, POSITION_AXES
from lingo.mesh.rules import Rules, Table
from lingo.mesh.split import Axes
from lingo.mesh.topology import Topology

Purpose = Literal["weights", "gradients", "activations", "experts", "images", "stages"]
"""What is exchanged; `weights` are gathered, `gradients` summed."""


class Exchange(NamedTuple):
    """Collectives of one kind and purpose in a step."""

    kind: Kind
    axes: Axes  # mesh axes along which devices exchange
    purpose: Purpose
    tensors: float = 0  # how many
    bytes: float = 0  # of all tensors on one device
    collectives: float = 0  # as many as tensors, unless some are combined

    def seconds(self, network: Network) -> float:
        """Returns the time of all collectives."""
        number = max(1.0, self.collectives)
        return number * network.seconds(self.kind, self.bytes / number, self.axes)

    def combine(self, most_bytes: float, *, iterations: float = 1) -> Exchange:
        """Returns the exchange with the tensors of each iteration of a loop combined.

        A collective has up to `most_bytes`, but a larger tensor stays whole; 0 combines nothing.
        """
        if not most_bytes:
            return self
        number = iterations * math.ceil(self.bytes / (iterations * most_bytes))
        return self._replace(collectives=min(self.collectives, number))


class Exchanges:
    """Sums of collectives."""

    def __init__(self, mesh: Topology) -> None:
        self._mesh = mesh
        self._sums: dict[Exchange, Exchange] = {}

    def add(
        self,
        kind: Kind,
        axes: Iterable[str],
        purpose: Purpose,
        num_bytes: float,
        tensors: float = 1,
    ) -> None:
        """Adds tensors of `num_bytes` in all; nothing is exchanged along axes of one device."""
        names = set(axes)
        names = tuple(axis for axis, size in self._mesh.sizes if axis in names and size > 1)
        if names and num_bytes:
            self._add(Exchange(kind, names, purpose), tensors, num_bytes, tensors)

    def add_exchange(self, one: Exchange, *, number: float = 1, calls: float = 1) -> None:
        """Adds an exchange with `number` times its bytes, in `calls` times its tensors."""
        key = Exchange(one.kind, one.axes, one.purpose)
        self._add(key, calls * one.tensors, number * one.bytes, calls * one.collectives)

    def _add(self, key: Exchange, tensors: float, num_bytes: float, collectives: float) -> None:
        before = self._sums.get(key, key)
        self._sums[key] = key._replace(
            tensors=before.tensors + tensors,
            bytes=before.bytes + num_bytes,
            collectives=before.collectives + collectives,
        )

    def size(self, axis: str) -> int:
        """Returns the number of devices along a mesh axis."""
        return self._mesh.size([axis])

    def __iter__(self) -> Iterator[Exchange]:
        return iter(self._sums.values())


# ---- units ---------------------------------------------------------------------------------------


class UnitPart(NamedTuple):
    """A device's part of a unit, for all examples that the device computes in a step."""

    flops: float  # of a forward pass
    padded_flops: float  # with matrices padded to whole tiles
    moved_bytes: float  # that a forward pass reads and writes
    weight_bytes: float  # of its matrices, in the dtype of the computation
    forward: tuple[Exchange, ...]  # exchanges of a forward pass
    backward: tuple[Exchange, ...]


class _Product(NamedTuple):
    """A product of activations and a weight, on one device."""

    matrix: Matrix
    sum_size: int  # elements of the summed dims, in the device's part of the weight
    result_size: int  # elements of the weight's other dims, in the same part
    sum_axes: set[str]  # mesh axes that split the weight's summed dims
    result_axes: set[str]  # mesh axes that split the weight's other dims
    x_axes: set[str]  # mesh axes that split the summed dims of the activations
    y_axes: set[str]  # mesh axes that split the dims of the result

    @property
    def reduction(self) -> Kind:
        return "reduce-scatter" if self.sum_axes <= self.y_axes else "all-reduce"

    @property
    def gradient_reduction(self) -> Kind:
        return "reduce-scatter" if self.result_axes <= self.x_axes else "all-reduce"


class _Axes(NamedTuple):
    """Mesh axes of logical axes."""

    mesh: Topology
    rules: Rules

    def of(self, table: Table, names: Iterable[str | None]) -> set[str]:
        """Returns the mesh axes that split some logical axes, without the batch's mesh axes."""
        axes = {axis for name in names if name for axis in table.get(name, ())}
        return {axis for axis in axes if self.mesh.size([axis]) > 1} - self.batch

    @property
    def batch(self) -> set[str]:
        return set(self.rules.activations["batch"])

    def product(self, matrix: Matrix) -> _Product:
        """Returns the product of a matrix on one device."""
        weights, activations = self.rules
        sizes = [
            -(-size // self.mesh.size(self.of(weights, [name])))
            for size, name in zip(matrix.shape, matrix.axes, strict=True)
        ]
        n = matrix.num_summed
        return _Product(
            matrix,
            math.prod(sizes[:n]),
            math.prod(sizes[n:]),
            self.of(weights, matrix.axes[:n]),
            self.of(weights, matrix.axes[n:]),
            self.of(activations, matrix.axes[:n]),
            self.of(activations, matrix.axes[n:]),
        )


def unit_part(
    unit: Unit, mesh: Topology, rules: Rules, *, share: float, tile: int, is_tpu: bool = False
) -> UnitPart:
    """Returns the part of a unit on a device.

    Args:
        unit: the unit.
        mesh: the mesh.
        rules: mesh axes of logical axes.
        share: share of a batch's examples that a device computes.
        tile: rows and columns to which the hardware pads matrices.
        is_tpu: whether gradients of one tensor are added before devices sum them.
    """
    axes, width = _Axes(mesh, rules), ITEM_BYTES[unit.dtype]
    share *= _share_of_positions(unit, mesh, rules)
    rows = unit.positions * share
    products = [axes.product(matrix) for matrix in unit.matrices]
    experts = unit.num_experts / mesh.size(set(rules.weights["expert"]) - {"data"})
    weightless = (unit.flops - unit.weight_flops) * share
    weightless /= mesh.size(axes.of(rules.activations, [unit.weightless_axis]))
    if unit.weightless_for and mesh.size(rules.activations[unit.weightless_for]) == 1:
        weightless = 0.0
    inputs = math.prod(unit.shape) * share / mesh.size(axes.of(rules.activations, ["embed"]))
    outputs = sum(
        rows * p.result_size / mesh.size(p.sum_axes if p.sum_axes <= p.y_axes else ())
        for p in products
    )
    logits = 2 * unit.logits * share / mesh.size(axes.of(rules.activations, ["heads"]))
    weights = experts * sum(p.sum_size * p.result_size for p in products)
    forward, backward = Exchanges(mesh), Exchanges(mesh)
    _exchange_sums(products, forward, backward, num_bytes=rows * width, adds_first=is_tpu)
    _exchange_examples(
        unit, products, forward, backward, rules, num_bytes=rows * width, inputs=inputs * width
    )
    return UnitPart(
        flops=unit.flops and weightless + _padded_flops(products, rows, experts, tile=0),
        padded_flops=unit.flops and weightless + _padded_flops(products, rows, experts, tile=tile),
        moved_bytes=width * (inputs + outputs + weights + logits),
        weight_bytes=width * weights,
        forward=tuple(forward),
        backward=tuple(backward),
    )


def _share_of_positions(unit: Unit, mesh: Topology, rules: Rules) -> float:
    """Returns the share of an example's positions that a device computes."""
    share = 1.0
    for size, name in zip(unit.shape[1:], POSITION_AXES.get(len(unit.shape), ()), strict=False):
        share *= -(-size // mesh.size(rules.activations[name])) / size
    return share


def _exchange_sums(
    products: Sequence[_Product],
    forward: Exchanges,
    backward: Exchanges,
    *,
    num_bytes: float,
    adds_first: bool,
) -> None:
    """Adds the exchanges of products with split dims; activations have `num_bytes` per column."""
    gathered: set[tuple[int, ...]] = set()
    for p in products:
        x, y = num_bytes * p.sum_size, num_bytes * p.result_size
        forward.add(p.reduction, p.sum_axes, "activations", y)
        if p.reduction == "reduce-scatter":  # the gradient of y is gathered for both gradients
            backward.add("all-gather", p.sum_axes, "activations", 2 * y, 2)
        dims = p.matrix.shape[: p.matrix.num_summed]
        if dims not in gathered or not adds_first:
            backward.add(p.gradient_reduction, p.result_axes, "activations", x)
        if dims not in gathered:  # products of the same x share one gather
            gathered.add(dims)
            forward.add("all-gather", p.x_axes - p.sum_axes, "activations", x)
            backward.add("all-gather", p.x_axes - p.sum_axes, "activations", x)


def _exchange_examples(
    unit: Unit,
    products: Sequence[_Product],
    forward: Exchanges,
    backward: Exchanges,
    rules: Rules,
    *,
    num_bytes: float,
    inputs: float,
) -> None:
    """Adds the exchanges of experts, attention and convolutions along batch and position axes.

    Activations have `num_bytes` per column; the unit's input has `inputs` bytes. Each expert gets
    the tokens of all devices, and returns them. Attention reads keys and values of all positions. A
    convolution reads rows and columns of its neighbours.
    """
    if unit.num_experts > 1:
        for passes in (forward, backward):
            passes.add(
                "all-to-all",
                rules.activations["expert"],
                "experts",
                2 * num_bytes * unit.shape[-1],
                2,
            )
    along = rules.activations["length"]
    num_parts = math.prod(forward.size(axis) for axis in along)
    if unit.flops > unit.weight_flops and len(products) > 2:  # query, key, value
        size = num_bytes * sum(p.result_size for p in products[1:3]) * num_parts
        forward.add("all-gather", along, "activations", size, 2)
        backward.add("reduce-scatter", along, "activations", size, 2)
    if len(unit.shape) == SEQUENCE_DIMS and unit.num_classes:
        logits = num_bytes * products[-1].result_size * num_parts  # a loss shifts positions
        forward.add("all-gather", along, "activations", logits)
    for p in products if len(unit.shape) > SEQUENCE_DIMS else ():
        _exchange_halos(unit, p, forward, backward, rules, num_bytes=num_bytes, inputs=inputs)


def _exchange_halos(
    unit: Unit,
    product: _Product,
    forward: Exchanges,
    backward: Exchanges,
    rules: Rules,
    *,
    num_bytes: float,
    inputs: float,
) -> None:
    """Adds rows and columns of neighbours: of the input, backward also of the result's gradient.

    A window of w elements that moves by s reads w - s elements of neighbours.
    """
    windows = product.matrix.shape[: product.matrix.num_summed - 1]
    outputs, names = num_bytes * product.result_size, POSITION_AXES[len(unit.shape)]
    for window, size, name in zip(windows, unit.shape[1:], names, strict=False):  # none: no window
        axes = rules.activations[name]
        rows = math.ceil(size / math.prod(forward.size(axis) for axis in axes))
        if halo := max(0, window - unit.stride):
            forward.add("permute", axes, "images", inputs * halo / rows, 2)
            backward.add("permute", axes, "images", inputs * halo / rows, 2)
            backward.add("permute", axes, "images", outputs * halo * unit.stride / rows, 2)


def _padded_flops(products: Sequence[_Product], rows: float, experts: float, *, tile: int) -> float:
    """Returns the FLOPs of products whose rows are divided among experts.

    Rows and columns of matrices are padded to whole tiles; a tile of 0 pads nothing.
    """
    sizes = [(rows / experts, p.sum_size, p.result_size) for p in products]
    if tile:
        sizes = [tuple(math.ceil(n / tile) * tile for n in dims) for dims in sizes]
    return sum(2 * experts * math.prod(dims) for dims in sizes)
