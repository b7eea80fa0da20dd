"""The part of each tensor of a training state that each device of a mesh holds.

A weight has three splits, each derived from the previous one. At *rest*, between steps, it is split
as the rules map its logical axes. With `shard_weights` it is also split along the mesh axes of the
batch; layers then gather it where they read it. For its *update* it is split as at rest. With
`shard_update` it is also split along the mesh axes of the batch (Xu et al. 2020, arXiv 2004.13336):
each device then updates only its part, and keeps slots only for this part. A *slot* is split like
the update.

With `shard_update` each of N devices has 1/N of a slot, rounded up. An axis whose size is a
multiple of N is split. If there is no such axis, the elements of each part form a row with zeros at
its end, and each device updates and keeps a chunk of the row: see `lingo/mesh/weight_rows.py`. Host
arrays and checkpoints have every tensor's own shape, without padding. A slot that lacks some axes
of its weight (Adafactor's means over rows and columns) is kept in the same way, by its own shape.
During the update it is not split along the mesh axes of the batch. A sparse table is split as at
rest: each device updates the looked-up rows that it has.

With `keep_parts` a device keeps between steps only the part of a weight that it updates. In each
step it gathers a whole copy for its layers, perhaps with fewer bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from lingo.config.params import ParamError
from lingo.layers.tree import ParamSpec
from lingo.learner.state import FLOAT_BYTES, Learner, TrainState
from lingo.mesh.rules import RECIPES, Rules, split
from lingo.mesh.split import Axes, Split, whole
from lingo.mesh.topology import Topology, topology
from lingo.mesh.weight_rows import WeightRows, weight_rows
from lingo.optim.optimizer import Slot

GatherDtype = Literal["float32", "bfloat16"]
"""Dtype of the weights that devices gather after each device has updated only its part."""


class Layout(NamedTuple):
    """Splits of a training state over a mesh: path -> split; stacked layers are one tensor."""

    mesh: Topology
    rules: Rules  # map logical axes to mesh axes
    rest: dict[str, Split]  # of each weight between steps
    read: dict[str, Split]  # of each weight where layers read it in the step; never in rows
    update: dict[str, Split]  # of each weight, gradient and average in the optimizer
    gradients: dict[str, Split]  # of each gradient, once it is summed over devices
    slots: dict[str, dict[str, Split]]  # path of a weight or statistic -> {slot: split}
    state: dict[str, Split]  # of each moving statistic
    # Path -> rows of the weight and its average; None if it is not updated in rows.
    rows: dict[str, WeightRows | None]
    # The same for each slot that lacks some axes of its weight: path -> {slot: rows}.
    factor_rows: dict[str, dict[str, WeightRows | None]]

    def map(self, function: Callable[[Any, Split], Any], state: TrainState) -> TrainState:
        """Returns the state with each value, of any shape, replaced by `function(value, split)`."""
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
    keep_parts: bool = False,
) -> Layout:
    """Returns how a learner's state is split; all flags but `keep_parts` are fields of `Sharded`.

    Raises ParamError, which names the tensor, if the rules do not fit it (see `split`).
    """
    specs, batch = learner.task.weights(), batch_axes(rules, mesh)
    specs_of_all = {**specs, **learner.states()}
    ruled = {k: _split_weight(spec, rules, mesh, uneven=uneven) for k, spec in specs_of_all.items()}
    rest = ruled
    if shard_weights:
        rest = ruled | {
            k: _split_further(ruled[k], spec, batch, mesh, uneven=uneven)
            for k, spec in specs.items()
        }

    def split_evenly(where: str, split: Split, shape: tuple[int, ...]) -> Split:
        if specs_of_all[where].sparse:  # a device updates the looked-up rows that it has
            return split
        num_stacked = specs_of_all[where].num_stacked
        in_rows = uneven and learner.optimizer.updates_rows()
        return _split_evenly(split, shape, num_stacked, batch, mesh, uneven=in_rows)

    splits = _complete(learner, mesh, rules, ruled, rest, split_evenly if shard_update else None)
    return _keep_parts(splits) if keep_parts else splits


def replica_layout(learner: Learner, num_replicas: int, *, keep_parts: bool = False) -> Layout:
    """Returns the layout of replicas: each has all weights, and updates a chunk of every one."""
    specs = {**learner.task.weights(), **learner.states()}
    mesh, rest = topology({"data": num_replicas}), {}
    for where, spec in specs.items():
        rest[where] = whole(len(spec.program_shape))

    def in_rows(where: str, split: Split, shape: tuple[int, ...]) -> Split:
        del shape  # a scalar is in rows, too, so that all sums over parts are sums over rows
        return Split(split.axes, ("data",), specs[where].num_stacked)

    splits = _complete(learner, mesh, RECIPES["1d"], rest, rest, in_rows)
    splits = splits._replace(gradients=splits.read)  # an all-reduce gives every replica all of them
    return _keep_parts(splits) if keep_parts else splits


def _keep_parts(layout: Layout) -> Layout:
    """Returns a layout that keeps each weight, between steps too, with its update's split."""
    return layout._replace(rest={k: layout.update[k] for k in layout.rest})


def _complete(
    learner: Learner,
    mesh: Topology,
    rules: Rules,
    ruled: Mapping[str, Split],
    rest: Mapping[str, Split],
    split_evenly: Callable[[str, Split, tuple[int, ...]], Split] | None,
) -> Layout:
    """Returns a layout, given each weight's and statistic's split by the rules and at rest.

    `split_evenly` maps a path, a split and a shape to the update's split; None: no further split.
    """
    specs = {**learner.task.weights(), **learner.states()}
    update = dict(rest)
    if split_evenly is not None:
        update = {k: split_evenly(k, rest[k], spec.program_shape) for k, spec in specs.items()}

    def slot_split(where: str, slot: Slot) -> Split:
        """Returns the split of a slot, which may lack some axes of its weight."""
        if slot.axes is None:
            return update[where]
        split = Split(tuple(() if i is None else rest[where].axes[i] for i in slot.axes))
        return split_evenly(where, split, slot.shape) if split_evenly else split

    declared = learner.slots()
    slots = {k: {n: slot_split(k, slot) for n, slot in own.items()} for k, own in declared.items()}
    rows = {k: weight_rows(spec.program_shape, update[k], mesh) for k, spec in specs.items()}
    factor_rows = {
        k: {
            n: weight_rows(s.shape, slots[k][n], mesh) for n, s in own.items() if s.axes is not None
        }
        for k, own in declared.items()
    }
    state = {k: ruled[k] for k in learner.states()}
    weights = {k: rest[k] for k in learner.task.weights()}
    return Layout(
        mesh=mesh,
        rules=rules,
        rest=weights,
        read=weights,
        update=update,
        gradients={k: update[k] for k in weights},
        slots=slots,
        state=state,
        rows=rows,
        factor_rows=factor_rows,
    )


def check_gather_dtype(dtype: GatherDtype, *, shard_update: bool) -> None:
    """Raises ParamError if `gather_dtype` is set on a runtime that gathers no weights."""
    if dtype != "float32" and not shard_update:
        raise ParamError(
            f"gather_dtype={dtype!r} is for weights that shard_update=True gathers: set both"
        )


class DeviceBytes(NamedTuple):
    """Memory of some tensors on a mesh, in bytes."""

    per_device: int  # padding included
    padding: int  # added to make parts equal, summed over all parts of all tensors


def bytes_per_device(learner: Learner, layout: Layout) -> dict[str, DeviceBytes]:
    """Returns the bytes of `weights`, `slots`, `gradients` and `statistics` on a mesh.

    Weights count with their split between steps, gradients with their split after the sum over
    devices. Before the sum, gradients of a device's own examples are as large as the read weights.
    Sparse tables have no gradients of their size, so they do not count.
    """
    weights = learner.weights()
    shapes = {where: weight.shape for where, weight in weights.items()}
    gradients = {k: split for k, split in layout.gradients.items() if not weights[k].sparse}
    slots = {
        (k, n): slot.shape for k, slots in learner.slots().items() for n, slot in slots.items()
    }
    states = {where: spec.program_shape for where, spec in learner.states().items()}
    mesh = layout.mesh
    return {
        "weights": _count_bytes(((shapes[k], split) for k, split in layout.rest.items()), mesh),
        "slots": _count_bytes(((slots[k], layout.slots[k[0]][k[1]]) for k in slots), mesh),
        "gradients": _count_bytes(((shapes[k], s) for k, s in gradients.items()), mesh),
        "statistics": _count_bytes(((states[k], split) for k, split in layout.state.items()), mesh),
    }


def _count_bytes(tensors: Iterable[tuple[tuple[int, ...], Split]], mesh: Topology) -> DeviceBytes:
    per_device = padding = 0
    for shape, cut in tensors:
        per_device += cut.part_size(shape, mesh)
        padding += math.prod(cut.padded_shape(shape, mesh)) - math.prod(shape)
    return DeviceBytes(FLOAT_BYTES * per_device, FLOAT_BYTES * padding)


def pad_part(value: Any, index: tuple[slice, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Returns a part of a tensor of any shape and dtype, padded at the end with zeros to `shape`.

    `value` may be an object that is read slice by slice. `index` has a slice for each axis; slices
    may begin or end beyond the end of the tensor.
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
    """Returns the split `rest`, extended to those mesh `axes` that it does not use yet."""
    shape, num_stacked = spec.program_shape, spec.num_stacked
    even = _split_evenly(rest, shape, num_stacked, axes, mesh, uneven=False)
    axes, parts = _unused_axes(rest, axes), rest.part_shape(shape, mesh)
    num = mesh.size(axes)
    if even != rest or not uneven or num == 1 or math.prod(parts) < num:
        return even
    return rest.cut(max(_own_first(parts, num_stacked), key=parts.__getitem__), axes)


def _split_evenly(
    split: Split,
    shape: tuple[int, ...],
    num_stacked: int,
    axes: Axes,
    mesh: Topology,
    *,
    uneven: bool,
) -> Split:
    """Returns a split whose parts have 1/N of the elements, over N devices along unused mesh axes.

    It splits the first axis whose size is a multiple of N. Without one, it splits rows if `uneven`.
    """
    axes, parts = _unused_axes(split, axes), split.part_shape(shape, mesh)
    num = mesh.size(axes)
    if num == 1:
        return split
    for i in _own_first(parts, num_stacked):
        if parts[i] % num == 0:
            return split.cut(i, axes)
    if not uneven or math.prod(parts[num_stacked:]) == 1:
        return split
    return Split(split.axes, axes, num_stacked)


def _unused_axes(split: Split, axes: Axes) -> Axes:
    return tuple(axis for axis in axes if axis not in split.used_axes())


def _own_first(shape: tuple[int, ...], num_stacked: int) -> list[int]:
    """Returns the axes of a shape, in the order in which to split them."""
    # A loop over layers reads whole layers: the axes along which they are stacked come last.
    return [*range(num_stacked, len(shape)), *range(num_stacked)]
