"""What a device holds, and what devices exchange for it: the state, and the rest of a step.

Weights, slots and gradients are those of the layout, exactly. A weight that is split along mesh
axes of the batch is gathered where it is used, in a loop over layers also backward, and its
gradient is reduced and scattered. All devices of the other axes of the batch, and of those along
which positions are split, sum its gradient; if each updates a part (Xu et al. 2020), they gather
the new weight.

Beside the state, a step needs the largest of what its phases need:

    end of the forward pass   all residuals, and the gradient of the largest
    backward pass             residuals of layers before, the new state of layers behind
    backward pass of a loop   residuals of the loop, what one iteration computes again, gradients
    update                    the new state

A gradient becomes new weights and slots as soon as it is there. These wait beside the old ones, as
the step may be skipped, until all gradients are known to be finite.

A loop over layers keeps everything to its end, and for each layer the weights that it read; one
whose gradient computes layers again keeps their inputs in the place of residuals. Accumulation
carries gradients from part to part of the batch.

In a pipeline each turn is an iteration, idle ones too. It keeps the input of each of its pattern
steps (with `remat`: of the first alone), and its result, but no weights: its gradient reads them
again. The buffers of gradients, of weights and of the inputs of turns, exist from the start, as a
loop writes into them. Where a stage has several pattern steps these are a loop inside, with a copy
of the weights in the order of steps, and gradients of the weights in one turn.

The compiler for processors does so. The one for TPUs (docs/tpu.md) computes elementwise results
again, and keeps no weights of a loop. It frees residuals of later layers before it makes the
gradient of an earlier one, and sums gradients in the type of the computation.
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
from lingo.runtimes.layout import batch_axes, bytes_per_device, layout

# ---- state ---------------------------------------------------------------------------------------


POSITIONS = ("length", "height", "width", "depth")
"""Logical axes of the positions of an example."""


class StatePart(NamedTuple):
    """What a device has of the state of a learner."""

    bytes: dict[str, int]  # of `weights`, `slots`, `gradients` and `statistics`
    gathered_bytes: float  # of weights that stay gathered until the backward pass: of no loop
    stack_bytes: float  # of weights that loops over layers read, in the type of the computation
    stack_gathered_bytes: float  # of those among these that are gathered to be read
    # Exchanges of one use of the weights of a stack, and of other weights, in a part of a batch.
    stack_uses: tuple[Exchange, ...]
    other_uses: tuple[Exchange, ...]
    updates: tuple[Exchange, ...]  # exchanges of an update


class _Weight(NamedTuple):
    """A weight's part on a device."""

    size: int  # elements
    read_bytes: float  # when gathered, in the type of the computation
    num_layers: float  # of a device that are stacked in it; 1 for a weight of one layer
    is_stacked: bool
    num_gradients: int  # that are summed: two for a table that is the head's, too
    gathered: set[str]  # mesh axes along which it is gathered to be used
    summed: set[str]  # and those along which its gradient is summed


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
    """Returns the part of a learner's state on a device.

    Exchanges of a layer in a loop are combined up to `combined_bytes`, and those of all weights
    outside of loops. Raises ParamError if the rules do not fit a weight.
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


def _num_uses(purpose: Purpose) -> int:
    """Returns how often a step exchanges for a purpose in a loop: it gathers also backward."""
    return 2 if purpose == "weights" else 1


def _weight(
    spec: ParamSpec,
    rest: Split,
    mesh: Topology,
    rules: Rules,
    batch: set[str],
    num_gradients: int,
) -> _Weight:
    """Returns the part of a weight whose split between steps is `rest`."""
    positions = {axis for name in POSITIONS for axis in rules.activations[name]}
    experts = {axis for axes in rest.axes[: spec.num_stacked] for axis in axes}
    gathered = rest.used_axes() & batch - experts
    lengths = zip(spec.stack_axes, spec.program_shape, strict=False)
    stacked = {axis: length for axis, length in lengths if axis in ("layer", "stage")}
    size = rest.part_size(spec.program_shape, mesh)
    return _Weight(
        size,
        read_bytes=size * mesh.size(gathered) * ITEM_BYTES[spec.dtype],
        num_layers=math.prod(stacked.values()) / mesh.size(["stage"]) if stacked else 1,
        is_stacked=bool(stacked),
        num_gradients=num_gradients,
        gathered=gathered,
        summed=(batch | positions) - rest.used_axes(),
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
    """Adds the exchanges of a use of a weight, and those of its update, if this is in shards.

    `width` is the bytes of an element of a gradient that is summed.
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
    for axes in (weight.summed & batch, weight.summed - batch):  # one after the other
        uses.add("all-reduce", axes, "gradients", size, sums)


# ---- what else a step needs ----------------------------------------------------------------------


class ResidualBytes(NamedTuple):
    """Bytes on a device of what gradients need, of a part of a batch."""

    of_stack: float
    of_others: float  # layers outside the stack
    largest: float  # one tensor
    largest_of_stack: float
    logits: float  # of the loss, one tensor
    # of the layers up to each, in order, with the share of all weights that layers from it on have
    sums: tuple[tuple[float, float], ...]


class Loop(NamedTuple):
    """How a stack computes its layers."""

    iterations: float  # that a device does; 0 for a stack that is no loop
    weights: float  # bytes that an iteration reads; of a pipeline, those of all layers of a device
    boundary: float  # bytes of what passes from one to the next
    share: float  # of the device's layers that are computed, or computed again, at once
    is_recomputed: bool
    num_steps: int = 0  # pattern steps of a stage in a turn of a pipeline; 0 for no pipeline
    keeps_turns: bool = False  # whether a pipeline keeps the input of a turn, not of each step


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
    """Returns the residuals of one of the parts of a batch.

    A stack, unlike other layers, computes a micro-batch of this part. What enters a pipeline is
    among what its turns keep, and no residual of the layer before. With `loop_keeps_all` the stack
    is a loop that keeps what TensorFlow's gradient reads, which a TPU's compiler cannot change.
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
    """Returns what a backward pass needs at most in addition to all residuals.

    It frees residuals of later layers before it makes the gradient of an earlier one.
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
    """Returns bytes by kind: `activations`, `temporaries` and, negative, `reused`.

    `reused` are bytes of gradients that are not there while activations are, and the reverse.
    `gathered` are weights that are whole while they are used.
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
        # of the largest tensor two gradients: of the result of its operation, and of the input
        backward = stack + layer + 2 * found.largest_of_stack + found.logits + gathered + gradients
    elif not is_accumulated:
        backward = max((size + share * new_state for size, share in found.sums), default=0.0)
    carried = gradients if is_accumulated else 0.0
    peak = carried + max(forward_end, backward, new_state)
    beside = peak - activations - temporaries - gradients
    return {
        "activations": activations,
        "temporaries": temporaries + max(0.0, beside),
        "reused": min(0.0, beside),
    }
