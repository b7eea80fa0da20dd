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

from lingo.inspection.plan.exchange import Exchange, Exchanges
from lingo.inspection.plan.residual import BYTES
from lingo.learner.state import FLOAT_BYTES, Learner
from lingo.mesh.rules import Rules
from lingo.mesh.topology import Topology
from lingo.runtimes.layout import batch_axes, bytes_per_device, layout

POSITIONS = ("length", "height", "width", "depth")
"""Logical axes of the positions of an example."""


class StatePart(NamedTuple):
    """What a device has of the state of a learner."""

    bytes: dict[str, int]  # of `weights`, `slots`, `gradients` and `statistics`
    gathered_bytes: float  # of weights that stay gathered until the backward pass: of no loop
    uses: tuple[Exchange, ...]  # exchanges of one use of all weights, in each part of a batch
    updates: tuple[Exchange, ...]  # exchanges of an update


def state_part(
    learner: Learner,
    mesh: Topology,
    rules: Rules,
    *,
    shard_update: bool,
    shard_weights: bool,
) -> StatePart:
    """Returns the part of a learner's state on a device.

    Raises ParamError if the rules do not fit a weight.
    """
    splits = layout(learner, mesh, rules, shard_update=shard_update, shard_weights=shard_weights)
    uses, updates, batch = Exchanges(mesh), Exchanges(mesh), set(batch_axes(rules, mesh))
    positions = {axis for name in POSITIONS for axis in rules.activations[name]}
    kept = 0.0
    for where, spec in learner.task.weights().items():
        rest, num_stacked = splits.rest[where], spec.num_stacked
        experts = {axis for axes in rest.axes[:num_stacked] for axis in axes}
        gathered = rest.used_axes() & batch - experts
        others = (batch | positions) - rest.used_axes()
        part = rest.part_size(spec.program_shape, mesh)
        read = part * mesh.size(gathered) * BYTES[spec.dtype]
        number = math.prod(spec.program_shape[:num_stacked])
        times = 2 if num_stacked else 1
        uses.add("all-gather", gathered, "weights", times * read, times * number)
        kept += read if gathered and not num_stacked else 0
        uses.add("reduce-scatter", gathered, "gradients", read, number)
        if splits.update[where] == rest:
            for axes in (others & batch, others - batch):  # one after the other
                uses.add("all-reduce", axes, "gradients", part * FLOAT_BYTES)
        else:
            uses.add("reduce-scatter", others, "gradients", part * FLOAT_BYTES)
            updates.add("all-gather", others, "weights", part * FLOAT_BYTES)
    sizes = {kind: size.per_device for kind, size in bytes_per_device(learner, splits).items()}
    return StatePart(sizes, kept, tuple(uses), tuple(updates))
