"""How a tensor is split into parts of equal size, one for each device of a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lingo.mesh.split import Split
from lingo.mesh.tiles import tiles
from lingo.mesh.topology import Topology
from lingo.runtimes.layout import pad_part


class Cut:
    """A tensor's parts, in the order of its tile assignment: row-major, copies next to each other.

    Attributes:
        shape: of the whole tensor.
        padded: shape of all parts together; elements beyond `shape` are zero.
        part_shape: shape of each part.
        tiles: which device has which part.
    """

    def __init__(self, shape: Sequence[int], split: Split, mesh: Topology) -> None:
        """Cuts nothing yet.

        Args:
            shape: of the whole tensor.
            split: the mesh axes along which each axis is split.
            mesh: the devices.
        """
        self.shape, self.padded = tuple(shape), split.padded_shape(shape, mesh)
        self.part_shape, self.tiles = split.part_shape(shape, mesh), tiles(split, mesh)
        rank = len(self.shape)
        self._places = [p[:rank] for p in np.ndindex(self.tiles.tile_assignment_dimensions)]

    @property
    def devices(self) -> tuple[int, ...]:
        """The number of the device that has each part."""
        return self.tiles.tile_assignment_devices

    def parts(self, value: Any) -> list[np.ndarray]:
        """Returns the parts of a tensor; copies of a part are the same object.

        Args:
            value: [*shape], any dtype; an array, or an object that is read slice by slice.

        Returns:
            [*part_shape] for each device, in the order of `devices`.
        """
        different = dict.fromkeys(self._places)
        found = {place: pad_part(value, self._index(place), self.part_shape) for place in different}
        return [found[place] for place in self._places]

    def whole(self, parts: Sequence[Any]) -> np.ndarray:
        """Returns the tensor of its parts; if a part has copies, it reads the first.

        Args:
            parts: TensorFlow tensors or variables, [*part_shape] each, in the order of `devices`.

        Returns:
            [*shape], the same dtype.
        """
        first = dict(zip(reversed(self._places), reversed(parts), strict=True))
        found = np.empty(self.padded, parts[0].dtype.as_numpy_dtype)
        for place, own in first.items():
            found[self._index(place)] = own.numpy()
        return found[tuple(map(slice, self.shape))]

    def _index(self, place: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(slice(i * n, (i + 1) * n) for i, n in zip(place, self.part_shape, strict=True))
