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
        self.shape, self.padded = tuple(shape), split.padded_shape(shape, mesh)
        self.part_shape, self.tiles = split.part_shape(shape, mesh), tiles(split, mesh)
        rank = len(self.shape)
        self._tiles = [tile[:rank] for tile in np.ndindex(self.tiles.tile_assignment_dimensions)]

    @property
    def devices(self) -> tuple[int, ...]:
        """The number of the device that has each part."""
        return self.tiles.tile_assignment_devices

    def parts(self, value: Any) -> list[np.ndarray]:
        """Returns the part [*part_shape] of each of `devices`; copies are the same object.

        Args:
            value: [*shape], any dtype; an array, or an object that is read slice by slice.
        """
        different = dict.fromkeys(self._tiles)
        parts = {tile: pad_part(value, self._index(tile), self.part_shape) for tile in different}
        return [parts[tile] for tile in self._tiles]

    def whole(self, parts: Sequence[Any]) -> np.ndarray:
        """Returns the tensor [*shape] of its parts; if a part has copies, it reads the first.

        Args:
            parts: TensorFlow tensors or variables, [*part_shape] each, in the order of `devices`.
        """
        first = dict(zip(reversed(self._tiles), reversed(parts), strict=True))
        value = np.empty(self.padded, parts[0].dtype.as_numpy_dtype)
        for tile, part in first.items():
            value[self._index(tile)] = part.numpy()
        return value[tuple(map(slice, self.shape))]

    def _index(self, tile: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(slice(i * n, (i + 1) * n) for i, n in zip(tile, self.part_shape, strict=True))
