"""How a tensor is split over a mesh: the mesh axes along which each of its axes is split.

[data, -, expert+model]: the first axis is split along the mesh axis `data`, into one part for each
device along it; the second is whole; the third is split along two mesh axes, `expert` the outer.
The tensor is replicated along all other mesh axes. Parts have equal sizes, rounded up: the last
parts are padded, or contain only padding.

[-, model]/data: each part is flattened to one row, with zeros at its end, and the row is split once
more along `data`. Devices keep chunks of an array [*stacked axes, parts, row] (see `weight_rows`).

`halo` says which rows of its neighbours a device needs, if windows move over a split axis.

    halo(300, num_parts=4, window=7, stride=2)      # a 7x7 convolution with padding SAME
    Halo(part=75, output_part=38, rows_before=(2, 1, 0, -1), rows_after=(4, 5, 6, 7))

Each device has a part of an image's rows and computes a part of the result's. With K parts, each
part has S = ceil(H / K) rows of the input and O = ceil(H' / K) rows of the result; the last parts
may have less. Part i of the result needs the rows i O s - p to ((i + 1) O - 1) s - p + w of the
input, with a stride s, a window of w rows, and p rows of padding before the first (Xu et al. 2021,
GSPMD, sec. 4.3). So device i needs this many rows before and after its own:

    before_i = i (S - O s) + p
    after_i  = ((i + 1) O - 1) s - p + w - (i + 1) S

One program runs on all devices. So every device sends as many rows as the neediest device needs,
and cuts out the rows that it needs itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from lingo.config.params import ParamError
from lingo.mesh.topology import Topology

Axes = tuple[str, ...]
"""Mesh axes along which one axis of a tensor is split, outermost first; () if it is whole."""


class Split(NamedTuple):
    """How a tensor is split."""

    axes: tuple[Axes, ...]  # for each axis of the tensor, the mesh axes along which it is split
    row_axes: Axes = ()  # mesh axes that split the flattened row of each part; (): no rows
    num_stacked: int = 0  # with rows: number of leading axes that are not part of the rows

    def parts(self, mesh: Topology) -> tuple[int, ...]:
        """Returns the number of parts of each axis."""
        return tuple(mesh.size(axes) for axes in self.axes)

    def storage(self) -> Split:
        """Returns the split of the stored array: of its rows if it has rows, else this split."""
        if not self.row_axes:
            return self
        stacked, own = self.axes[: self.num_stacked], self.axes[self.num_stacked :]
        return Split((*stacked, tuple(axis for axes in own for axis in axes), self.row_axes))

    def part_shape(self, shape: Sequence[int], mesh: Topology) -> tuple[int, ...]:
        """Returns the shape of the part on one device, padding included."""
        sizes = tuple(-(-n // k) for n, k in zip(shape, self.parts(mesh), strict=True))
        if not self.row_axes:
            return sizes
        row = math.prod(sizes[self.num_stacked :])
        return (*sizes[: self.num_stacked], 1, -(-row // mesh.size(self.row_axes)))

    def padded_shape(self, shape: Sequence[int], mesh: Topology) -> tuple[int, ...]:
        """Returns the shape of all parts together, as devices keep them, padding included."""
        parts, sizes = self.storage().parts(mesh), self.part_shape(shape, mesh)
        return tuple(n * k for n, k in zip(sizes, parts, strict=True))

    def part_size(self, shape: Sequence[int], mesh: Topology) -> int:
        """Returns the number of elements on one device, padding included."""
        return math.prod(self.part_shape(shape, mesh))

    def used_axes(self) -> set[str]:
        """Returns the mesh axes along which any axis, or a row, is split."""
        return {axis for axes in (*self.axes, self.row_axes) for axis in axes}

    def cut(self, axis: int, mesh_axes: Axes) -> Split:
        """Returns this split with tensor axis `axis` split along further mesh axes, innermost."""
        cut = (*self.axes[axis], *mesh_axes)
        return Split((*self.axes[:axis], cut, *self.axes[axis + 1 :]))

    def __str__(self) -> str:
        rows = f"/{'+'.join(self.row_axes)}" if self.row_axes else ""
        return f"[{', '.join('+'.join(axes) or '-' for axes in self.axes)}]{rows}"


def whole(rank: int) -> Split:
    """Returns the split of a tensor that every device holds whole."""
    return Split(((),) * rank)


# ---- rows from neighbours ------------------------------------------------------------------------


class Halo(NamedTuple):
    """The rows that each part of an axis needs before and after its own rows."""

    part: int  # S, the rows of an input part
    output_part: int  # O, the rows of a part of the result
    # for each part: rows needed before its own; negative: the number of its own first rows that
    # are not needed
    rows_before: tuple[int, ...]
    rows_after: tuple[int, ...]  # rows needed after its own; rows after the last part are padding

    @property
    def exchange(self) -> tuple[int, int]:
        """Rows that each device gets from the devices before it, and from the devices after it.

        The first part has no neighbour before it, and the last part has none after it.
        """
        return max(0, 0, *self.rows_before[1:]), max(0, 0, *self.rows_after[:-1])

    @property
    def sends(self) -> tuple[int, int]:
        """How often a device sends rows to devices after it, and to devices before it.

        A halo that is larger than a part comes from several devices.
        """
        left, right = self.exchange
        return -(-left // self.part), -(-right // self.part)


def halo(
    size: int,
    *,
    num_parts: int,
    window: int,
    stride: int = 1,
    dilation: int = 1,
    padding: Literal["SAME", "VALID"] = "SAME",
) -> Halo:
    """Returns the halo of windows that move over an axis of `size` rows in `num_parts` parts.

    A window has `window` rows, with a distance of `dilation` from one to the next. SAME has
    ceil(size / stride) windows, and puts half of the padding that they need, rounded down, before
    the first row. VALID has the windows that lie inside.

    Raises ParamError for a number below 1, or if no window fits.
    """
    numbers = {"size": size, "num_parts": num_parts, "window": window}
    for name, number in {**numbers, "stride": stride, "dilation": dilation}.items():
        if number < 1:
            raise ParamError(f"{name}={number}: it has to be at least 1")
    reach = (window - 1) * dilation + 1
    starts = size if padding == "SAME" else size - reach + 1
    if starts < 1:
        raise ParamError(f"a window of {reach} rows does not fit into {size} rows")
    num_windows = -(-starts // stride)
    missing = max((num_windows - 1) * stride + reach - size, 0)
    before = missing // 2 if padding == "SAME" else 0
    part, output_part = -(-size // num_parts), -(-num_windows // num_parts)
    step = output_part * stride
    return Halo(
        part,
        output_part,
        tuple(i * (part - step) + before for i in range(num_parts)),
        tuple((i + 1) * (step - part) - stride - before + reach for i in range(num_parts)),
    )
