"""Moves the state and batches, split into parts, from the host to a mesh's devices and back.

All parts of an array have the same size, so an array whose sizes do not divide is padded with zeros
at the end of its axes. In host memory, in checkpoints and in the step a tensor is not padded.
Only an array in rows (`lingo/mesh/weight_rows.py`) stays in the step as it is on the devices. A
batch is padded with zeros, which are examples of weight 0; a program whose results they would
change removes them.

Axes: K steps, B examples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lingo.mesh.split import Axes, Split
from lingo.mesh.topology import Topology
from lingo.mesh.weight_rows import read_rows, split_rows, weight_rows
from lingo.runtimes.layout import pad_part
from lingo.runtimes.mesh.engine import engine
from lingo.storage.shards import Box, Index, Shards, box, box_shape


def sharding(mesh: Any, split: Split) -> Any:
    """Returns the `jax.sharding.NamedSharding` of a split."""
    jax = engine()
    names = [axes or None for axes in split.storage().axes]
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*names))


class ArrayLayout:
    """How a tensor [*shape] is stored on a mesh: as an array [*padded] with a `sharding`."""

    def __init__(self, shape: Sequence[int], split: Split, topology: Topology, mesh: Any) -> None:
        """`mesh` is the `jax.sharding.Mesh` of `topology`."""
        self.shape = tuple(shape)
        self.padded = split.padded_shape(shape, topology)
        self.sharding = sharding(mesh, split)
        self._rows = weight_rows(shape, split, topology)

    def put(self, value: Any) -> Any:
        """Returns the JAX array [*padded] of a tensor [*shape] of any dtype.

        The tensor may be read slice by slice: a process reads only the parts of its own devices.
        """
        part_shape = self.sharding.shard_shape(self.padded)
        parts: dict[Box, np.ndarray] = {}

        def part(index: tuple[slice, ...]) -> np.ndarray:
            cut = box(index, self.padded)
            if cut not in parts:  # devices with equal parts read them once
                if self._rows is not None:
                    parts[cut] = read_rows(value, _slices(cut), self._rows)
                else:
                    parts[cut] = pad_part(value, _slices(cut), part_shape)
            return parts[cut]

        return engine().make_array_from_callback(self.padded, self.sharding, part)

    def without_padding(self, array: Any) -> Any:
        """Returns the tensor [*shape] of an array [*padded]; for use inside a program."""
        is_same = self._rows is not None or self.padded == self.shape
        return array if is_same else array[tuple(map(slice, self.shape))]

    def with_padding(self, tensor: Any) -> Any:
        """Returns the array [*padded] of a tensor [*shape]; for use inside a program."""
        if self._rows is not None or self.padded == self.shape:
            return tensor
        missing = [(0, n - k) for n, k in zip(self.padded, self.shape, strict=True)]
        return engine().numpy.pad(tensor, missing)

    def whole(self, array: Any) -> np.ndarray | None:
        """Returns a copy [*shape] of an array [*padded]; None if parts are in other processes."""
        parts = {box(s.index, self.padded): s for s in array.addressable_shards}
        pieces = [piece for shard in parts.values() for piece in self._pieces(shard)]
        if sum(piece.size for _, piece in pieces) < math.prod(self.shape):
            return None
        value = np.empty(self.shape, array.dtype)
        for index, piece in pieces:
            value[index] = piece
        return value

    def parts(self, array: Any) -> Shards:
        """Returns copies of the parts of an array [*padded] that this process saves, unpadded.

        If several devices hold the same part, one of them saves it.
        """
        own = [shard for shard in array.addressable_shards if shard.replica_id == 0]
        pieces = [piece for shard in own for piece in self._pieces(shard)]
        parts = [(index, np.array(piece)) for index, piece in pieces]
        return Shards(self.shape, parts, str(array.dtype))

    def _pieces(self, shard: Any) -> Iterator[tuple[Index, np.ndarray]]:
        """Yields, for each box of the tensor in a shard, its index and a view of its elements."""
        data = np.asarray(shard.data)
        if self._rows is not None:
            index = _slices(box(shard.index, self.padded))
            yield from split_rows(data, index, self._rows, self.shape)
            return
        cut = box(shard.index, self.shape)
        yield _slices(cut), data[tuple(map(slice, box_shape(cut)))]


class Rows:
    """The equal parts of a batch, and the range of parts that each process has.

    A batch is split along the mesh axes of the logical axis `batch`. Each process makes the
    examples that its devices hold.
    """

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
        """Returns the slice of a batch of `size` examples that a process makes."""
        span, part = self._spans[process], self.padded_size(size) // self._num_parts
        return slice(min(span.start * part, size), min(span.stop * part, size))

    def size(self, counts: Sequence[int]) -> int:
        """Returns the size of a batch, from the number of examples that each process has made.

        Raises ValueError if no batch would be shared with these numbers of examples.
        """
        for size in range(max(counts), sum(counts) + 1):
            spans = [self.example_slice(process, size) for process in range(len(counts))]
            if [span.stop - span.start for span in spans] == list(counts):
                return size
        raise ValueError(f"processes made {list(counts)} examples: they share no batch in this way")

    def sharding(self, *, axis: int) -> Any:
        """Returns the `NamedSharding` of arrays whose axis `axis` is B."""
        return sharding(self._mesh, Split((*[()] * axis, self._axes)))

    def put(self, batch: Mapping[str, np.ndarray], *, size: int, axis: int = 0) -> dict[str, Any]:
        """Returns the padded, sharded arrays of a batch of `size` examples over all processes.

        `batch` has this process's examples: name -> [B, ...], or [K, B, ...] if `axis` is 1.
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


def _slices(cut: Box) -> Index:
    return tuple(slice(start, stop) for start, stop in cut)


def _pad_rows(array: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Returns an array padded with zeros at the end of an axis, up to a size."""
    missing = [(0, size - n if i == axis else 0) for i, n in enumerate(array.shape)]
    return np.pad(array, missing) if any(n for _, n in missing) else array
