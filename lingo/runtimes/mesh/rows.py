"""Examples of a batch on a mesh: which of them a process feeds, and how the batch is padded.

A batch is split along the mesh axes of the logical axis `batch` into parts of equal size: padding
examples of zeros, and so of weight 0, follow the last example. A program whose results these would
change removes them. Each process makes the examples that its devices hold.

Axes: K steps, B examples.
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
    """The equal parts of a batch, and the range of parts that each process has."""

    def __init__(self, mesh: Any, axes: Axes) -> None:
        """Takes a `jax.sharding.Mesh`, and its axes along which a batch is split."""
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
        """Returns the size of a batch of `size` examples after padding."""
        return -(-size // self._num_parts) * self._num_parts

    def example_slice(self, process: int, size: int) -> slice:
        """Returns which examples of a batch of `size` a process makes."""
        span, part = self._spans[process], self.padded_size(size) // self._num_parts
        return slice(min(span.start * part, size), min(span.stop * part, size))

    def size(self, counts: Sequence[int]) -> int:
        """Returns the size of a batch, from how many examples each process has made.

        Raises ValueError if no batch is shared in this way.
        """
        for size in range(max(counts), sum(counts) + 1):
            spans = [self.example_slice(process, size) for process in range(len(counts))]
            if [span.stop - span.start for span in spans] == list(counts):
                return size
        raise ValueError(f"processes made {list(counts)} examples: no batch is shared so")

    def sharding(self, *, axis: int) -> Any:
        """Returns the `NamedSharding` of arrays whose axis `axis` is B."""
        return sharding(self._mesh, Split((*[()] * axis, self._axes)))

    def put(self, batch: Mapping[str, np.ndarray], *, size: int, axis: int = 0) -> dict[str, Any]:
        """Returns the padded, sharded arrays of a batch of `size` examples over all processes.

        `batch` has those of this process: name -> [B, ...], or [K, B, ...] if `axis` is 1.
        """
        padded, arrays = self.padded_size(size), {}
        span = self._spans[engine().process_index()]
        start, stop = (i * padded // self._num_parts for i in (span.start, span.stop))
        for name, array in batch.items():
            own = _pad_rows(array, stop - start, axis)

            def part(index: tuple[slice, ...], own: np.ndarray = own) -> np.ndarray:
                rows = range(padded)[index[axis]]
                return own[(*index[:axis], slice(rows.start - start, rows.stop - start))]

            shape = (*array.shape[:axis], padded, *array.shape[axis + 1 :])
            arrays[name] = engine().make_array_from_callback(shape, self.sharding(axis=axis), part)
        return arrays


def remove_padding(batch: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Returns a [padded B, ...] batch without padding, [size, ...]; for use inside a program."""
    return {k: array if len(array) == size else array[:size] for k, array in batch.items()}


def _pad_rows(array: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Returns an array padded with zeros at the end of an axis, up to a size."""
    missing = [(0, size - n if i == axis else 0) for i, n in enumerate(array.shape)]
    return np.pad(array, missing) if any(n for _, n in missing) else array
