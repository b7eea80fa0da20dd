"""Weights flattened into rows of equal chunks; each device updates one chunk per row.

N devices update a part of a weight together, but perhaps no axis of the part divides into N equal
chunks. The part's elements in row-major order, with zeros after the last element, always do (Xu et
al. 2020, arXiv 2004.13336): of n elements, each device has ceil(n / N).

    [7, 5], N = 4                     one row of 35 elements and a zero; chunks of 9
    [7, 5], 5 in 2 parts, N = 4       two rows of 7 * 3 = 21 elements and 3 zeros; chunks of 6

In the last line, the second part has 7 * 2 elements: uneven parts have zeros between elements, too.
Axes: P parts, each a row; C elements of a row with its zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.mesh.split import Split
from lingo.mesh.topology import Topology

Index = tuple[slice, ...]
"""A slice with step 1 for each axis."""

Ranges = tuple[tuple[int, int], ...]
"""(start, stop) along each axis."""


class RowBox(NamedTuple):
    """A box of a weight whose elements are next to each other in a row."""

    start: int  # column of its first element in the row
    shape: tuple[int, ...]  # of the box, with zeros of an uneven part
    where: Index  # index of the box's elements in the weight, without these zeros

    @property
    def content(self) -> Index:
        """The index of the weight's elements in the box."""
        return tuple(slice(0, along.stop - along.start) for along in self.where)


class WeightRows(NamedTuple):
    """How the elements of one weight are arranged in rows, as an array [P, C]."""

    shape: tuple[int, ...]  # of the weight, without stacked axes
    parts: tuple[int, ...]  # number of parts of each axis; P is the product
    num_chunks: int  # of each row

    @property
    def part_shape(self) -> tuple[int, ...]:
        """Shape of a part, with the zeros of an uneven part."""
        return tuple(-(-n // k) for n, k in zip(self.shape, self.parts, strict=True))

    @property
    def num_rows(self) -> int:
        """P."""
        return math.prod(self.parts)

    @property
    def chunk_size(self) -> int:
        """Number of elements of a row on each device."""
        return -(-math.prod(self.part_shape) // self.num_chunks)

    @property
    def row_size(self) -> int:
        """C."""
        return self.num_chunks * self.chunk_size

    @property
    def is_padded(self) -> bool:
        """Whether there are zeros that are not elements of the weight."""
        return self.num_rows * self.row_size > math.prod(self.shape)

    def boxes(self, part: int, start: int, stop: int) -> Iterator[RowBox]:
        """Yields the boxes of the weight, in order, in columns `start`..`stop` of a part's row."""
        sizes = self.part_shape
        coordinates = np.unravel_index(part, self.parts)
        first = [int(i) * n for i, n in zip(coordinates, sizes, strict=True)]
        place = start
        for ranges in _boxes(start, min(stop, math.prod(sizes)), sizes):
            shape = tuple(b - a for a, b in ranges)
            index = tuple(
                slice(i + a, min(i + b, n))
                for i, (a, b), n in zip(first, ranges, self.shape, strict=True)
            )
            if all(along.start < along.stop for along in index):
                yield RowBox(place, shape, index)
            place += math.prod(shape)


def weight_rows(shape: Sequence[int], split: Split, mesh: Topology) -> WeightRows | None:
    """Returns the layout of the rows of weights [*stacked axes, ...]; None without rows."""
    if not split.row_axes:
        return None
    num = split.num_stacked
    return WeightRows(tuple(shape[num:]), split.parts(mesh)[num:], mesh.size(split.row_axes))


def read_rows(value: Any, index: Index, rows: WeightRows) -> np.ndarray:
    """Reads a part of the rows of weights, float32 in the shape of `index`.

    `value` is [*stacked axes, ...], perhaps an object that is read slice by slice. `index` has a
    slice for each axis of the array in rows, [*stacked axes, P, C].
    """
    chunk = np.zeros([part.stop - part.start for part in index], np.float32)
    for box_index, view in split_rows(chunk, index, rows, value.shape):
        view[...] = value[box_index]
    return chunk


def split_rows(
    chunk: np.ndarray, index: Index, rows: WeightRows, shape: Sequence[int]
) -> Iterator[tuple[Index, np.ndarray]]:
    """Yields the boxes of weights, [*stacked axes, ...], that are in a part of their rows.

    `chunk` has the elements at `index`, as in `read_rows`, of a tensor of shape `shape`. For each
    box, it yields the index in the tensor, and a view of the box's elements in the chunk.
    """
    *lead, parts, columns = index
    lead = [slice(s.start, min(s.stop, n)) for s, n in zip(lead, shape, strict=False)]
    sizes = [max(0, s.stop - s.start) for s in lead]
    chunk = chunk[tuple(map(slice, sizes))]
    for part in range(parts.start, parts.stop):
        row = chunk[..., part - parts.start, :]
        for box in rows.boxes(part, columns.start, columns.stop):
            start = box.start - columns.start
            view = row[..., start : start + math.prod(box.shape)].reshape((*sizes, *box.shape))
            yield (*lead, *box.where), view[(..., *box.content)]


def _boxes(start: int, stop: int, shape: Sequence[int]) -> Iterator[Ranges]:
    """Yields the fewest boxes, in order, that make up a row-major range of a tensor's elements."""
    if start >= stop:
        return
    if not shape:
        yield ()
        return
    inner = math.prod(shape[1:])
    first, last = -(-start // inner), stop // inner  # indices of the first axis that are whole
    if first > last:
        yield from _row_boxes(last, start, stop, shape)
        return
    yield from _row_boxes(first - 1, start, first * inner, shape)
    if first < last:
        yield ((first, last), *((0, n) for n in shape[1:]))
    yield from _row_boxes(last, last * inner, stop, shape)


def _row_boxes(i: int, start: int, stop: int, shape: Sequence[int]) -> Iterator[Ranges]:
    """Yields the boxes of a range that is inside index `i` of the first axis."""
    before = i * math.prod(shape[1:])
    for rest in _boxes(start - before, stop - before, shape[1:]):
        yield ((i, i + 1), *rest)
