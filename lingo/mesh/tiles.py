"""Which device holds which part of a tensor, in XLA's format: a tile assignment.

    mesh = np.arange(8).reshape(2, 4)
    str(mesh_split(mesh, [1, 0]))   # {devices=[4,2]<=[2,4]T(1,0)}
    str(mesh_split(mesh, [-1, 0]))  # {devices=[1,2,4]<=[8] last_tile_dim_replicate}

A tile assignment is an array of device numbers. It has an axis for each axis of the tensor, whose
size is the number of parts. If several devices hold the same part, one more axis runs over these
(Xu et al. 2021, sec. 3.1: replicated, tiled, partially tiled). In most cases it is arange(N),
reshaped and transposed: XLA's compact form, `shape<=[reshaped]T(transposed)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingo.config.params import ParamError
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
    """A tile assignment: the fields of XLA's `OpSharding` of the same names.

    Attributes:
        tile_assignment: int64 device numbers; as many axes as the tensor, and one more if
            `replicate_on_last_tile_dim`.
        replicate_on_last_tile_dim: whether devices along the last axis hold the same part.
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
        a stride of its own. Sorted by stride, these are the axes before the transpose.
        """
        devices: list[int] = self.tile_assignment.ravel().tolist()
        loops: list[tuple[int, int]] = []  # (stride, length) of each axis, innermost first
        run = 1
        while run < len(devices):
            starts = devices[::run]
            stride = starts[1] - starts[0]
            straight = (start == starts[0] + i * stride for i, start in enumerate(starts))
            length = next((i for i, ok in enumerate(straight) if not ok), len(starts))
            if len(devices) % (run * length):
                return None
            loops.append((stride, length))
            run *= length
        outer_first = loops[::-1]
        order = sorted(range(len(loops)), key=lambda i: -outer_first[i][0])
        dims = tuple(outer_first[i][1] for i in order) or (1,)
        found = Iota(dims, tuple(order.index(i) for i in range(len(loops))) or (0,))
        expected = np.arange(len(devices)).reshape(dims).transpose(found.permutation)
        return found if expected.ravel().tolist() == devices else None

    def __str__(self) -> str:
        """Returns the assignment as XLA prints it."""
        if self.is_replicated:
            return "{replicated}"
        last = " last_tile_dim_replicate" if self.replicate_on_last_tile_dim else ""
        devices = self.iota() or _join_numbers(self.tile_assignment_devices)
        return f"{{devices=[{_join_numbers(self.tile_assignment_dimensions)}]{devices}{last}}}"


def mesh_split(device_mesh: NDArray[np.int64], dims_mapping: Sequence[int]) -> Tiles:
    """Returns the tile assignment of a tensor whose axes are split along axes of a mesh.

    It equals the function of this name in Lingvo and TensorFlow (Xu et al. 2021, sec. 3.1).

    Args:
        device_mesh: int64 array of any shape, the device numbers of the mesh.
        dims_mapping: for each axis of the tensor, the index of the mesh axis that splits it, or -1.

    Raises:
        ParamError: if a mesh axis does not exist, or splits two axes of the tensor.
    """
    for axis in dims_mapping:
        if not -1 <= axis < device_mesh.ndim:
            raise ParamError(
                f"dims_mapping={list(dims_mapping)}: {axis} is neither -1 nor one of the"
                f" {device_mesh.ndim} axes of the mesh {list(device_mesh.shape)}"
            )
    return _assign_devices(device_mesh, [[axis] if axis >= 0 else [] for axis in dims_mapping])


def tiles(split: Split, mesh: Topology) -> Tiles:
    """Returns the tile assignment of a split, which may use several mesh axes for one axis."""
    used = [axis for axis, size in mesh.sizes if size > 1]
    ids = mesh.ids().reshape([mesh.size([axis]) for axis in used])
    return _assign_devices(ids, [[used.index(axis) for axis in axes] for axes in split.axes])


def _assign_devices(device_mesh: NDArray[np.int64], cuts: Sequence[Sequence[int]]) -> Tiles:
    """Returns device numbers with one axis for each entry of `cuts`, and the others as the last."""
    order = [axis for axes in cuts for axis in axes]
    if len(set(order)) < len(order):
        raise ParamError(f"{[*map(list, cuts)]}: a mesh axis would cut two axes of the tensor")
    others = [axis for axis in range(device_mesh.ndim) if axis not in order]
    shape = [math.prod(device_mesh.shape[axis] for axis in axes) for axes in cuts]
    if others:
        shape.append(math.prod(device_mesh.shape[axis] for axis in others))
    return Tiles(device_mesh.transpose([*order, *others]).reshape(shape), bool(others))


def _join_numbers(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
