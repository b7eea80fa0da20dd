"""The computation of a training step, as plans need it: units of alike layers.

A unit is a layer that multiplies its own matrices, with its input's shape for a whole batch; layers
with equal shapes are one unit. Layers declare shapes and FLOPs, so that a trillion parameters take
a moment and no TensorFlow.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.layers import path
from lingo.layers.flops import (
    BATCH,
    FlopsCall,
    Record,
    number_tensor,
    record_flops,
    tensor_number,
)
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
"""Dims of the input of a layer of sequences, [B, T, D], and of images, [B, H, W, C]."""


class Matrix(NamedTuple):
    """A weight that a unit multiplies."""

    shape: tuple[int, ...]  # of one layer
    axes: tuple[str | None, ...]  # logical axis of each dim
    num_summed: int  # how many of the first dims the product sums over

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Unit(NamedTuple):
    """Layers of equal shapes."""

    name: str  # path of the first layer
    kind: str  # class of the layers
    shape: tuple[int, ...]  # of a layer's input, for a whole batch: [B, T, D], [B, H, W, C], ...
    flops: int  # of one forward pass of one layer, without the layers inside
    matrices: tuple[Matrix, ...]
    num_experts: int  # experts that are one unit; `flops` covers all of them
    # Logical axis that splits products without weights: attention's, and products with the one-hot
    # tensors that send tokens to experts.
    weightless_axis: str
    # Logical axis that must be split over devices for such products to exist; "": they always do.
    weightless_for: str
    dtype: str  # of the computation
    in_stack: bool  # whether it is in a stack, whose layers a pipeline may distribute
    is_recomputed: bool  # whether gradients compute it again
    stride: int  # of a convolution: elements between its windows
    logits: int  # elements of attention's logits that exist at once, for a whole batch

    @property
    def weight_flops(self) -> int:
        """FLOPs of the products with weights; attention has other products, too."""
        weights = sum(matrix.size for matrix in self.matrices)
        return 2 * self.positions * weights if self.flops else 0  # a table is only read

    @property
    def num_classes(self) -> int:
        """Classes of the unit's logits over a vocabulary; 0 if it computes no such logits."""
        last = self.matrices[-1] if self.flops and self.matrices else None
        return last.shape[-1] if last and last.axes[-1] == "vocab" else 0

    @property
    def positions(self) -> int:
        """Rows that a matrix of the unit multiplies, for a whole batch."""
        weights = sum(matrix.size for matrix in self.matrices) or 1
        rows = math.prod(self.shape[:-1])
        return rows if len(self.shape) <= SEQUENCE_DIMS else self.flops // (2 * weights)


class LayerResidual(NamedTuple):
    """A tensor of the forward pass that the gradient of a layer needs."""

    residual: Residual
    in_stack: bool


class StackSize(NamedTuple):
    """The size of a stack of alike layers."""

    num_steps: int  # how often it applies its pattern of layers
    boundary: int  # elements of the tensor that passes between these steps, for a whole batch


class RematPlace(NamedTuple):
    """A layer that gradients compute again."""

    path: str
    in_stack: bool


class Workload(NamedTuple):
    """The computation of a training step."""

    units: dict[Unit, int]  # -> number of layers
    residuals: dict[LayerResidual, int]  # -> number of layers
    unknown_residuals: tuple[str, ...]  # classes of layers whose residuals are not known
    # Residuals in the order of the forward pass, with the share of all weights in earlier layers.
    order: tuple[tuple[LayerResidual, float], ...]
    batch_size: int
    accumulation_steps: int
    flops: int  # of a forward pass of the batch
    input_bytes: int  # of a batch, as the host makes it
    stack: str  # class of the largest stack of alike layers: Stack, Repeat, ...; "" without one
    layer: str  # class of the largest stack's layers, without wrappers
    num_steps: int  # how often the stack applies its pattern of layers; 1 without a stack
    boundary: tuple[int, ...]  # shape of the tensor that passes between these steps
    keeps_turns: bool  # whether this stack is a pipeline that keeps only the inputs of turns
    stacks: tuple[StackSize, ...]  # all of them
    remats: tuple[RematPlace, ...]

    @property
    def image_flops(self) -> int:
        """FLOPs of a forward pass of layers that take images or volumes."""
        pairs = self.units.items()
        return sum(number * u.flops for u, number in pairs if len(u.shape) >= IMAGE_DIMS)

    @property
    def dtype(self) -> str:
        """The dtype of most of the computation."""
        return max(self.units, key=lambda unit: unit.flops * self.units[unit]).dtype

    @property
    def is_recomputed(self) -> bool:
        """Whether gradients keep only the tensors between the layers of the stacks."""
        inside = [unit.is_recomputed for unit in self.units if unit.in_stack]
        return bool(inside) and all(inside)

    @property
    def partial_remats(self) -> list[str]:
        """Paths of layers that gradients compute again, unless they are part of `is_recomputed`."""
        whole = self.is_recomputed
        return [remat.path for remat in self.remats if not (whole and remat.in_stack)]


def workload(experiment: Experiment) -> Workload:
    """Returns the computation of an experiment's training step.

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
    walk = _LayerWalk(calls, tables)
    walk.add(experiment.task, _LayerContext())
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
    """Whether a layer's class declares its own residuals."""
    is_inherited = type(layer).residuals is Layer.residuals
    return not (is_inherited or isinstance(layer, Wrapper | Task))


def _num_steps(stack: Stack) -> int:
    return stack.p.num_layers // len(stack.pattern)


def _innermost_class(params: Any) -> type[Layer]:
    """Returns the class of layers that params build, without wrappers."""
    while issubclass(params.cls, Wrapper):
        params = params.layer
    return params.cls


class _LayerContext(NamedTuple):
    """Where a layer is in the tree."""

    shape: tuple[int, ...] = ()  # of the input of the nearest layer around it that counts FLOPs
    in_stack: bool = False
    is_recomputed: bool = False
    mixture: MoE | None = None  # around it
    # whether the residuals of a layer around it cover it, as they do unless `flops` calls it
    is_covered: bool = False


class _LayerWalk:
    """Collects units and residuals of a tree of layers."""

    def __init__(self, calls: Record, tables: list[ParamSpec]) -> None:
        self.units: dict[Unit, int] = {}
        self.residuals: dict[LayerResidual, int] = {}
        self.unknown_residuals: set[str] = set()
        self.remats: list[RematPlace] = []
        self._num_weights = 0  # of the layers so far
        self._order: list[tuple[LayerResidual, int]] = []
        self._calls, self._tables = calls, tables
        self._kept = {BATCH}  # numbers of tensors of the batch, and of residuals so far
        self._elementwise: set[int] = set()  # numbers of tensors that follow from kept tensors
        self._names: dict[Unit, Unit] = {}  # unit without a name -> unit with the first's name

    def add(self, layer: Layer, place: _LayerContext) -> None:
        """Adds the units of a layer and of all layers inside."""
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
            mixture=layer if isinstance(layer, MoE) else place.mixture,
            is_covered=place.is_covered or (is_called and _declares_residuals(layer)),
        )
        for child in layer.inner_layers():
            self.add(child, inside)

    def _add_residuals(self, layer: Layer, unit: Unit | None, place: _LayerContext) -> None:
        """Adds the residuals of a layer."""
        residuals: list[Residual] | None = []
        if not place.is_covered:
            slots = None if place.mixture is None else self._slots(place.mixture)
            memory = self._memory_length(layer)
            residuals = layer.residuals(ResidualCall(place.shape, self._calls, slots, memory))
        if residuals is None:
            self.unknown_residuals.add(type(layer).__name__)
            residuals = []
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
        """Returns the number of a residual's tensor; None if no other layer has this tensor."""
        if residual.origin == "own" or layer not in self._calls:
            return None
        shape = self._calls[layer].shape
        if residual.origin == "output":
            return self._calls.output(layer, shape)
        return tensor_number(first_shape(shape))

    def order(self) -> tuple[tuple[LayerResidual, float], ...]:
        """Returns the residuals in order, each with the share of the weights before it."""
        total = max(1, self._num_weights)
        return tuple((needed, number / total) for needed, number in self._order)

    def _unit(self, layer: Layer, place: _LayerContext) -> Unit | None:
        """Returns the unit of a layer; None if it has no products and no weights of its own."""
        weights = [spec for spec in layer.declarations() if spec.decay is None]
        shape, flops, _ = self._call(layer, place)
        if not shape or isinstance(layer, Wrapper) or not (weights or flops):
            return None
        if not flops and weights[0].axes == ("vocab", "embed"):  # it looks up rows of a table
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
            weightless_for="expert" if isinstance(layer, MoE) else "",  # it gathers tokens instead
            dtype=layer.p.dtype,
            in_stack=place.in_stack,
            is_recomputed=place.is_recomputed,
            stride=getattr(layer.p, "stride", 1),
            logits=_num_logits(layer, shape, self._memory_length(layer)),
        )

    def _call(self, layer: Layer, place: _LayerContext) -> FlopsCall:
        """Returns the input of a layer's own products, and their FLOPs.

        Experts compute all slots, in one unit; their mixture has a product with a one-hot tensor
        that sends tokens to slots, and one that sends results back.
        """
        shape, flops = place.shape, self._own_flops(layer)
        if isinstance(layer, MoE):
            group_size = layer.p.group_size or shape[1]
            return FlopsCall(shape, 4 * self._slots(layer) * shape[-1] * group_size)
        if flops and _size(layer, {"expert"}) > 1 and place.mixture is not None:
            slots = self._slots(place.mixture)
            return FlopsCall((slots, *shape[1:]), flops * slots // shape[0])
        return FlopsCall(shape, flops)

    def _matrices(
        self, weights: Sequence[ParamSpec], shape: Sequence[int], flops: int
    ) -> tuple[Matrix, ...]:
        """Returns the matrices that a layer multiplies, or the table that it looks up rows of.

        A layer that multiplies without matrices of its own may use the table of the embedding.
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
        """Returns the FLOPs of a call, without the layers inside."""
        if layer not in self._calls:
            return 0
        inside = sum(map(self._total_flops, layer.inner_layers()))
        return self._calls[layer].flops - inside // _count(layer)

    def _total_flops(self, layer: Layer) -> int:
        """Returns the FLOPs of all copies of a called layer, else of the called layers inside."""
        if layer in self._calls:
            return self._calls[layer].flops * _count(layer)
        return sum(map(self._total_flops, layer.inner_layers()))


def _num_logits(layer: Layer, shape: Sequence[int], memory_length: int | None) -> int:
    """Returns the elements of attention's logits; 0 if it computes them block by block."""
    if not isinstance(layer, DotProductAttention):
        return 0
    num_keys = memory_length or shape[1]
    whole = not layer.is_blockwise(shape[1], num_keys)
    return shape[0] * layer.p.num_heads * shape[1] * num_keys if whole else 0


def _logits_residuals(shape: Sequence[int], num_classes: int) -> list[Residual]:
    """Returns the logits of a loss and their softmax, for all positions, which a loss shifts."""
    names = (None,) * (len(shape) - 2)
    logits = Residual(1, (*shape[:-1], num_classes), ("batch", *names, "vocab"))
    return [logits, logits._replace(is_elementwise=True)]


def _size(layer: Layer, axes: Container[str]) -> int:
    """Returns the number of copies of a layer along axes of stacks."""
    sizes = zip(path.stack_shape(layer.path), layer.stack_axes, strict=True)
    return math.prod(size for size, axis in sizes if axis in axes)


def _count(layer: Layer) -> int:
    """Returns how many layers a stacked layer stands for; all experts together are one."""
    return _size(layer, set(layer.stack_axes) - {"expert"})


def _matrix(spec: ParamSpec) -> Matrix:
    return Matrix(spec.shape, spec.axes, len(split_dims(spec).inputs))


def _transpose(spec: ParamSpec) -> Matrix:
    return Matrix(spec.shape[::-1], spec.axes[::-1], 1)


# ---- layers that count nothing -------------------------------------------------------------------


NUM_NAMED = 3  # the most layers that a sentence names
_OWN = "lingo.layers."  # lingo's layers that multiply all count FLOPs; the others read tables


def missing_flops(experiment: Experiment) -> list[str]:
    """Returns layers that have matrices and no `flops`, as "model/net (Keras)"."""
    layers = [layer for layer in experiment.task.tree() if _has_no_flops(layer)]
    return [f"{layer.path or 'the task'} ({type(layer).__name__})" for layer in layers]


def no_flops_message(experiment: Experiment) -> str:
    """Returns the error for an experiment whose task counts no FLOPs."""
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
    if type(layer)._late:  # its weights belong to a model of Keras
        return True
    weights = [spec for spec in layer.declarations() if spec.decay is None]
    return any(map(is_matrix, weights)) and not type(layer).__module__.startswith(_OWN)
