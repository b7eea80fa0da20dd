"""The functions that a TPU's cores compute, from the tensors of a state and a batch.

    train(state, [K, B, ...] batches)          # tensors [*padded] of the state
        state = state without padding
        state, reports = scan(annotated train step, state, batches)
        state with padding, and with its shardings

They have neither variables nor devices. So `TpuMesh` runs them on its cores, and a compiler takes
the same functions where there is no TPU.

Axes: K steps, B examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.learner.state import Learner, TrainState, WhichWeights, map_shapes
from lingo.mesh.split import Split, whole
from lingo.mesh.tiles import Tiles, tiles
from lingo.mesh.topology import Topology
from lingo.mesh.weight_rows import read_rows, split_rows, weight_rows
from lingo.ops.scan import scan
from lingo.runtimes.layout import Layout, batch_axes, pad_part
from lingo.runtimes.mesh.annotation import MeshPlacement, sharded_step


class CoreProgram:
    """The functions of a learner that all cores compute together.

    Attributes:
        placement: annotates the tensors of a step with their splits.
        cuts: a TrainState with the `Cut` of each tensor.
        step: a `tf.function` of (index, state, batch), which returns (state, report).
    """

    def __init__(self, learner: Learner, layout: Layout) -> None:
        self._learner, self._layout = learner, layout
        self.placement = MeshPlacement(layout)
        shapes = map_shapes(learner, lambda shape: shape)
        self.cuts = layout.map(lambda shape, split: Cut(shape, split, layout.mesh), shapes)
        self.step = tf.function(self._step, autograph=False)

    def batch_cut(self, shape: Sequence[int], *, rows_axis: int) -> Cut:
        """Returns the `Cut` of a batch's tensor, whose axis `rows_axis` is B."""
        axes = batch_axes(self._layout.rules, self._layout.mesh)
        return Cut(shape, whole(len(shape)).cut(rows_axis, axes), self._layout.mesh)

    def batch_cuts(self, batch: Mapping[str, Any], num_rows: int, *, axis: int) -> dict[str, Cut]:
        """Returns the cuts of a batch of `num_rows` examples on axis `axis`.

        `batch` has tensors of the right shapes, except for the number of examples.
        """
        shapes = {name: [*value.shape] for name, value in batch.items()}
        return {
            name: self.batch_cut([*shape[:axis], num_rows, *shape[axis + 1 :]], rows_axis=axis)
            for name, shape in shapes.items()
        }

    def real_batch(self, batch: Mapping[str, Any], num_rows: int, *, axis: int) -> dict[str, Any]:
        """Returns a batch without padding: its first `num_rows` examples, which are on `axis`."""
        cuts = self.batch_cuts(batch, num_rows, axis=axis)
        return {name: remove_padding(value, cuts[name]) for name, value in batch.items()}

    def train(self, state: TrainState, batches: Mapping[str, Any]) -> tuple[TrainState, Any]:
        """Does K steps; returns the state and reports [K, ...].

        The tensors of both states are [*padded]; batches are name -> [K, B, ...] without padding.
        """
        state = tf.nest.map_structure(remove_padding, state, self.cuts)
        state, reports = scan(self.step, state, dict(batches), batches["rows"].shape[0])
        return tf.nest.map_structure(_add_padding, state, self.cuts), reports

    def select(self, state: TrainState, weights: WhichWeights) -> TrainState:
        """Returns the state to evaluate with, from a state whose tensors are [*padded].

        Slots may be left out, {}, if `weights` is "trained".
        """
        cuts = self.cuts if state.slots else self.cuts._replace(slots={})
        state = tf.nest.map_structure(remove_padding, state, cuts)
        return self.placement.state_for_evaluation(state, weights)

    def _step(self, i: tf.Tensor, state: TrainState, batch: Any) -> tuple[TrainState, Any]:
        return sharded_step(self._learner, state, batch, self.placement)


# ---- tensors in parts ----------------------------------------------------------------------------


class Cut:
    """A tensor's parts, in the order of its tile assignment: row-major, copies next to each other.

    `padded` is the shape of all parts together; elements beyond `shape` are zero. In the program
    the tensor has the shape `inside`: `shape`, or `padded` if it is in rows.
    """

    def __init__(self, shape: Sequence[int], split: Split, mesh: Topology) -> None:
        self.shape, self.padded = tuple(shape), split.padded_shape(shape, mesh)
        self.part_shape, self.tiles = split.part_shape(shape, mesh), tiles(split, mesh)
        self._rows = weight_rows(shape, split, mesh)
        self.inside = self.shape if self._rows is None else self.padded
        rank = len(self.padded)
        self._tiles = [tile[:rank] for tile in np.ndindex(self.tiles.tile_assignment_dimensions)]

    @property
    def devices(self) -> tuple[int, ...]:
        """The device number of each part."""
        return self.tiles.tile_assignment_devices

    def parts(self, value: Any) -> list[np.ndarray]:
        """Returns the part [*part_shape] of each of `devices`; copies are the same object.

        `value` is [*shape] of any dtype; it may be an object that is read slice by slice.
        """
        different = dict.fromkeys(self._tiles)
        parts = {tile: self._part(value, self._index(tile)) for tile in different}
        return [parts[tile] for tile in self._tiles]

    def _part(self, value: Any, index: tuple[slice, ...]) -> np.ndarray:
        if self._rows is not None:
            return read_rows(value, index, self._rows)
        return pad_part(value, index, self.part_shape)

    def whole(self, parts: Sequence[Any]) -> np.ndarray:
        """Returns the tensor [*shape] from its parts; from copies of a part, the first is read.

        Parts are TensorFlow's tensors or variables [*part_shape] in the order of `devices`.
        """
        first = dict(zip(reversed(self._tiles), reversed(parts), strict=True))
        value = np.empty(self.padded, parts[0].dtype.as_numpy_dtype)
        for tile, part in first.items():
            value[self._index(tile)] = part.numpy()
        if self._rows is None:
            return value[tuple(map(slice, self.shape))]
        tensor = np.empty(self.shape, value.dtype)
        every = tuple(map(slice, [0] * value.ndim, value.shape))
        for index, elements in split_rows(value, every, self._rows, self.shape):
            tensor[index] = elements
        return tensor

    def _index(self, tile: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(slice(i * n, (i + 1) * n) for i, n in zip(tile, self.part_shape, strict=True))


def remove_padding(value: tf.Tensor, cut: Cut) -> tf.Tensor:
    """Returns a tensor [*cut.padded] without its padding, as [*cut.inside]."""
    return value if cut.inside == cut.padded else value[tuple(map(slice, cut.inside))]


def _add_padding(value: tf.Tensor, cut: Cut) -> tf.Tensor:
    """Returns a tensor [*cut.inside] as [*cut.padded], with its sharding."""
    if cut.inside != cut.padded:
        sizes = zip(cut.padded, cut.inside, strict=True)
        value = tf.pad(value, [(0, padded - size) for padded, size in sizes])
    return with_sharding(value, cut.tiles, use_sharding_op=True)


def with_sharding(x: tf.Tensor, tiles: Tiles, *, use_sharding_op: bool = False) -> Any:
    """Returns `x`, of any shape and type, with a sharding over all devices for the TPU compiler.

    Without `use_sharding_op`, the operation that made `x` gets the sharding as an attribute.
    """
    from tensorflow.python.compiler.xla.experimental import xla_sharding

    if tiles.is_replicated:
        return xla_sharding.replicate(x, use_sharding_op=use_sharding_op)
    make = xla_sharding.partial_tile if tiles.replicate_on_last_tile_dim else xla_sharding.tile
    return make(x, tiles.tile_assignment, use_sharding_op=use_sharding_op)
