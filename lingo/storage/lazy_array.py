"""A program's tensor that is not in memory: its parts are read or drawn when they are indexed.

A runtime that splits a tensor over devices or machines indexes only the parts that it will hold, so
no machine needs memory for more than these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from lingo.storage.shards import box, box_shape

Index: TypeAlias = tuple[slice, ...]
"""A slice with step 1 for each axis."""

Read: TypeAlias = Callable[[Sequence[str], Index], Iterable[np.ndarray]]
"""Takes names of layers' tensors and an index; returns that part of each, float32, in order."""


@dataclasses.dataclass(frozen=True, eq=False)
class LazyArray:
    """A float32 tensor of a program: `array[index]` is a part, `np.asarray(array)` all of it.

    Attributes:
        layer_names: names of the layers' tensors that are stacked in it, an object array with the
            shape of the stacked axes: () for a tensor that is not stacked.
        shape: of the whole tensor, stacked axes first.
        read: reads or draws parts of the layers' tensors.
    """

    layer_names: np.ndarray
    shape: tuple[int, ...]
    read: Read

    dtype = np.dtype(np.float32)

    def __getitem__(self, index: slice | Index) -> np.ndarray:
        """Returns a part.

        Args:
            index: slices with step 1 along the first axes.

        Returns:
            A float32 array with the shape of the slices.

        Raises:
            ValueError: for any other index.
            DamagedCheckpoint, UnusableSource: if it cannot be read.
        """
        given = index if isinstance(index, tuple) else (index,)
        cut = box((*given, *[slice(None)] * (len(self.shape) - len(given))), self.shape)
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
