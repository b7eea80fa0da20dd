"""Predicts the exchanges between devices in a step, and a device's part of each unit's work.

A unit is a group of alike layers (`workload.py`). A compiler combines small tensors that are ready
together into one collective, which costs one latency (XLA's `AllReduceCombiner`,
`AllGatherCombiner` and `ReduceScatterCombiner`).

The matrix product of activations x and a weight sums over the dims that both have. Sharding rules
split the weight and the activations along mesh axes. A weight that is split along the batch's mesh
axes is gathered first (`memory.py`). For the other axes, XLA's partitioner inserts collectives (Xu
et al. 2021, sec. 3.4):

    a summed dim of the weight is split      each device has a summand: all-reduce, or
                                             reduce-scatter if the result is split along these axes
    a summed dim is split in x alone         x is gathered
    another dim of the weight is split       the gradient of x is summed in the same way

Products of one unit with the same x share one gather of x. The backward pass mirrors the exchanges
of the forward pass, and gathers x once more for the gradient of the weight. If several products use
the same x, the compiler for TPUs adds their gradients of x before devices sum them.
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
"""What a collective exchanges; `weights` are gathered, and `gradients` are summed."""


class Exchange(NamedTuple):
    """All collectives of a step that have the same kind, mesh axes and purpose."""

    kind: Kind
    axes: Axes  # mesh axes along which devices exchange
    purpose: Purpose
    tensors: float = 0  # number of exchanged tensors
    bytes: float = 0  # bytes of all these tensors on one device
    collectives: float = 0  # number of collectives: one per tensor, unless tensors are combined

    def seconds(self, network: Network) -> float:
        """Returns the seconds that all these collectives take on a network."""
        number = max(1.0, self.collectives)
        return number * network.seconds(self.kind, self.bytes / number, self.axes)

    def combine(self, most_bytes: float, *, iterations: float = 1) -> Exchange:
        """Returns the exchange after the compiler combined the tensors of each loop iteration.

        A collective has up to `most_bytes` bytes, or a single larger tensor; 0 combines nothing.
        """
        if not most_bytes:
            return self
        number = iterations * math.ceil(self.bytes / (iterations * most_bytes))
        return self._replace(collectives=min(self.collectives, number))


class Exchanges:
    """Collects the collectives of a step on a mesh, with one sum per kind, axes and purpose."""

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
        """Adds tensors that have `num_bytes` bytes together.

        Axes with a single device are left out; if none remain, nothing is added.
        """
        names = set(axes)
        names = tuple(axis for axis, size in self._mesh.sizes if axis in names and size > 1)
        if names and num_bytes:
            self._add(Exchange(kind, names, purpose), tensors, num_bytes, tensors)

    def add_exchange(self, one: Exchange, *, number: float = 1, calls: float = 1) -> None:
        """Adds an exchange: `number` times its bytes, and `calls` times its tensors."""
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
    """A device's part of one layer of a unit, for all examples that the device has in a step."""

    flops: float  # FLOPs of a forward pass
    padded_flops: float  # FLOPs of a forward pass, with matrices padded to whole tiles
    moved_bytes: float  # bytes that a forward pass reads and writes
    weight_bytes: float  # bytes of the layer's matrices, in the dtype of the computation
    forward: tuple[Exchange, ...]  # exchanges of a forward pass
    backward: tuple[Exchange, ...]  # exchanges of a backward pass


class _Product(NamedTuple):
    """A matrix product of activations x and a weight, y = x w, as one device computes it."""

    matrix: Matrix
    sum_size: int  # elements of the summed dims, in the device's part of the weight
    result_size: int  # elements of the weight's other dims, in the device's part of the weight
    sum_axes: set[str]  # mesh axes that split the weight's summed dims
    result_axes: set[str]  # mesh axes that split the weight's other dims
    x_axes: set[str]  # mesh axes that split the summed dims of the activations x
    y_axes: set[str]  # mesh axes that split the dims of the result y

    @property
    def reduction(self) -> Kind:
        return "reduce-scatter" if self.sum_axes <= self.y_axes else "all-reduce"

    @property
    def gradient_reduction(self) -> Kind:
        return "reduce-scatter" if self.result_axes <= self.x_axes else "all-reduce"


class _Axes(NamedTuple):
    """The mesh axes that sharding rules assign to logical axes."""

    mesh: Topology
    rules: Rules

    def of(self, table: Table, names: Iterable[str | None]) -> set[str]:
        """Returns the mesh axes that split the named logical axes, except the batch's mesh axes."""
        axes = {axis for name in names if name for axis in table.get(name, ())}
        return {axis for axis in axes if self.mesh.size([axis]) > 1} - self.batch

    @property
    def batch(self) -> set[str]:
        return set(self.rules.activations["batch"])

    def product(self, matrix: Matrix) -> _Product:
        """Returns the product with a matrix, as one device computes it."""
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
    """Returns a device's part of one layer of a unit.

    Args:
        unit: a group of alike layers.
        mesh: the mesh of devices.
        rules: sharding rules, logical axis -> mesh axes.
        share: share of a batch's examples that a device computes, 0..1.
        tile: the hardware pads rows and columns of matrices to multiples of this.
        is_tpu: whether the compiler adds the gradients of one tensor before devices sum them.
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
    """Returns the share of an example's positions that a device computes, 0..1."""
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
    """Adds the exchanges of products with split dims to `forward` and `backward`.

    `num_bytes` are the bytes of one column of the activations. `adds_first` says whether gradients
    of the same x are added before devices sum them.
    """
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

    Each expert gets tokens from all devices, and returns their results. Attention reads the keys
    and values of all positions. A convolution reads rows and columns at the border of neighbouring
    devices. `num_bytes` are the bytes of one column of the activations, `inputs` those of the
    unit's input.
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
    """Adds the exchanges of rows and columns between neighbouring devices, for a convolution.

    A window of w elements with stride s reads w - s elements of neighbours. The forward pass
    exchanges elements of the input, the backward pass also of the result's gradient.
    """
    windows = product.matrix.shape[: product.matrix.num_summed - 1]
    outputs, names = num_bytes * product.result_size, POSITION_AXES[len(unit.shape)]
    # a layer that is no convolution has no window dims, so the loop is empty
    for window, size, name in zip(windows, unit.shape[1:], names, strict=False):
        axes = rules.activations[name]
        rows = math.ceil(size / math.prod(forward.size(axis) for axis in axes))
        if halo := max(0, window - unit.stride):
            forward.add("permute", axes, "images", inputs * halo / rows, 2)
            backward.add("permute", axes, "images", inputs * halo / rows, 2)
            backward.add("permute", axes, "images", outputs * halo * unit.stride / rows, 2)


def _padded_flops(products: Sequence[_Product], rows: float, experts: float, *, tile: int) -> float:
    """Returns the FLOPs of products whose `rows` are divided equally among experts.

    Rows and columns of matrices are padded to multiples of `tile`; 0 pads nothing.
    """
    sizes = [(rows / experts, p.sum_size, p.result_size) for p in products]
    if tile:
        sizes = [tuple(math.ceil(n / tile) * tile for n in dims) for dims in sizes]
    return sum(2 * experts * math.prod(dims) for dims in sizes)
