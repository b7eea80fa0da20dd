"""How a tensor is split over a mesh: for each of its axes the mesh axes it is cut along.

[data, -, expert+model]: the first axis in as many parts as the mesh axis `data` has devices, the
second whole, the third along two mesh axes, `expert` the outer. On mesh axes that are not named the
tensor is replicated. Parts are equal, of the size rounded up: the last ones may be short, or empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from lingo.mesh.topology import Topology

Axes = tuple[str, ...]
"""Mesh axes that one axis of a tensor is cut along, outermost first; () where it is whole."""


class Split(NamedTuple):
    """How a tensor is split.

    Attributes:
        axes: mesh axes of each axis of the tensor.
    """

    axes: tuple[Axes, ...]

    def parts(self, mesh: Topology) -> tuple[int, ...]:
        """Returns into how many parts each axis is cut."""
        return tuple(mesh.size(axes) for axes in self.axes)

    def part_shape(self, shape: Sequence[int], mesh: Topology) -> tuple[int, ...]:
        """Returns the shape of the part on one device, the largest."""
        return tuple(-(-n // k) for n, k in zip(shape, self.parts(mesh), strict=True))

    def padded_shape(self, shape: Sequence[int], mesh: Topology) -> tuple[int, ...]:
        """Returns the shape that all parts together have."""
        parts, sizes = self.parts(mesh), self.part_shape(shape, mesh)
        return tuple(n * k for n, k in zip(sizes, parts, strict=True))

    def part_size(self, shape: Sequence[int], mesh: Topology) -> int:
        """Returns how many elements are on one device, padding included."""
        return math.prod(self.part_shape(shape, mesh))

    def used_axes(self) -> set[str]:
        """Returns the mesh axes along which anything is split."""
        return {axis for axes in self.axes for axis in axes}

    def cut(self, axis: int, mesh_axes: Axes) -> Split:
        """Returns a split whose tensor axis `axis` is cut along further mesh axes, innermost."""
        cut = (*self.axes[axis], *mesh_axes)
        return Split((*self.axes[:axis], cut, *self.axes[axis + 1 :]))

    def __str__(self) -> str:
        return f"[{', '.join('+'.join(axes) or '-' for axes in self.axes)}]"


def whole(rank: int) -> Split:
    """Returns the split of a tensor that every device has all of."""
    return Split(((),) * rank)
