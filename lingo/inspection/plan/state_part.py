"""The part of a training state that is on one device, and what devices exchange for it.

Weights, slots and gradients are those of the layout, exactly. A weight that is split along mesh
axes of the batch is gathered where it is used, in a loop over layers also backward, and its
gradient is reduced and scattered. All devices of the other axes of the batch, and of those along
which positions are split, sum its gradient; if each updates a part (Xu et al. 2020), they gather
the new weight.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from lingo.inspection.plan.exchange import Exchange, Exchanges, Purpose
from lingo.layers.residual import ITEM_BYTES
from lingo.layers.sequence.softmax import TiedHead
from lingo.layers.tree import ParamSpec
from lingo.learner.state import FLOAT_BYTES, Learner
from lingo.mesh.rules import Rules
from lingo.mesh.split import Split
from lingo.mesh.topology import Topology
from lingo.runtimes.layout import batch_axes, bytes_per_device, layout

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
        layer = where.partition("]")[0], weight.num_layers
        uses = loops.setdefault(layer, Exchanges(mesh)) if weight.is_stacked else others
        is_sharded = splits.update[where] != splits.rest[where]
        _exchange_weight(weight, uses, updates, batch, is_sharded=is_sharded)
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
    weight: _Weight, uses: Exchanges, updates: Exchanges, batch: set[str], *, is_sharded: bool
) -> None:
    """Adds the exchanges of a use of a weight, and those of its update, if this is in shards."""
    times, sums = _num_uses("weights") if weight.is_stacked else 1, weight.num_gradients
    read, tensors = weight.read_bytes, weight.num_layers
    uses.add("all-gather", weight.gathered, "weights", times * read, times * tensors)
    uses.add("reduce-scatter", weight.gathered, "gradients", sums * read, sums * tensors)
    size, sums = sums * weight.size * FLOAT_BYTES, sums * tensors
    if is_sharded:
        uses.add("reduce-scatter", weight.summed, "gradients", size, sums)
        updates.add("all-gather", weight.summed, "weights", weight.size * FLOAT_BYTES)
        return
    for axes in (weight.summed & batch, weight.summed - batch):  # one after the other
        uses.add("all-reduce", axes, "gradients", size, sums)
