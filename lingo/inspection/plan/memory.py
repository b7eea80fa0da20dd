"""The memory of a step on a device beside its state: the largest of what its phases need.

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
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from lingo.inspection.plan.workload import LayerResidual, Workload
from lingo.mesh.rules import Rules
from lingo.mesh.topology import Topology


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
    workload: Workload, mesh: Topology, rules: Rules, *, parts: int, micro_batches: int
) -> ResidualBytes:
    """Returns the residuals of one of the parts of a batch.

    A stack, unlike other layers, computes a micro-batch of this part. What enters a pipeline is
    among what its turns keep, and no residual of the layer before.
    """
    stages = mesh.size(["stage"])
    stack = others = largest = largest_of_stack = logits = 0.0
    sizes: dict[LayerResidual, float] = {}
    for needed, number in workload.residuals.items():
        one = needed.residual
        num_parts = parts * micro_batches if needed.in_stack else parts
        size = one.part_bytes(mesh, rules, num_parts)
        sizes[needed] = size * one.num_copies(mesh, rules, num_parts)
        total = number * sizes[needed]
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
    return ResidualBytes(stack, others, largest, largest_of_stack, logits, tuple(sums))


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
