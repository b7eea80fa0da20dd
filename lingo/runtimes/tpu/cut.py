"""How a tensor is cut into parts of equal size, one for each device of a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lingo.mesh.split import Split
from lingo.mesh.tiles import tiles
from lingo.mesh.topology import Topology
from lingo.runtimes.layout import pad_part


class Cut:
    """A tensor's parts, in the order of its tile assignment: row-major, copies beside each other.

    Attributes:
        shape: of the whole.
        padded: shape that all parts have together; what is beyond `shape` is zero.
        part_shape: of each part.
        tiles: which device has which part.
    """

    def __init__(self, shape: Sequence[int], split: Split, mesh: Topology) -> None:
        """Cuts nothing yet.

        Args:
            shape: of the whole.
            split: along which axes of the mesh each axis is cut.
            mesh: the devices.
        """
        self.shape, self.padded = tuple(shape), split.padded_shape(shape, mesh)
        self.part_shape, self.tiles = split.part_shape(shape, mesh), tiles(split, mesh)
        rank = len(self.shape)
        self._places = [p[:rank] for p in np.ndindex(self.tiles.tile_assignment_dimensions)]

    @property
    def devices(self) -> tuple[int, ...]:
        """Number of the device that has each part."""
        return self.tiles.tile_assignment_devices

    def parts(self, value: Any) -> list[np.ndarray]:
        """Returns the parts of a tensor; copies are the same object.

        Args:
            value: [*shape], an array, or something that is read slice by slice.
        """
        different = dict.fromkeys(self._places)
        found = {place: pad_part(value, self._index(place), self.part_shape) for place in different}
        return [found[place] for place in self._places]

    def whole(self, parts: Sequence[Any]) -> np.ndarray:
        """Returns the tensor of some parts; of copies it asks the first for its elements.

        Args:
            parts: whatever has `numpy()`.
        """
        first = dict(zip(reversed(self._places), reversed(parts), strict=True))
        found = np.empty(self.padded, parts[0].dtype.as_numpy_dtype)
        for place, own in first.items():
            found[self._index(place)] = own.numpy()
        return found[tuple(map(slice, self.shape))]

    def _index(self, place: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(slice(i * n, (i + 1) * n) for i, n in zip(place, self.part_shape, strict=True))
