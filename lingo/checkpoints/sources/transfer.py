"""Maps weights of a model to tensors of a source, and reads them one by one."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.checkpoints.sources.weight_source import (
    UnusableSource,
    WeightSource,
    explain_read_errors,
    printable,
)

_MAX_NAMES = 5  # in one line

Grid = tuple[int, ...]
"""Numbers of places in each direction, such as rows and columns."""


class TensorRead(NamedTuple):
    """How one weight is read from a tensor of a source."""

    name: str
    shape: tuple[int, ...]  # of the weight
    reverse: bool = False  # whether the tensor has the weight's axes in reverse order
    part: tuple[int, int] = (0, 1)  # (i, n): part i, from 0, of n parts of the tensor's last axis
    scale: float = 1.0  # factor of the values
    offset: float = 0.0  # number to add, after `scale`
    # The grids whose points the first axis lists: (the tensor's, the weight's).
    resize: tuple[Grid, Grid] | None = None
    num_kept: int = 0  # rows before the grid, which `resize` leaves as they are
    order: tuple[int, ...] = ()  # the tensor's axes in the order of the weight's; (): as they are
    flip: int | None = None  # an axis of the ordered tensor that the weight has in reverse
    # The shape of `part` of the ordered tensor, which has the weight's elements; (): the weight's.
    form: tuple[int, ...] = ()

    def ordered_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns a tensor's shape with its axes in `order`; the shape itself if they do not fit.

        A tensor of another rank has no such order, so its shape differs from `form` in any case.
        """
        fits_order = self.order and len(shape) == len(self.order)
        return tuple(shape[axis] for axis in self.order) if fits_order else tuple(shape)

    def part_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of `part` of a tensor, given the tensor's shape."""
        shape = self.ordered_shape(shape)
        return (*shape[:-1], shape[-1] // self.part[1]) if shape else ()

    def change(self, value: np.ndarray) -> np.ndarray:
        """Returns the weight, float32, made from the tensor's value, of any float type."""
        i, n = self.part
        value = value.transpose(self.order) if self.order else value
        value = value if self.flip is None else np.flip(value, self.flip)
        if n > 1:
            size = value.shape[-1] // n
            value = value[..., i * size : (i + 1) * size]
        value = value.T if self.reverse else value
        if self.resize is not None:
            value = value.reshape(value.shape[-2:])
            kept, grid = value[: self.num_kept], value[self.num_kept :]
            value = np.concatenate([kept, resize_grid(grid, *self.resize)])
        value = value.reshape(self.shape)
        if self.scale != 1 or self.offset:
            value = (value.astype(np.float64) * self.scale + self.offset).astype(np.float32)
        return value

    def undo(self, weight: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Inverts `change` without `resize`: returns the tensor or its `part`, float32.

        `shape` is the weight's shape with the tensor's split or merged axes, before `reverse`. The
        axes of the result are in `order`; `join` undoes this.
        """
        if self.scale != 1 or self.offset:
            weight = ((weight.astype(np.float64) - self.offset) / self.scale).astype(np.float32)
        value = weight.reshape(shape)
        return value.T if self.reverse else value

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the tensor, of any shape, made of all of its parts as `undo` returns them."""
        value = np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
        value = value if self.flip is None else np.flip(value, self.flip)
        value = value.transpose(np.argsort(self.order)) if self.order else value
        return np.ascontiguousarray(value).reshape(value.shape)


@dataclasses.dataclass(frozen=True)
class Transfer:
    """The weights that a model reads from a source; the source's tensors have fitting shapes."""

    source: WeightSource
    reads: Mapping[str, TensorRead]  # weight of the model -> how it is read
    # Weight that the source lacks -> the name under which it was searched.
    absent: Mapping[str, str]
    other_weights: Sequence[str]  # weights that `only` or `skip` excludes
    # (weight, slot) -> how the slot is read.
    slots: Mapping[tuple[str, str], TensorRead] = dataclasses.field(default_factory=dict)

    def value(self, weight: str) -> np.ndarray | None:
        """Reads and returns a weight, float32 in its shape; None if it is not in `reads`.

        Raises UnusableSource if the value cannot be read or is not finite, DamagedCheckpoint if
        a lingo checkpoint is damaged.
        """
        tensor = self.reads.get(weight)
        return None if tensor is None else self._read(tensor)

    def slot(self, weight: str, slot: str) -> np.ndarray | None:
        """Reads and returns a weight's slot as `value` does, float32 in the slot's shape."""
        tensor = self.slots.get((weight, slot))
        return None if tensor is None else self._read(tensor)

    def _read(self, tensor: TensorRead) -> np.ndarray:
        value = self.source.read(tensor.name)
        with np.errstate(over="ignore"):  # float64 may overflow float32; this is checked below
            value = value.astype(np.float32, copy=False)
        value = tensor.change(value)
        if not np.isfinite(value).all():
            raise UnusableSource(
                f"{self.source.path}: {printable(tensor.name)} holds"
                f" {np.count_nonzero(~np.isfinite(value)):,} values, of {value.size:,}, that are"
                " not finite in float32."
            )
        return value

    def summary(self) -> str:
        """Returns a line with the numbers of weights that are read and not read."""
        num_weights = len(self.reads) + len(self.absent) + len(self.other_weights)
        casts = sorted({self._dtype(read) for read in self.reads.values()} - {"float32"})
        shared = Counter(read.name for read in self.reads.values()).values()
        facts = [
            self.source.what,
            *([f"{' and '.join(casts)} cast to float32"] if casts else []),
            *([f"{n} weights share tensors"] if (n := sum(k for k in shared if k > 1)) else []),
            *([f"with slots {', '.join(kept)}"] if (kept := self._slot_names()) else []),
        ]
        count = f"{len(self.reads)} of {num_weights} weights"
        line = f"{count} from {self.source.path} ({', '.join(facts)})"
        for why, names in (("missing", list(self.absent)), ("not requested", self.other_weights)):
            line += f"; {why}: {_list_some(names)}" if names else ""
        return line

    def table(self) -> str:
        """Returns a table: a line per weight of the model, and per tensor that is not read."""
        rows = [*self._weight_rows(), *self._unused_rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{self.source.path.absolute()}: {self.source.what}", ""]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
            lines.append("  ".join([*cells, row[3]]).rstrip())
        return "".join(f"{line}\n" for line in lines)

    def origin(self) -> dict[str, Any]:
        """Returns the source's path, its kind and the digests of its used files, in JSON types."""
        digests = {}
        for file in self.source.files(self._used()):
            with explain_read_errors(file), open(file, "rb") as stream:
                digests[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
        where = str(self.source.path.resolve())
        return {"path": where, "what": self.source.what, "sha256": digests}

    def _weight_rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yields the table's row of each weight: action, weight, source's name, dtype and shape."""
        for weight, read in self.reads.items():
            tensor = self.source.tensors[read.name]
            how = ", axes reversed" if read.reverse else ""
            how += f", axis {read.flip} reversed" if read.flip is not None else ""
            how += f", axes in the order {list(read.order)}" if read.order else ""
            how += f", part {read.part[0]} of {read.part[1]}" if read.part[1] > 1 else ""
            how += f", times {read.scale:g}" if read.scale != 1 else ""
            how += f", plus {read.offset:g}" if read.offset else ""
            if read.resize is not None:
                how += ", resized from {} to {}".format(*map(grid_text, read.resize))
            what = f"{tensor.dtype} {list(tensor.shape)}{how}"
            yield "read", weight, printable(read.name), what
        for (weight, slot), read in self.slots.items():
            what = f"float32 {list(read.shape)}"
            yield "read", f"{weight}, slot {slot}", printable(read.name), what
        for weight, name in self.absent.items():
            yield "missing", weight, printable(name), ""
        for weight in self.other_weights:
            yield "not requested", weight, "", ""

    def _unused_rows(self) -> Iterator[tuple[str, str, str, str]]:
        used = self._used()
        for name, tensor in self.source.tensors.items():
            if name not in used:
                yield "not used", "", printable(name), f"{tensor.dtype} {list(tensor.shape)}"

    def _used(self) -> set[str]:
        """Returns the names of all tensors that are read."""
        return {read.name for reads in (self.reads, self.slots) for read in reads.values()}

    def _slot_names(self) -> list[str]:
        return sorted({slot for _, slot in self.slots})

    def _dtype(self, read: TensorRead) -> str:
        return self.source.tensors[read.name].dtype


def fits(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Returns whether splitting axes, or merging neighbouring axes, turns one shape into the other.

    [8, 6] fits [8, 2, 3] and [2, 4, 6], but not [6, 8], which has the same number of elements.
    """
    one, two = ({1, *itertools.accumulate(s, operator.mul)} for s in (shape, other))
    return math.prod(shape) == math.prod(other) and (one <= two or two <= one)


def resize_grid(values: np.ndarray, old: Grid, new: Grid) -> np.ndarray:
    """Interpolates values at the points of one grid to another grid over the same image.

    So position embeddings of an image's patches fit images of another size (Dosovitskiy et al.
    2021, sec. 3.2). Interpolation is linear in each direction, so bilinear in two. A point is the
    middle of its cell. Where a grid shrinks, the interpolation kernel is wider by the same factor,
    so that no point is left out. (The authors' code aligns the outermost points of both grids
    instead.)

    Args:
        values: [product of old, ...], any float type, row after row.
        old: numbers of points of the old grid, per direction.
        new: numbers of points of the new grid, per direction.

    Returns:
        float32 [product of new, ...].

    >>> resize_grid(np.array([0.0, 4.0]), (2,), (4,))
    array([0., 1., 3., 4.], dtype=float32)
    """
    rest = values.shape[1:]
    grid = values.reshape(*old, *rest).astype(np.float64)
    for axis, sizes in enumerate(zip(old, new, strict=True)):
        along = np.tensordot(_interpolation(*sizes), grid, axes=(1, axis))
        grid = np.moveaxis(along, 0, axis)
    return grid.reshape(math.prod(new), *rest).astype(np.float32)


def grid_text(grid: Grid) -> str:
    """Returns a grid's numbers of points as text.

    >>> grid_text((14, 14))
    '14 x 14'
    """
    return " x ".join(map(str, grid))


def _interpolation(old: int, new: int) -> np.ndarray:
    """Returns the weight of each of `old` points in each of `new` points, float64 [new, old]."""
    places = (np.arange(new) + 0.5) * old / new - 0.5
    distances = abs(places[:, None] - np.arange(old)) / max(old / new, 1)
    weights = np.maximum(1 - distances, 0)
    return weights / weights.sum(axis=1, keepdims=True)


def _list_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
