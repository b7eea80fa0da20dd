"""The shape of a mesh of devices: named axes, and the device at each position."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingo.config.params import ParamError, suggest

AXES = ("stage", "data", "expert", "sequence", "height", "width", "model")
"""Mesh axes, outermost first: devices that differ only along the last axis are nearest."""


MAX_MESH_DEVICES = 2**20
"""The most devices of a mesh, a hundred times the largest pod: more is a mistake."""


class Topology(NamedTuple):
    """A mesh: devices in a box with named axes."""

    sizes: tuple[tuple[str, int], ...]  # (mesh axis, size) of every axis, outermost first

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes, outermost first."""
        return tuple(axis for axis, _ in self.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes, outermost first."""
        return tuple(size for _, size in self.sizes)

    @property
    def num_devices(self) -> int:
        return math.prod(self.shape)

    def size(self, axes: Iterable[str]) -> int:
        """Returns the product of the sizes of some axes."""
        sizes = dict(self.sizes)
        return math.prod(sizes[axis] for axis in axes)

    def ids(self) -> NDArray[np.int64]:
        """Returns the device number at each position, row-major: int64 [*shape]."""
        return np.arange(self.num_devices).reshape(self.shape)

    def __str__(self) -> str:
        return ", ".join(f"{axis}={size}" for axis, size in self.sizes if size > 1) or "1 device"


def topology(sizes: Mapping[str, int]) -> Topology:
    """Returns a mesh with given sizes, {mesh axis: number of devices}; other axes have size 1."""
    for axis, size in sizes.items():
        if axis not in AXES:
            raise ParamError(
                f"{axis!r} is not an axis of a mesh: {', '.join(AXES)}.{suggest(axis, AXES)}"
            )
        if size < 1:
            raise ParamError(f"the mesh axis {axis!r} has {size} devices; it needs 1 at least")
    mesh = Topology(tuple((axis, sizes.get(axis, 1)) for axis in AXES))
    if mesh.num_devices > MAX_MESH_DEVICES:
        raise ParamError(
            f"{mesh}: {mesh.num_devices:,} devices are too many: a mesh has at most"
            f" {MAX_MESH_DEVICES:,}"
        )
    return mesh
