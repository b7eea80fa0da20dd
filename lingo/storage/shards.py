"""Sharded and lazily read tensors.

If many devices compute, a process may have only shards of a tensor. The process saves a `Shards`,
which has boxes of the tensor and their elements. All processes together save every element once. A
`LazyArray` is not in memory: a runtime that splits a tensor over devices or machines indexes only
the shards that it will hold.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

Box: TypeAlias = tuple[tuple[int, int], ...]
"""(start, stop) along each axis."""

Index: TypeAlias = tuple[slice, ...]
"""A slice with step 1 for each axis."""

Read: TypeAlias = Callable[[Sequence[str], Index], Iterable[np.ndarray]]
"""Takes names of layers' tensors and an index; yields each tensor's slice in order, float32."""


def box(index: Sequence[slice], shape: Sequence[int]) -> Box:
    """Returns the box that slices with step 1, one for each axis, select from a tensor.

    Raises ValueError for anything else.
    """
    slices = [part for part in index if isinstance(part, slice) and part.step in (None, 1)]
    if not len(shape) == len(index) == len(slices):
        raise ValueError(f"{index} is not a slice with step 1 for each axis of {list(shape)}")
    ranges = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
    return tuple((start, max(start, stop)) for start, stop in ranges)


def whole_box(shape: Sequence[int]) -> Box:
    """Returns the box of the whole tensor."""
    return tuple((0, size) for size in shape)


def box_shape(cut: Box) -> tuple[int, ...]:
    """Returns the shape of a box."""
    return tuple(stop - start for start, stop in cut)


@dataclasses.dataclass(frozen=True)
class Shards:
    """The shards of a tensor that a process has to save: no shard, some, or all."""

    shape: tuple[int, ...]  # shape of the whole tensor
    # (index, elements) of each; elements are an array of type `dtype` with the shape of the slices.
    shards: Sequence[tuple[Index, np.ndarray]]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for index, array in self.shards:
            if box_shape(box(index, self.shape)) != array.shape or array.dtype.name != self.dtype:
                raise ValueError(
                    f"{array.dtype}{list(array.shape)} is not the shard {index} of"
                    f" {self.dtype}{list(self.shape)}"
                )

    def boxes(self) -> list[tuple[Box, np.ndarray]]:
        """Returns (box, elements) of each non-empty shard; elements have the box's shape."""
        return [(box(index, self.shape), array) for index, array in self.shards if array.size]

    def unstack(self, num_stacked: int) -> Iterator[Shards]:
        """Yields a Shards, of shape `shape[num_stacked:]`, for each tensor stacked in this one.

        Tensors are stacked along the `num_stacked` leading axes, and come in row-major order.
        """
        lead, shape = self.shape[:num_stacked], self.shape[num_stacked:]
        shards: dict[tuple[int, ...], list[tuple[Index, np.ndarray]]] = {}
        for cut, array in self.boxes():
            index = tuple(slice(start, stop) for start, stop in cut[num_stacked:])
            stacked = [range(start, stop) for start, stop in cut[:num_stacked]]
            for place in itertools.product(*stacked):
                own = tuple(i - start for i, (start, _) in zip(place, cut, strict=False))
                shards.setdefault(place, []).append((index, array[(*own, ...)]))
        for place in np.ndindex(*lead):
            yield Shards(shape, shards.get(place, ()), self.dtype)


def find_flaw(shape: Sequence[int], boxes: Collection[Box]) -> str:
    """Returns a message about an element that is not in exactly one box, or "" without one."""
    if math.prod(shape) == 0:
        return ""
    cuts = [
        sorted({0, size, *(end for b in boxes for end in b[i])}) for i, size in enumerate(shape)
    ]
    places = [{end: number for number, end in enumerate(ends)} for ends in cuts]
    count = np.zeros([len(ends) - 1 for ends in cuts], np.int32)  # boxes that cover each cell
    for cut in boxes:
        cells = (slice(at[start], at[stop]) for at, (start, stop) in zip(places, cut, strict=True))
        count[tuple(cells)] += 1
    if (count == 1).all():
        return ""
    cell = np.argwhere(count != 1)[0]
    element = [ends[number] for ends, number in zip(cuts, cell, strict=True)]
    return f"element {element} of {list(shape)} is in {count[tuple(cell)]} shards, not in one"


# ---- not in memory -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class LazyArray:
    """A float32 tensor on demand: `array[index]` reads a slice, `np.asarray(array)` all of it."""

    # Names of the layers' tensors that are stacked here, an object array with the shape of the
    # stacked axes: () for a tensor that is not stacked.
    layer_names: np.ndarray
    shape: tuple[int, ...]  # shape of the whole tensor, stacked axes first
    read: Read  # reads or draws slices of the layers' tensors

    dtype = np.dtype(np.float32)

    def __getitem__(self, index: slice | Index) -> np.ndarray:
        """Returns a float32 array; the index is a slice with step 1 for each of the first axes.

        Raises ValueError for any other index, DamagedCheckpoint or UnusableSource if the tensor
        cannot be read.
        """
        indices = index if isinstance(index, tuple) else (index,)
        cut = box((*indices, *[slice(None)] * (len(self.shape) - len(indices))), self.shape)
        slices = tuple(slice(*along) for along in cut)
        num_stacked = self.layer_names.ndim
        names = self.layer_names[(*slices[:num_stacked], ...)].ravel().tolist()
        layers = np.empty((len(names), *box_shape(cut[num_stacked:])), np.float32)
        if layers.size:
            for i, layer in enumerate(self.read(names, slices[num_stacked:])):
                layers[i] = layer
        return layers.reshape(box_shape(cut))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # every read makes a new array
        return self[()].astype(dtype or self.dtype, copy=False)
