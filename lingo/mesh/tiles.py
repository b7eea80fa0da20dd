"""Which device holds which part of a tensor, in XLA's format: a tile assignment.

    mesh = topology({"data": 2, "model": 4})
    str(tiles(Split((("model",), ("data",))), mesh))  # {devices=[4,2]<=[2,4]T(1,0)}
    str(tiles(Split((("data",),)), mesh))             # {devices=[2,4]<=[8] last_tile_dim_replicate}

A tile assignment is an array of device numbers. It has an axis for each axis of the tensor, whose
size is the number of parts. If several devices hold the same part, one more axis runs over these
devices (Xu et al. 2021, sec. 3.1: replicated, tiled, partially tiled). In most cases the array is
arange(N), reshaped and transposed: XLA's compact form, `shape<=[reshaped]T(transposed)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingo.mesh.split import Split
from lingo.mesh.topology import Topology


class Iota(NamedTuple):
    """Device numbers as arange(N), reshaped to `dims` and transposed by `permutation`."""

    dims: tuple[int, ...]
    permutation: tuple[int, ...]

    def __str__(self) -> str:
        moved = self.permutation != tuple(range(len(self.dims)))
        return f"<=[{_join_numbers(self.dims)}]" + (
            f"T({_join_numbers(self.permutation)})" if moved else ""
        )


class Tiles(NamedTuple):
    """A tile assignment, with the names of fields in XLA's `OpSharding`.

    The device numbers have as many axes as the tensor, and one more if devices along the last axis
    hold the same part.
    """

    tile_assignment: NDArray[np.int64]
    replicate_on_last_tile_dim: bool = False

    @property
    def tile_assignment_dimensions(self) -> tuple[int, ...]:
        """Number of parts along each axis."""
        return self.tile_assignment.shape

    @property
    def tile_assignment_devices(self) -> tuple[int, ...]:
        """Device numbers, row-major."""
        return tuple(self.tile_assignment.ravel().tolist())

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole tensor."""
        rank = self.tile_assignment.ndim - self.replicate_on_last_tile_dim
        return math.prod(self.tile_assignment.shape[:rank]) == 1

    def iota(self) -> Iota | None:
        """Returns the shortest compact form; None if the devices have none.

        Each axis of the transposed array, from the innermost on, steps through device numbers with
        its own stride. Sorted by stride, these are the axes before the transpose.
        """
        devices: list[int] = self.tile_assignment.ravel().tolist()
        loops: list[tuple[int, int]] = []  # (stride, length) of each axis, innermost first
        run = 1
        while run < len(devices):
            starts = devices[::run]
            stride = starts[1] - starts[0]
            length = 2
            while length < len(starts) and starts[length] - starts[length - 1] == stride:
                length += 1
            if len(devices) % (run * length):
                return None
            loops.append((stride, length))
            run *= length
        outer_first = loops[::-1]
        order = sorted(range(len(loops)), key=lambda i: -outer_first[i][0])
        dims = tuple(outer_first[i][1] for i in order) or (1,)
        iota = Iota(dims, tuple(order.index(i) for i in range(len(loops))) or (0,))
        expected = np.arange(len(devices)).reshape(dims).transpose(iota.permutation)
        return iota if expected.ravel().tolist() == devices else None

    def __str__(self) -> str:
        """Returns the assignment as XLA prints it."""
        if self.is_replicated:
            return "{replicated}"
        last = " last_tile_dim_replicate" if self.replicate_on_last_tile_dim else ""
        devices = self.iota() or _join_numbers(self.tile_assignment_devices)
        return f"{{devices=[{_join_numbers(self.tile_assignment_dimensions)}]{devices}{last}}}"


def tiles(split: Split, mesh: Topology) -> Tiles:
    """Returns the tile assignment of a split, which uses each mesh axis once at most.

    The assignment describes the array as devices store it (`Split.storage`).
    """
    split = split.storage()
    order = [mesh.axes.index(axis) for axes in split.axes for axis in axes]
    unused = [axis for axis in range(len(mesh.axes)) if axis not in order]
    devices, parts = mesh.ids().transpose([*order, *unused]), split.parts(mesh)
    copies = mesh.num_devices // math.prod(parts)
    return Tiles(devices.reshape([*parts, copies] if copies > 1 else parts), copies > 1)


def _join_numbers(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
