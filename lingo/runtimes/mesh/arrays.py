"""Tensors of a state in parts: from the host onto the devices of a mesh, and back.

All parts of an array have the same size on a device, so one whose sizes do not divide is padded
with zeros at its ends. On the host, in checkpoints and in the step itself it has its own shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lingo.mesh.split import Split
from lingo.mesh.topology import Topology
from lingo.runtimes.layout import pad_part
from lingo.runtimes.mesh.engine import engine
from lingo.storage.shards import Box, Shards, box, box_shape


def sharding(mesh: Any, split: Split) -> Any:
    """Returns the `jax.sharding.NamedSharding` of a split."""
    jax = engine()
    names = [axes or None for axes in split.axes]
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*names))


class Place:
    """Where a tensor is on a mesh.

    Attributes:
        shape: of the tensor.
        padded: of its array.
        sharding: of its array.
    """

    def __init__(self, shape: Sequence[int], split: Split, topology: Topology, mesh: Any) -> None:
        """Puts nothing there yet.

        Args:
            shape: of the tensor.
            split: along which axes of the mesh each axis is cut.
            topology: the devices.
            mesh: the same as a `jax.sharding.Mesh`.
        """
        self.shape = tuple(shape)
        self.padded = split.padded_shape(shape, topology)
        self.sharding = sharding(mesh, split)

    def put(self, value: Any) -> Any:
        """Returns the array of a tensor, whose parts for its devices each process makes.

        Args:
            value: [*shape], an array, or something that is read slice by slice.
        """
        part_shape = self.sharding.shard_shape(self.padded)
        found: dict[Box, np.ndarray] = {}

        def held(index: tuple[slice, ...]) -> np.ndarray:
            cut = box(index, self.shape)
            if cut not in found:  # devices that hold the same do not read it twice
                found[cut] = pad_part(value, _slices(cut), part_shape)
            return found[cut]

        return engine().make_array_from_callback(self.padded, self.sharding, held)

    def without_padding(self, array: Any) -> Any:
        """Returns the tensor of an array, in a program."""
        return array if self.padded == self.shape else array[tuple(map(slice, self.shape))]

    def with_padding(self, tensor: Any) -> Any:
        """Returns the array of a tensor, in a program."""
        if self.padded == self.shape:
            return tensor
        missing = [(0, n - k) for n, k in zip(self.padded, self.shape, strict=True)]
        return engine().numpy.pad(tensor, missing)

    def whole(self, array: Any) -> np.ndarray | None:
        """Returns a copy of a tensor; None if this process does not have all of it."""
        parts = {box(shard.index, self.shape): shard for shard in array.addressable_shards}
        if sum(math.prod(box_shape(cut)) for cut in parts) < math.prod(self.shape):
            return None
        found = np.empty(self.shape, array.dtype)
        for cut, shard in parts.items():
            found[_slices(cut)] = _inside(shard, cut)
        return found

    def parts(self, array: Any) -> Shards:
        """Returns copies of what this process is to save: of equal parts, one among all devices."""
        cuts = [(box(s.index, self.shape), s) for s in array.addressable_shards]
        own = [(cut, shard) for cut, shard in cuts if shard.replica_id == 0]
        parts = [(_slices(cut), np.array(_inside(shard, cut))) for cut, shard in own]
        return Shards(self.shape, parts, str(array.dtype))


def _inside(shard: Any, cut: Box) -> np.ndarray:
    """Returns a view of a part without its padding."""
    return np.asarray(shard.data)[tuple(map(slice, box_shape(cut)))]


def _slices(cut: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in cut)
