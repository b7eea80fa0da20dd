"""A program's tensor that is nowhere yet: what is asked for of it is read or drawn then.

A runtime that splits a tensor over devices, or over machines, asks for the parts that it will hold;
so no machine needs memory for more than these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from lingo.layers import path
from lingo.storage.shards import box, box_shape

Index: TypeAlias = tuple[slice, ...]
"""A slice with step 1 for each axis."""

Read: TypeAlias = Callable[[Sequence[str], Index], Iterable[np.ndarray]]
"""Returns the same part of some layers' tensors, by name, one after the other."""


@dataclasses.dataclass(frozen=True, eq=False)
class LazyArray:
    """A float32 tensor of a program. `array[index]` is a part of it, `np.asarray` all.

    Attributes:
        path: program path; names of the layers' tensors that are stacked in it follow from it.
        shape: of all of it, stacked axes first.
        read: where parts come from.
    """

    path: str
    shape: tuple[int, ...]
    read: Read

    dtype = np.dtype(np.float32)

    def __getitem__(self, index: slice | Index) -> np.ndarray:
        """Returns a part.

        Args:
            index: slices with step 1 along the first axes.

        Raises:
            ValueError: for any other index.
            DamagedCheckpoint, UnusableSource: if it cannot be read.
        """
        given = index if isinstance(index, tuple) else (index,)
        cut = box((*given, *[slice(None)] * (len(self.shape) - len(given))), self.shape)
        slices = tuple(slice(*along) for along in cut)
        stack = path.stack_shape(self.path)
        names = np.array(path.names(self.path), object).reshape(stack)
        chosen = names[(*slices[: len(stack)], ...)].ravel().tolist()
        found = np.empty((len(chosen), *box_shape(cut[len(stack) :])), np.float32)
        if found.size:
            for i, layer in enumerate(self.read(chosen, slices[len(stack) :])):
                found[i] = layer
        return found.reshape(box_shape(cut))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # there is nothing that could be shared
        return self[()].astype(dtype or self.dtype, copy=False)
