"""The computation of a training step, as plans need it: units of alike layers.

A unit stands for all layers of one class that multiply matrices of equal shapes, with inputs of
equal shapes. Shapes are those of a whole batch. Layers declare shapes and FLOPs, so that a model of
a trillion parameters takes a moment, and TensorFlow computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.layers import path
from lingo.layers.flops import BATCH, FlopsCall, Record, number_tensor, record_flops, tensor_number
from lingo.layers.layer import Layer
from lingo.layers.moe.moe import MoE
from lingo.layers.residual import Residual, ResidualCall
from lingo.layers.sequence.dot_product import DotProductAttention
from lingo.layers.stacks.micro_batches import first_shape
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.stack import Stack
from lingo.layers.tree import ParamSpec
from lingo.layers.wrap.remat import Remat
from lingo.layers.wrap.reweighted import is_matrix, split_dims
from lingo.layers.wrap.wrapper import Wrapper
from lingo.learner.task import Task

SEQUENCE_DIMS, IMAGE_DIMS = 3, 4
"""Number of dims of a layer's input: [B, T, D] for sequences, [B, H, W, C] for images."""


class Matrix(NamedTuple):
    """A weight by which a layer of a unit multiplies its input."""

    shape: tuple[int, ...]  # shape of one layer's weight, without dims of stacked layers
    axes: tuple[str | None, ...]  # logical axis of each dim
    num_summed: int  # how many of the first dims the product sums over

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Unit(NamedTuple):
    """A group of alike layers: the same class, matrices and input shape."""

    name: str  # path of the first layer
    kind: str  # class name of the layers
    shape: tuple[int, ...]  # shape of a layer's input: [B, T, D], [B, H, W, C], ...
    flops: int  # FLOPs of one forward pass of one layer, without the layers inside
    matrices: tuple[Matrix, ...]  # the matrices of one layer
    num_experts: int  # number of experts that count as one layer; `flops` covers all of them
    # Logical axis that splits the products of two activations: attention's products, and those with
    # the one-hot tensors that send tokens to experts.
    weightless_axis: str
    # Products of two activations exist only if devices split this logical axis; "": always.
    weightless_for: str
    dtype: str  # dtype of the computation
    in_stack: bool  # whether the layers are in a stack, which a pipeline may distribute
    is_recomputed: bool  # whether gradients recompute the layers
    stride: int  # stride of a convolution; 1 for other layers
    logits: int  # elements of attention's logits that exist at once, for a whole batch

    @property
    def weight_flops(self) -> int:
        """The FLOPs of products with weights; attention also multiplies activations."""
        weights = sum(matrix.size for matrix in self.matrices)
        return 2 * self.positions * weights if self.flops else 0  # a table is only read

    @property
    def num_classes(self) -> int:
        """The number of classes, if the unit computes logits over a vocabulary; 0 if not."""
        last = self.matrices[-1] if self.flops and self.matrices else None
        return last.shape[-1] if last and last.axes[-1] == "vocab" else 0

    @property
    def positions(self) -> int:
        """The number of rows by which a matrix is multiplied for a batch, such as B T tokens."""
        weights = sum(matrix.size for matrix in self.matrices) or 1
        rows = math.prod(self.shape[:-1])
        return rows if len(self.shape) <= SEQUENCE_DIMS else self.flops // (2 * weights)


class LayerResidual(NamedTuple):
    """A tensor of the forward pass that the gradient of a layer needs."""

    residual: Residual
    in_stack: bool  # whether the layer is in a stack


class StackSize(NamedTuple):
    """The size of a stack: layers that repeat a pattern."""

    num_steps: int  # how often the stack applies its pattern (a group of layers)
    boundary: int  # elements of the tensor between two such applications, for a whole batch


class RematPlace(NamedTuple):
    """A `Remat` layer of the model, whose inner layer the gradient recomputes."""

    path: str  # path of the layer
    in_stack: bool  # whether it is in a stack


class Workload(NamedTuple):
    """The computation of a training step. The largest stack is the one with the most FLOPs."""

    units: dict[Unit, int]  # unit -> its number of layers
    residuals: dict[LayerResidual, int]  # residual -> the number of layers that have it
    unknown_residuals: tuple[str, ...]  # class names of layers whose residuals are not known
    # Residuals in forward order, each with the share of all weights that are in earlier layers.
    order: tuple[tuple[LayerResidual, float], ...]
    batch_size: int
    accumulation_steps: int
    flops: int  # FLOPs of a forward pass of the whole batch
    input_bytes: int  # bytes of a batch, as the input makes it
    stack: str  # class name of the largest stack: "Stack", "Repeat", ...; "" if there is no stack
    layer: str  # class name of the largest stack's layers, without wrappers
    num_steps: int  # how often the largest stack applies its pattern; 1 if there is no stack
    boundary: tuple[int, ...]  # shape of the tensor between two of these applications
    keeps_turns: bool  # whether the largest stack is a pipeline that keeps only inputs of turns
    stacks: tuple[StackSize, ...]  # sizes of all stacks
    remats: tuple[RematPlace, ...]  # all `Remat` layers

    @property
    def image_flops(self) -> int:
        """The FLOPs of a forward pass, only of layers whose inputs are images or volumes."""
        pairs = self.units.items()
        return sum(number * u.flops for u, number in pairs if len(u.shape) >= IMAGE_DIMS)

    @property
    def dtype(self) -> str:
        """The computation's dtype in the unit with the most FLOPs."""
        return max(self.units, key=lambda unit: unit.flops * self.units[unit]).dtype

    @property
    def is_recomputed(self) -> bool:
        """Whether gradients recompute all layers in stacks, and keep only the tensors between."""
        inside = [unit.is_recomputed for unit in self.units if unit.in_stack]
        return bool(inside) and all(inside)

    @property
    def partial_remats(self) -> list[str]:
        """The paths of `Remat` layers, without those in stacks if `is_recomputed`."""
        whole = self.is_recomputed
        return [remat.path for remat in self.remats if not (whole and remat.in_stack)]


def workload(experiment: Experiment) -> Workload:
    """Returns the computation of an experiment's training step, as plans need it.

    Raises ParamError if the task counts no FLOPs.
    """
    specs = experiment.train_input.specs()
    batch = {name: (number_tensor(shape, BATCH), dtype) for name, (shape, dtype) in specs.items()}
    with record_flops() as calls:
        total = experiment.task.batch_flops(batch)
    if not total:
        raise ParamError(no_flops_message(experiment))
    stacks = [layer for layer in calls if isinstance(layer, Stack)]
    largest = max(stacks, key=lambda layer: calls[layer].flops, default=None)
    tables = [spec for spec in experiment.task.weights().values() if spec.axes[:1] == ("vocab",)]
    walk = LayerWalk(calls, tables, {BATCH})
    walk.add(experiment.task.select(specs), LayerContext())
    sizes = (math.prod(shape) * np.dtype(kind).itemsize for shape, kind in specs.values())
    return Workload(
        units=walk.units,
        residuals=walk.residuals,
        unknown_residuals=tuple(sorted(walk.unknown_residuals)),
        order=walk.order(),
        batch_size=specs["rows"][0][0],
        accumulation_steps=experiment.p.accumulation_steps,
        flops=total,
        input_bytes=sum(sizes),
        stack="" if largest is None else type(largest).__name__,
        layer="" if largest is None else _innermost_class(largest.pattern[0]).__name__,
        num_steps=1 if largest is None else _num_steps(largest),
        boundary=() if largest is None else tuple(calls[largest].shape),
        stacks=tuple(StackSize(_num_steps(s), math.prod(calls[s].shape)) for s in stacks),
        remats=tuple(walk.remats),
        keeps_turns=isinstance(largest, Pipeline) and largest.p.remat,
    )


def _declares_residuals(layer: Layer) -> bool:
    """Whether a layer's class overrides `residuals`; wrappers and tasks do not count."""
    is_inherited = type(layer).residuals is Layer.residuals
    return not (is_inherited or isinstance(layer, Wrapper | Task))


def _num_steps(stack: Stack) -> int:
    return stack.p.num_layers // len(stack.pattern)


def _innermost_class(params: Any) -> type[Layer]:
    """Returns the class of the layer that params build, inside any wrappers."""
    while issubclass(params.cls, Wrapper):
        params = params.layer
    return params.cls


class LayerContext(NamedTuple):
    """What the layers around a layer imply for it."""

    shape: tuple[int, ...] = ()  # input shape of the nearest outer layer that counts FLOPs
    in_stack: bool = False  # whether an outer layer is a stack
    is_recomputed: bool = False  # whether an outer layer is a `Remat`
    mixture: MoE | None = None  # the nearest outer mixture of experts
    # Whether an outer layer's declared residuals include this layer's. They do, unless the `flops`
    # of the outer layer calls this layer.
    is_covered: bool = False


class LayerWalk:
    """Walks a tree of layers from the root, and collects units and residuals."""

    def __init__(self, calls: Record, tables: list[ParamSpec], kept: set[int]) -> None:
        self.units: dict[Unit, int] = {}
        self.residuals: dict[LayerResidual, int] = {}
        self.unknown_residuals: set[str] = set()
        self.remats: list[RematPlace] = []
        self._num_weights = 0  # number of weight elements of the layers so far
        self._order: list[tuple[LayerResidual, int]] = []
        self._calls, self._tables = calls, tables
        self._ranks = {layer: rank for rank, layer in enumerate(calls)}
        self._kept = kept  # ids of kept tensors: of the input, and of residuals so far
        self._elementwise: set[int] = set()  # ids of tensors computed elementwise from kept ones
        self._names: dict[Unit, Unit] = {}  # unit without a name -> unit named by its first layer

    def add(self, layer: Layer, place: LayerContext) -> None:
        """Adds the units and residuals of a layer and of all layers inside."""
        is_called = layer in self._calls
        if is_called and not isinstance(layer, Wrapper):
            shape = tuple(first_shape(self._calls[layer].shape))
            place = place._replace(shape=shape, is_covered=False)
        if (unit := self._unit(layer, place)) is not None:
            named = self._names.setdefault(unit._replace(name=""), unit)
            self.units[named] = self.units.get(named, 0) + _count(layer)
        self._add_residuals(layer, unit, place)
        if isinstance(layer, Remat):
            self.remats.append(RematPlace(layer.path, place.in_stack))
        inside = place._replace(
            in_stack=place.in_stack or isinstance(layer, Stack),
            is_recomputed=place.is_recomputed or isinstance(layer, Remat),
            mixture=layer if isinstance(layer, MoE) and is_called else place.mixture,
            is_covered=place.is_covered or (is_called and _declares_residuals(layer)),
        )
        for child in layer.inner_layers():
            self.add(child, inside)

    def _add_residuals(self, layer: Layer, unit: Unit | None, place: LayerContext) -> None:
        """Adds the residuals of a layer, except tensors that another layer already keeps."""
        residuals: list[Residual] | None = []
        if not place.is_covered:
            slots = None if place.mixture is None else self._slots(place.mixture)
            memory = self._memory_length(layer)
            residuals = layer.residuals(ResidualCall(place.shape, self._calls, slots, memory))
        if residuals is None and layer in self._calls:
            self.unknown_residuals.add(type(layer).__name__)
        residuals = residuals or []
        if unit is not None and unit.num_classes:
            residuals = [*residuals, *_logits_residuals(place.shape, unit.num_classes)]
        for one in residuals:
            tensor = self._tensor(layer, one)
            if one.is_elementwise and tensor is not None:
                self._elementwise.add(tensor)
            if not one.copies or tensor in self._kept:
                continue
            if tensor is not None:
                self._kept.add(tensor)
            is_elementwise = one.is_elementwise or tensor in self._elementwise
            typed = one._replace(dtype=one.dtype or layer.p.dtype, is_elementwise=is_elementwise)
            needed = LayerResidual(typed, place.in_stack)
            self.residuals[needed] = self.residuals.get(needed, 0) + _count(layer)
            self._order.append((needed, self._num_weights))
        sizes = [math.prod(spec.shape) for spec in layer.declarations()]
        self._num_weights += sum(sizes) * _count(layer)

    def _tensor(self, layer: Layer, residual: Residual) -> int | None:
        """Returns the id of a residual's tensor; None if no other layer uses this tensor."""
        if residual.origin == "own" or layer not in self._calls:
            return None
        shape = self._calls[layer].shape
        if residual.origin == "output":
            return self._calls.output(layer, shape)
        return tensor_number(first_shape(shape))

    def order(self) -> tuple[tuple[LayerResidual, float], ...]:
        """Returns residuals in forward order, each with the weights' share in earlier layers."""
        total = max(1, self._num_weights)
        return tuple((needed, number / total) for needed, number in self._order)

    def _unit(self, layer: Layer, place: LayerContext) -> Unit | None:
        """Returns the unit that a layer belongs to; None if it has no own products or weights."""
        weights = [s for s in layer.declarations() if s.decay is None and not s.sparse]
        shape, flops, _ = self._call(layer, place)
        if not shape or isinstance(layer, Wrapper) or not (weights or flops):
            return None
        if not flops and weights[0].axes == ("vocab", "embed"):  # the layer looks up table rows
            shape = (*shape[:2], 1)
        if not flops and len(shape) != SEQUENCE_DIMS:  # a norm after a convolution
            return None
        return Unit(
            name=layer.path,
            kind=type(layer).__name__,
            shape=shape,
            flops=flops,
            matrices=self._matrices(weights, shape, flops),
            num_experts=_size(layer, {"expert"}),
            weightless_axis="embed" if isinstance(layer, MoE) else "heads",
            # if the axis is not split, a MoE gathers tokens instead of multiplying
            weightless_for="expert" if isinstance(layer, MoE) else "",
            dtype=layer.p.dtype,
            in_stack=place.in_stack,
            is_recomputed=place.is_recomputed,
            stride=getattr(layer.p, "stride", 1),
            logits=_num_logits(layer, shape, self._memory_length(layer)),
        )

    def _call(self, layer: Layer, place: LayerContext) -> FlopsCall:
        """Returns the input shape of a layer's own products, and their FLOPs.

        All experts of a mixture count as one layer, which computes all slots. The mixture itself
        has two products with one-hot tensors, which send tokens to slots and results back.
        """
        shape, flops = place.shape, self._own_flops(layer)
        if isinstance(layer, MoE) and layer in self._calls:  # a frozen teacher's is not
            group_size = layer.p.group_size or shape[1]
            return FlopsCall(shape, 4 * self._slots(layer) * shape[-1] * group_size)
        if flops and _size(layer, {"expert"}) > 1 and place.mixture is not None:
            slots = self._slots(place.mixture)
            return FlopsCall((slots, *shape[1:]), flops * slots // shape[0])
        return FlopsCall(shape, flops)

    def _matrices(
        self, weights: Sequence[ParamSpec], shape: Sequence[int], flops: int
    ) -> tuple[Matrix, ...]:
        """Returns the matrices of a layer's products, or the table whose rows the layer looks up.

        A layer with products but without own matrices, such as a tied head, may use the embedding's
        table.
        """
        if not flops and shape[-1] != 1:
            return ()
        matrices = [_matrix(spec) for spec in weights if is_matrix(spec)]
        if matrices or not flops:
            return tuple(matrices)
        rows = math.prod(shape[:-1])
        return tuple(_transpose(s) for s in self._tables if 2 * rows * s.size == flops)[:1]

    def _memory_length(self, layer: Layer) -> int | None:
        return self._calls[layer].memory_length if layer in self._calls else None

    def _slots(self, mixture: MoE) -> int:
        return mixture.num_slots(self._calls[mixture].shape)

    def _own_flops(self, layer: Layer) -> int:
        """Returns the FLOPs of a layer's call, without those of the layers inside."""
        if layer not in self._calls:
            return 0
        inside = self._flops_inside(layer, self._ranks[layer])
        return self._calls[layer].flops - inside // _count(layer)

    def _flops_inside(self, layer: Layer, before: int) -> int:
        """Returns the FLOPs of the layers inside that were called before, all copies of each."""
        total = 0
        for child in layer.inner_layers():
            if child not in self._calls:
                total += self._flops_inside(child, before)
            elif self._ranks[child] < before:  # a task calls Mask R-CNN's heads after it
                total += self._calls[child].flops * _count(child)
        return total


def _num_logits(layer: Layer, shape: Sequence[int], memory_length: int | None) -> int:
    """Returns the elements of attention's logits; 0 if they are computed block by block."""
    if not isinstance(layer, DotProductAttention):
        return 0
    num_keys = memory_length or shape[1]
    whole = not layer.is_blockwise(shape[1], num_keys)
    return shape[0] * layer.p.num_heads * shape[1] * num_keys if whole else 0


def _logits_residuals(shape: Sequence[int], num_classes: int) -> list[Residual]:
    """Returns the residuals of a loss over a vocabulary: the logits and their softmax.

    They cover all positions, since the loss shifts positions.
    """
    names = (None,) * (len(shape) - 2)
    logits = Residual(1, (*shape[:-1], num_classes), ("batch", *names, "vocab"))
    return [logits, logits._replace(is_elementwise=True)]


def _size(layer: Layer, axes: Container[str]) -> int:
    """Returns the number of copies of a layer along the given axes of the stacks around it."""
    sizes = zip(path.stack_shape(layer.path), layer.stack_axes, strict=True)
    return math.prod(size for size, axis in sizes if axis in axes)


def _count(layer: Layer) -> int:
    """Returns how many layers a stacked layer stands for; all experts together count as one."""
    return _size(layer, set(layer.stack_axes) - {"expert"})


def _matrix(spec: ParamSpec) -> Matrix:
    return Matrix(spec.shape, spec.axes, len(split_dims(spec).inputs))


def _transpose(spec: ParamSpec) -> Matrix:
    return Matrix(spec.shape[::-1], spec.axes[::-1], 1)


# ---- layers that count nothing -------------------------------------------------------------------


NUM_NAMED = 3  # the largest number of layers that a sentence names
_OWN = "lingo.layers."  # lingo's layers without `flops` only look up tables


def missing_flops(experiment: Experiment) -> list[str]:
    """Returns the layers that have matrices but no `flops`, each as "model/net (Keras)"."""
    layers = [layer for layer in experiment.task.tree() if _has_no_flops(layer)]
    return [f"{layer.path or 'the task'} ({type(layer).__name__})" for layer in layers]


def no_flops_message(experiment: Experiment) -> str:
    """Returns the error text for an experiment whose task counts no FLOPs."""
    kind = type(experiment.task).__name__
    names = ", ".join(missing_flops(experiment)[:NUM_NAMED]) or "the layers of its model"
    return (
        f"task: {kind} counts no FLOPs, so there is nothing to plan. Define `batch_flops(specs)` of"
        f" {kind} if it has none, and `flops(shape)` of {names}; layers of Keras cannot count: use"
        " layers of lingo.layers instead"
    )


def _has_no_flops(layer: Layer) -> bool:
    if type(layer).flops is not Layer.flops:
        return False
    if type(layer)._late:  # the layer's weights belong to a Keras model
        return True
    weights = [spec for spec in layer.declarations() if spec.decay is None]
    return any(map(is_matrix, weights)) and not type(layer).__module__.startswith(_OWN)
