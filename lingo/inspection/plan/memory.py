"""Predicts a device's memory in a step, and the exchanges of weights and gradients.

The state consists of weights, optimizer slots, gradients and statistics. Their bytes are exact,
since they follow from how the mesh splits each tensor. A weight that is split along the batch's
mesh axes is all-gathered before each use, and its gradient is reduce-scattered. A loop over layers
gathers such weights again in the backward pass. The devices along the batch's other axes, and along
axes that split positions, sum the gradient. If each device updates a shard of the weight (Xu et al.
2020), they gather the new weight.

In addition to the state, a step needs the memory of its largest phase:

    end of the forward pass   all residuals, and the gradient of the largest residual
    backward pass             residuals of earlier layers, the new state of later layers
    backward pass of a loop   residuals of the loop, what one iteration recomputes, gradients
    update                    the new state

A gradient becomes new weights and slots as soon as it is computed. The old weights and slots are
kept until all gradients are known to be finite, since otherwise the step is skipped.

A loop over layers keeps all residuals until it ends, and also each layer's weights that it read. A
loop whose gradient recomputes layers keeps the layers' inputs instead of residuals. Gradient
accumulation splits the batch into parts, and carries gradients from one part to the next.

A pipeline is a loop, too. A *turn* is one iteration, in which each stage computes a micro-batch or
is idle. In a turn a stage computes one or more *pattern steps*: the stack's pattern of layers,
applied once. A turn keeps the input of each of its pattern steps (with `remat` only of the first)
and its result. It keeps no weights, since its gradient reads them again. The buffers for gradients
of weights and of turns' inputs exist from the start, since the loop writes into them. Several
pattern steps form an inner loop, which needs a copy of the weights in the order of steps, and
buffers for the weights' gradients in one turn.

XLA's compiler for CPUs works like this. XLA's compiler for TPUs (docs/tpu.md) recomputes
elementwise results, and keeps no weights of a loop. It frees residuals of later layers before it
makes the gradient of an earlier layer, and sums gradients in the dtype of the computation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lingo.inspection.plan.exchange import Exchange, Exchanges, Purpose
from lingo.inspection.plan.workload import LayerResidual, Workload
from lingo.layers.residual import ITEM_BYTES
from lingo.layers.sequence.softmax import TiedHead
from lingo.layers.tree import ParamSpec
from lingo.learner.state import FLOAT_BYTES, Learner
from lingo.mesh.rules import Rules
from lingo.mesh.split import Split
from lingo.mesh.topology import Topology
from lingo.runtimes.layout import Layout, batch_axes, bytes_per_device, layout

# ---- state ---------------------------------------------------------------------------------------


POSITIONS = ("length", "height", "width", "depth")
"""Logical axes along which an example has positions: of a sequence, image or volume."""


class StatePart(NamedTuple):
    """A device's part of the training state, and the exchanges of weights and gradients."""

    bytes: dict[str, int]  # "weights", "slots", "gradients" or "statistics" -> bytes
    sparse_bytes: int  # of sparse tables and their slots: a step moves only a few of their rows
    gathered_bytes: float  # bytes of gathered weights outside loops, kept until the backward pass
    stack_bytes: float  # bytes of weights that loops over layers read, in the computation's dtype
    stack_gathered_bytes: float  # bytes, after gathering, of weights that loops gather
    # Exchanges of one forward and backward pass: for weights inside stacks, and outside stacks.
    stack_uses: tuple[Exchange, ...]
    other_uses: tuple[Exchange, ...]
    updates: tuple[Exchange, ...]  # exchanges of one update by the optimizer


class _Weight(NamedTuple):
    """The shard of a weight that a device holds between steps, and how it is exchanged."""

    size: int  # elements of the shard
    read_bytes: float  # bytes of the gathered weight, in the dtype of the computation
    num_layers: float  # number of the device's layers that it stacks; 1 if it is of one layer
    is_stacked: bool
    num_gradients: int  # summed gradients: two for an embedding table that the head uses, too
    gathered: set[str]  # mesh axes along which the weight is gathered before its use
    summed: set[str]  # mesh axes along which the weight's gradient is summed


def state_part(
    learner: Learner,
    mesh: Topology,
    rules: Rules,
    *,
    shard_update: bool,
    shard_weights: bool,
    combined_bytes: float = 0.0,
    is_tpu: bool = False,
) -> StatePart:
    """Returns the part of a learner's state that a device holds, and the state's exchanges.

    The compiler combines tensors of one layer in a loop into collectives of up to `combined_bytes`
    bytes, and likewise all tensors outside of loops; 0: it combines nothing. Raises ParamError if
    the sharding rules do not fit a weight.
    """
    splits = layout(learner, mesh, rules, shard_update=shard_update, shard_weights=shard_weights)
    batch = set(batch_axes(rules, mesh))
    others, updates = Exchanges(mesh), Exchanges(mesh)
    loops: dict[tuple[str, float], Exchanges] = {}  # by layer in a loop, and iterations
    num_heads = sum(isinstance(layer, TiedHead) for layer in learner.task.tree())
    whole_bytes = stack_bytes = stack_whole_bytes = 0.0
    for where, spec in learner.task.weights().items():
        num_gradients = 1 + num_heads if spec.axes == ("vocab", "embed") else 1
        weight = _weight(spec, splits.rest[where], mesh, rules, batch, num_gradients)
        width = ITEM_BYTES[spec.dtype] if is_tpu else FLOAT_BYTES
        layer = where.partition("]")[0], weight.num_layers
        uses = loops.setdefault(layer, Exchanges(mesh)) if weight.is_stacked else others
        is_sharded = splits.update[where] != splits.rest[where]
        _exchange_weight(weight, uses, updates, batch, is_sharded=is_sharded, width=width)
        stack_bytes += weight.size * ITEM_BYTES[spec.dtype] if weight.is_stacked else 0
        if weight.gathered and weight.is_stacked:
            stack_whole_bytes += weight.read_bytes
        elif weight.gathered:
            whole_bytes += weight.read_bytes
    sizes = {kind: size.per_device for kind, size in bytes_per_device(learner, splits).items()}
    return StatePart(
        sizes,
        sparse_bytes=_sparse_bytes(learner, splits),
        gathered_bytes=whole_bytes,
        stack_bytes=stack_bytes,
        stack_gathered_bytes=stack_whole_bytes,
        stack_uses=tuple(
            one.combine(combined_bytes, iterations=_num_uses(one.purpose) * num_layers)
            for (_, num_layers), uses in loops.items()
            for one in uses
        ),
        other_uses=tuple(one.combine(combined_bytes) for one in others),
        updates=tuple(one.combine(combined_bytes) for one in updates),
    )


def _sparse_bytes(learner: Learner, splits: Layout) -> int:
    """Returns the bytes of a device's parts of sparse tables and of their slots."""
    size = 0
    for where, weight in learner.weights().items():
        if weight.sparse:
            slots = learner.optimizer.slots(weight)
            sizes = [
                splits.slots[where][k].part_size(s.shape, splits.mesh) for k, s in slots.items()
            ]
            size += splits.rest[where].part_size(weight.shape, splits.mesh) + sum(sizes)
    return FLOAT_BYTES * size


def _num_uses(purpose: Purpose) -> int:
    """Returns how often a loop exchanges a tensor: weights forward and backward, gradients once."""
    return 2 if purpose == "weights" else 1


def _weight(
    spec: ParamSpec,
    rest: Split,
    mesh: Topology,
    rules: Rules,
    batch: set[str],
    num_gradients: int,
) -> _Weight:
    """Returns a device's shard of a weight; between steps the weight is split as `rest` says."""
    positions = {axis for name in POSITIONS for axis in rules.activations[name]}
    experts = {axis for axes in rest.axes[: spec.num_stacked] for axis in axes}
    gathered = rest.used_axes() & batch - experts
    lengths = zip(spec.stack_axes, spec.program_shape, strict=False)
    stacked = {axis: length for axis, length in lengths if axis in ("layer", "stage")}
    size = rest.part_size(spec.program_shape, mesh)
    return _Weight(
        size,
        read_bytes=0.0 if spec.sparse else size * mesh.size(gathered) * ITEM_BYTES[spec.dtype],
        num_layers=math.prod(stacked.values()) / mesh.size(["stage"]) if stacked else 1,
        is_stacked=bool(stacked),
        num_gradients=num_gradients,
        # of sparse tables, devices exchange a few rows, which count as activations
        gathered=set() if spec.sparse else gathered,
        summed=set() if spec.sparse else (batch | positions) - rest.used_axes(),
    )


def _exchange_weight(
    weight: _Weight,
    uses: Exchanges,
    updates: Exchanges,
    batch: set[str],
    *,
    is_sharded: bool,
    width: int,
) -> None:
    """Adds a weight's exchanges: to `uses` those of one use, to `updates` those of its update.

    An update has exchanges only if it is sharded (`is_sharded`). `width` is the number of bytes per
    element of a summed gradient.
    """
    times, sums = _num_uses("weights") if weight.is_stacked else 1, weight.num_gradients
    read, tensors = weight.read_bytes, weight.num_layers
    uses.add("all-gather", weight.gathered, "weights", times * read, times * tensors)
    uses.add("reduce-scatter", weight.gathered, "gradients", sums * read, sums * tensors)
    size, sums = sums * weight.size * width, sums * tensors
    if is_sharded:
        uses.add("reduce-scatter", weight.summed, "gradients", size, sums)
        updates.add("all-gather", weight.summed, "weights", weight.size * FLOAT_BYTES)
        return
    for axes in (weight.summed & batch, weight.summed - batch):  # two sums, one after the other
        uses.add("all-reduce", axes, "gradients", size, sums)


# ---- the rest of a step --------------------------------------------------------------------------


class ResidualBytes(NamedTuple):
    """Bytes of residuals on a device: the tensors that the backward pass needs.

    They are those of one part of a batch, if gradient accumulation splits the batch.
    """

    of_stack: float  # residuals of layers in the stack
    of_others: float  # residuals of layers outside the stack
    largest: float  # the largest single residual
    largest_of_stack: float  # the largest single residual in the stack
    logits: float  # the loss's logits, as a single tensor
    # One pair per residual in forward order: the bytes of all residuals so far, and the share of
    # all weights that are in this and later layers.
    sums: tuple[tuple[float, float], ...]


class Loop(NamedTuple):
    """The loop in which a device computes its layers of a stack."""

    iterations: float  # number of iterations; 0 if the stack is not a loop
    weights: float  # weight bytes that an iteration reads; in a pipeline, of all layers on a device
    boundary: float  # bytes of the tensor that passes from one iteration to the next
    share: float  # share of the device's layers that are computed, or recomputed, at once
    is_recomputed: bool  # whether the gradient recomputes the layers
    num_steps: int = 0  # pattern steps that a stage computes per turn; 0: no pipeline
    keeps_turns: bool = False  # whether a pipeline keeps only each turn's input, not each step's


def residual_bytes(
    workload: Workload,
    mesh: Topology,
    rules: Rules,
    *,
    parts: int,
    micro_batches: int,
    is_tpu: bool,
    loop_keeps_all: bool = False,
) -> ResidualBytes:
    """Returns the bytes of residuals on a device, for one of `parts` equal parts of a batch.

    Gradient accumulation computes these parts one after the other. A stack further splits a part
    into `micro_batches`; other layers compute a whole part. The input of a pipeline counts among
    the inputs that its turns keep, not as a residual of the layer before. With `loop_keeps_all` the
    stack is a loop that keeps all tensors that TensorFlow's gradient reads, which a TPU's compiler
    cannot change.
    """
    stages = mesh.size(["stage"])
    stack = others = largest = largest_of_stack = logits = 0.0
    sizes: dict[LayerResidual, float] = {}
    singles: dict[LayerResidual, float] = {}  # of one copy
    for needed, number in workload.residuals.items():
        is_fused = is_tpu and not (needed.in_stack and loop_keeps_all)
        one = needed.residual.on_tpu(mesh, rules) if is_fused else needed.residual
        num_parts = parts * micro_batches if needed.in_stack else parts
        size = one.part_bytes(mesh, rules, num_parts)
        sizes[needed] = size * one.num_copies(mesh, rules, num_parts)
        total = number * sizes[needed]
        singles[needed] = size if total else 0.0
        largest = max(largest, size if total else 0.0)
        if needed.in_stack:
            stack += total / stages
            largest_of_stack = max(largest_of_stack, size if total else 0.0)
        else:
            others += total
            logits = max(logits, size if one.axes[-1] == "vocab" else 0.0)
    if stages > 1:
        before = itertools.takewhile(lambda one: not one.in_stack, (n for n, _ in workload.order))
        others -= sum(sizes[one] for one in before if one.residual.shape == workload.boundary)
    running = itertools.accumulate(sizes[needed] for needed, _ in workload.order)
    sums = [(total, 1 - share) for total, (_, share) in zip(running, workload.order, strict=True)]
    if is_tpu:
        order = [needed for needed, _ in workload.order]
        largest = _gradient_peak(order, sizes, singles)
        layer = [needed for needed in order if needed.in_stack]
        if workload.stack == "Stack":
            layer = layer[: len(layer) // workload.num_steps]
        largest_of_stack = _gradient_peak(layer, sizes, singles) / 2
    return ResidualBytes(stack, others, largest, largest_of_stack, logits, tuple(sums))


def _gradient_peak(
    order: Sequence[LayerResidual],
    sizes: Mapping[LayerResidual, float],
    singles: Mapping[LayerResidual, float],
) -> float:
    """Returns the largest number of bytes that a backward pass needs in addition to all residuals.

    The backward pass frees residuals of later layers before it makes an earlier layer's gradient.

    Args:
        order: residuals in the order of the forward pass.
        sizes: bytes of each residual, with all its copies.
        singles: bytes of one copy of each residual.
    """
    running = list(itertools.accumulate(sizes[needed] for needed in order))
    peaks = (total + singles[needed] for total, needed in zip(running, order, strict=True))
    return max(peaks, default=0.0) - (running[-1] if running else 0.0)


def working_bytes(
    found: ResidualBytes,
    loop: Loop,
    *,
    gradients: float,
    new_state: float,
    gathered: float,
    is_accumulated: bool,
) -> dict[str, float]:
    """Returns the bytes that a step needs in addition to the state, by kind.

    The kinds are "activations", "temporaries", and "reused", which is zero or negative: minus the
    bytes that gradients and activations use at different times.

    Args:
        found: residuals on a device.
        loop: the loop that computes the stack's layers.
        gradients: bytes of all gradients.
        new_state: bytes of the new weights and slots.
        gathered: bytes of weights that are gathered while they are used.
        is_accumulated: whether gradients are accumulated over several parts of a batch.
    """
    stack, layer = found.of_stack, 0.0
    buffers = turn_gradients = 0.0
    if loop.is_recomputed:
        layer = loop.share * stack
        stack = loop.iterations * loop.boundary
    if loop.num_steps:
        stack *= 2 if loop.keeps_turns else loop.num_steps + 1
        if loop.keeps_turns and loop.num_steps > 1:
            layer += loop.num_steps * loop.boundary
        buffers = gradients + loop.iterations * loop.boundary
        if loop.num_steps > 1:
            buffers, turn_gradients = buffers + loop.weights, loop.weights
    else:
        stack += loop.iterations * loop.weights
    activations = stack + found.of_others
    temporaries = layer + found.largest + gathered
    forward_end = activations + found.largest + gathered + buffers
    backward = 0.0
    if loop.num_steps:
        backward = stack + layer + 2 * found.largest_of_stack + gathered + buffers + turn_gradients
    elif loop.iterations:
        # two gradients of this size exist at once: of an operation's result, and of its input
        backward = stack + layer + 2 * found.largest_of_stack + found.logits + gathered + gradients
    elif not is_accumulated:
        backward = max((size + share * new_state for size, share in found.sums), default=0.0)
    carried = gradients if is_accumulated else 0.0
    peak = carried + max(forward_end, backward, new_state)
    excess = peak - activations - temporaries - gradients
    return {
        "activations": activations,
        "temporaries": temporaries + max(0.0, excess),
        "reused": min(0.0, excess),
    }
