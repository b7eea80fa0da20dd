"""Rows of a batch on a mesh: which of them a process feeds, and what fills up the last part.

A batch is cut along the mesh axes of the logical axis `batch`, in parts of the same size: rows of
zeros, and so of weight 0, follow the last. A program in which these would count cuts them off. A
process makes the rows that its devices hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lingo.mesh.split import Axes, Split
from lingo.runtimes.mesh.arrays import sharding
from lingo.runtimes.mesh.engine import engine


class Rows:
    """The parts of a batch, in order, and the span of them that each process has."""

    def __init__(self, mesh: Any, axes: Axes) -> None:
        """Makes no arrays yet.

        Args:
            mesh: `jax.sharding.Mesh`.
            axes: of the mesh, along which a batch is cut.
        """
        self._mesh, self._axes = mesh, axes
        self._num_parts = math.prod(mesh.shape[axis] for axis in axes)
        self._spans: dict[int, range] = {}
        parts = sharding(mesh, Split((axes,))).devices_indices_map((self._num_parts,))
        for device, (index,) in parts.items():
            start, stop, _ = index.indices(self._num_parts)
            old = self._spans.get(device.process_index, range(start, stop))
            span = range(min(start, old.start), max(stop, old.stop))
            self._spans[device.process_index] = span

    def padded_size(self, size: int) -> int:
        """Returns how many rows all parts of a batch have together."""
        return -(-size // self._num_parts) * self._num_parts

    def of(self, process: int, size: int) -> slice:
        """Returns which of the rows of a batch a process makes."""
        span, part = self._spans[process], self.padded_size(size) // self._num_parts
        return slice(min(span.start * part, size), min(span.stop * part, size))

    def size(self, counts: Sequence[int]) -> int:
        """Returns how many rows a batch has.

        Args:
            counts: how many of them each process has made.
        """
        for size in range(max(counts), sum(counts) + 1):
            spans = [self.of(process, size) for process in range(len(counts))]
            if [span.stop - span.start for span in spans] == list(counts):
                return size
        raise ValueError(f"processes made {list(counts)} rows, which are no batch's")

    def sharding(self, *, axis: int) -> Any:
        """Returns the sharding of arrays that have rows along an axis."""
        return sharding(self._mesh, Split((*[()] * axis, self._axes)))

    def put(self, batch: Mapping[str, np.ndarray], *, size: int, axis: int = 0) -> dict[str, Any]:
        """Returns the arrays of a batch, filled up.

        Args:
            batch: the rows that this process makes.
            size: how many there are in all.
            axis: along which they are.
        """
        padded, found = self.padded_size(size), {}
        span = self._spans[engine().process_index()]
        start, stop = (i * padded // self._num_parts for i in (span.start, span.stop))
        for name, array in batch.items():
            own = _pad_rows(array, stop - start, axis)

            def part(index: tuple[slice, ...], own: np.ndarray = own) -> np.ndarray:
                rows = range(padded)[index[axis]]
                return own[(*index[:axis], slice(rows.start - start, rows.stop - start))]

            shape = (*array.shape[:axis], padded, *array.shape[axis + 1 :])
            found[name] = engine().make_array_from_callback(shape, self.sharding(axis=axis), part)
        return found


def remove_padding(batch: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Returns the rows of a batch that are its own, in a program.

    Args:
        batch: arrays that `put` has made, with rows along their first axis.
        size: how many rows the batch has.
    """
    return {k: array if len(array) == size else array[:size] for k, array in batch.items()}


def _pad_rows(array: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Returns an array with rows of zeros added along an axis, up to a size."""
    missing = [(0, size - n if i == axis else 0) for i, n in enumerate(array.shape)]
    return np.pad(array, missing) if any(n for _, n in missing) else array
