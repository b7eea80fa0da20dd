"""How a tensor is split over a mesh: the mesh axes along which each of its axes is split.

[data, -, expert+model]: the first axis is split along the mesh axis `data`, into as many parts as
that has devices; the second is whole; the third is split along two mesh axes, `expert` the outer.
The tensor is replicated along all other mesh axes. Parts have equal sizes, rounded up: the last
ones are padded, or all padding.

[-, model]/data: the elements of each part, in one row with zeros at its end, are split once more
along `data`. Devices keep chunks of an array [*stacked axes, parts, row] (see `weight_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from lingo.mesh.topology import Topology

Axes = tuple[str, ...]
"""Mesh axes along which one axis of a tensor is split, outermost first; () if it is whole."""


class Split(NamedTuple):
    """How a tensor is split."""

    axes: tuple[Axes, ...]  # for each axis of the tensor, the mesh axes along which it is split
    row_axes: Axes = ()  # mesh axes along which the row of each part is split; (): it has no row
    num_stacked: int = 0  # if they have: number of leading axes that are not in the rows

    def parts(self, mesh: Topology) -> tuple[int, ...]:
        """Returns the number of parts of each axis."""
        return tuple(mesh.size(axes) for axes in self.axes)

    def storage(self) -> Split:
        """Returns the split of the array of which devices keep parts: without rows, this one."""
        if not self.row_axes:
            return self
        stacked, own = self.axes[: self.num_stacked], self.axes[self.num_stacked :]
        return Split((*stacked, tuple(axis for axes in own for axis in axes), self.row_axes))

    def part_shape(self, shape: Sequence[int], mesh: Topology) -> tuple[int, ...]:
        """Returns the shape of the part on one device, padding included."""
        sizes = tuple(-(-n // k) for n, k in zip(shape, self.parts(mesh), strict=True))
        if not self.row_axes:
            return sizes
        row = math.prod(sizes[self.num_stacked :])
        return (*sizes[: self.num_stacked], 1, -(-row // mesh.size(self.row_axes)))

    def padded_shape(self, shape: Sequence[int], mesh: Topology) -> tuple[int, ...]:
        """Returns the shape of all parts together, as devices keep them, padding included."""
        parts, sizes = self.storage().parts(mesh), self.part_shape(shape, mesh)
        return tuple(n * k for n, k in zip(sizes, parts, strict=True))

    def part_size(self, shape: Sequence[int], mesh: Topology) -> int:
        """Returns the number of elements on one device, padding included."""
        return math.prod(self.part_shape(shape, mesh))

    def used_axes(self) -> set[str]:
        """Returns the mesh axes along which any axis, or a row, is split."""
        return {axis for axes in (*self.axes, self.row_axes) for axis in axes}

    def cut(self, axis: int, mesh_axes: Axes) -> Split:
        """Returns this split with tensor axis `axis` split along further mesh axes, innermost."""
        cut = (*self.axes[axis], *mesh_axes)
        return Split((*self.axes[:axis], cut, *self.axes[axis + 1 :]))

    def __str__(self) -> str:
        rows = f"/{'+'.join(self.row_axes)}" if self.row_axes else ""
        return f"[{', '.join('+'.join(axes) or '-' for axes in self.axes)}]{rows}"


def whole(rank: int) -> Split:
    """Returns the split of a tensor of which every device holds the whole."""
    return Split(((),) * rank)
