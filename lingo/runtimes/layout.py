"""Which part of every tensor of a training state each device of a mesh holds.

A weight has three splits, each derived from the one before. At *rest*, between steps, it is split
as the rules map its logical axes; with `shard_weights` also along the mesh axes of the batch, and
then layers gather it where they read it. For its *update* it is split as at rest; with
`shard_update` also along the mesh axes of the batch (Xu et al. 2020, arXiv 2004.13336): each device
then sums gradients, updates and keeps slots for its part only. A *slot* is split as the update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from lingo.config.params import ParamError
from lingo.layers.tree import ParamSpec
from lingo.learner.state import FLOAT_BYTES, Learner, TrainState
from lingo.mesh.rules import Rules, split
from lingo.mesh.split import Axes, Split, whole
from lingo.mesh.topology import Topology
from lingo.optim.optimizer import Slot


class Layout(NamedTuple):
    """Splits of a training state over a mesh, by program path."""

    mesh: Topology
    rules: Rules  # map logical axes to mesh axes
    rest: dict[str, Split]  # of each weight between steps
    update: dict[str, Split]  # of each weight and its gradient in the optimizer
    slots: dict[str, dict[str, Split]]  # path of a weight or statistic -> {slot: split}
    state: dict[str, Split]  # of each moving statistic

    def map(self, function: Callable[[Any, Split], Any], state: TrainState) -> TrainState:
        """Returns the state with `function(value, split)` in place of each value, of any shape."""
        return TrainState(
            function(state.step, whole(0)),
            {k: function(v, self.rest[k]) for k, v in state.weights.items()},
            {
                k: {name: function(v, self.slots[k][name]) for name, v in slots.items()}
                for k, slots in state.slots.items()
            },
            {k: function(v, self.state[k]) for k, v in state.state.items()},
        )


def layout(
    learner: Learner,
    mesh: Topology,
    rules: Rules,
    *,
    shard_update: bool = False,
    shard_weights: bool = False,
    uneven: bool = True,
) -> Layout:
    """Returns how a learner's state is split; the flags are the fields of `Sharded`.

    Raises ParamError, which names the tensor, if the rules do not fit it (see `split`).
    """
    specs, batch = learner.task.weights(), batch_axes(rules, mesh)

    def by_rules(specs: Mapping[str, ParamSpec]) -> dict[str, Split]:
        return {k: _split_weight(spec, rules, mesh, uneven=uneven) for k, spec in specs.items()}

    def along_batch(splits: Mapping[str, Split]) -> dict[str, Split]:
        return {
            k: _split_further(split, specs[k], batch, mesh, uneven=uneven)
            for k, split in splits.items()
        }

    rest = along_batch(by_rules(specs)) if shard_weights else by_rules(specs)
    update = along_batch(rest) if shard_update else rest
    state = by_rules(learner.task.states())
    updated = update | state
    slots = {
        where: {name: _slot_split(updated[where], slot) for name, slot in slots.items()}
        for where, slots in learner.slots().items()
    }
    return Layout(mesh, rules, rest, update, slots, state)


class DeviceBytes(NamedTuple):
    """Memory of some tensors on a mesh, in bytes."""

    per_device: int  # padding included
    padding: int  # added to make parts equal, summed over all parts of all tensors


def bytes_per_device(learner: Learner, layout: Layout) -> dict[str, DeviceBytes]:
    """Returns the bytes of `weights`, `slots`, `gradients` and `statistics` on a mesh."""
    shapes = {where: weight.shape for where, weight in learner.weights().items()}
    slots = {
        (k, n): slot.shape for k, slots in learner.slots().items() for n, slot in slots.items()
    }
    states = {where: spec.program_shape for where, spec in learner.task.states().items()}
    mesh = layout.mesh
    return {
        "weights": _count_bytes(((shapes[k], split) for k, split in layout.rest.items()), mesh),
        "slots": _count_bytes(((slots[k], layout.slots[k[0]][k[1]]) for k in slots), mesh),
        "gradients": _count_bytes(((shapes[k], split) for k, split in layout.update.items()), mesh),
        "statistics": _count_bytes(((states[k], split) for k, split in layout.state.items()), mesh),
    }


def _count_bytes(tensors: Iterable[tuple[tuple[int, ...], Split]], mesh: Topology) -> DeviceBytes:
    per_device = padding = 0
    for shape, cut in tensors:
        per_device += cut.part_size(shape, mesh)
        padding += math.prod(cut.padded_shape(shape, mesh)) - math.prod(shape)
    return DeviceBytes(FLOAT_BYTES * per_device, FLOAT_BYTES * padding)


def pad_part(value: Any, index: tuple[slice, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Returns a part of a tensor of any shape and dtype, padded with zeros at the end to a shape.

    `value` may be an object that is read slice by slice; `index` has a slice for each axis, which
    may end, or begin, beyond the end of the tensor.
    """
    inside = np.asarray(value[index])
    part = np.zeros(shape, inside.dtype)
    part[tuple(map(slice, inside.shape))] = inside
    return part


def batch_axes(rules: Rules, mesh: Topology) -> Axes:
    """Returns the mesh axes along which the examples of a batch are split."""
    sizes = dict(mesh.sizes)
    return tuple(axis for axis in rules.activations["batch"] if sizes[axis] > 1)


def _split_weight(spec: ParamSpec, rules: Rules, mesh: Topology, *, uneven: bool) -> Split:
    logical = spec.stack_axes + spec.axes
    try:
        return split(spec.program_shape, logical, rules.weights, mesh, uneven=uneven)
    except ParamError as error:
        raise ParamError(f"runtime: {spec.path}: {error}", "runtime") from None


def _split_further(
    rest: Split, spec: ParamSpec, axes: Axes, mesh: Topology, *, uneven: bool
) -> Split:
    """Returns a split that also uses those of some mesh axes that it does not use yet."""
    axes = tuple(axis for axis in axes if axis not in rest.used_axes())
    num, parts = mesh.size(axes), rest.part_shape(spec.program_shape, mesh)
    if num == 1 or math.prod(parts) < num:
        return rest
    # A loop over layers reads whole layers: the axes along which they are stacked come last.
    own_first = [*range(spec.num_stacked, len(parts)), *range(spec.num_stacked)]
    even = [i for i in own_first if parts[i] % num == 0]
    if not even and not uneven:
        return rest
    return rest.cut(even[0] if even else max(own_first, key=parts.__getitem__), axes)


def _slot_split(update: Split, slot: Slot) -> Split:
    """Returns the split of a slot, which may have only some axes of its weight."""
    return update if slot.axes is None else Split(tuple(update.axes[i] for i in slot.axes))
