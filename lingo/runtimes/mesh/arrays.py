"""Moves tensors of a state from the host onto the devices of a mesh, in parts, and back.

All parts of an array have the same size, so an array whose sizes do not divide is padded with zeros
at the end of its axes. On the host, in checkpoints and in the step itself a tensor is not padded.
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
    """Where a tensor is on a mesh: in a padded, sharded JAX array.

    Attributes:
        shape: of the tensor.
        padded: shape of its array.
        sharding: `NamedSharding` of its array.
    """

    def __init__(self, shape: Sequence[int], split: Split, topology: Topology, mesh: Any) -> None:
        """Puts nothing there yet.

        Args:
            shape: of the tensor.
            split: the mesh axes along which each axis is split.
            topology: the devices.
            mesh: the same devices as a `jax.sharding.Mesh`.
        """
        self.shape = tuple(shape)
        self.padded = split.padded_shape(shape, topology)
        self.sharding = sharding(mesh, split)

    def put(self, value: Any) -> Any:
        """Returns the array of a tensor; each process reads only the parts of its own devices.

        Args:
            value: [*shape], any dtype; an array, or an object that is read slice by slice.

        Returns:
            JAX array [*padded], the same dtype.
        """
        part_shape = self.sharding.shard_shape(self.padded)
        found: dict[Box, np.ndarray] = {}

        def held(index: tuple[slice, ...]) -> np.ndarray:
            cut = box(index, self.shape)
            if cut not in found:  # devices with equal parts read them once
                found[cut] = pad_part(value, _slices(cut), part_shape)
            return found[cut]

        return engine().make_array_from_callback(self.padded, self.sharding, held)

    def without_padding(self, array: Any) -> Any:
        """Returns the tensor [*shape] of an array [*padded]; for use inside a program."""
        return array if self.padded == self.shape else array[tuple(map(slice, self.shape))]

    def with_padding(self, tensor: Any) -> Any:
        """Returns the array [*padded] of a tensor [*shape]; for use inside a program."""
        if self.padded == self.shape:
            return tensor
        missing = [(0, n - k) for n, k in zip(self.padded, self.shape, strict=True)]
        return engine().numpy.pad(tensor, missing)

    def whole(self, array: Any) -> np.ndarray | None:
        """Returns a copy of a tensor on the host; None if this process does not have all of it.

        Args:
            array: [*padded].

        Returns:
            [*shape], the same dtype.
        """
        parts = {box(shard.index, self.shape): shard for shard in array.addressable_shards}
        if sum(math.prod(box_shape(cut)) for cut in parts) < math.prod(self.shape):
            return None
        found = np.empty(self.shape, array.dtype)
        for cut, shard in parts.items():
            found[_slices(cut)] = _unpadded_data(shard, cut)
        return found

    def parts(self, array: Any) -> Shards:
        """Returns copies of the parts that this process saves: each part once among all devices.

        Args:
            array: [*padded].

        Returns:
            Shards of a tensor [*shape], without padding.
        """
        cuts = [(box(s.index, self.shape), s) for s in array.addressable_shards]
        own = [(cut, shard) for cut, shard in cuts if shard.replica_id == 0]
        parts = [(_slices(cut), np.array(_unpadded_data(shard, cut))) for cut, shard in own]
        return Shards(self.shape, parts, str(array.dtype))


def _unpadded_data(shard: Any, cut: Box) -> np.ndarray:
    """Returns a view of a shard's elements without padding."""
    return np.asarray(shard.data)[tuple(map(slice, box_shape(cut)))]


def _slices(cut: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in cut)
