"""A box of chips, perhaps with failed chips, and the routes between them.

A chip's id is its row-major position. A directed link has a number, made from a chip, an axis and a
direction. On a switch the two directions are from a chip to the switch, and back.

    grid((16, 32), holes=("2x2@4,6",))       # a torus without the four chips from row 4, column 6
"""

from __future__ import annotations

import itertools
import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingo.config.count_text import count_text
from lingo.config.params import ParamError

Kind = Literal["ring", "line", "switch"]
MAX_CHIPS = 2**13
"""The most chips of a grid: a ring's chunks and steps grow with the number of chips, and twice the
largest pod is enough."""
MAX_AXES = 8


class Axis(NamedTuple):
    """Chips along one axis of a grid. The rates are per link and direction."""

    size: int
    # "ring": each chip is linked to the next, and the last to the first; "line": the last is not
    # linked to the first; "switch": each chip has one link, by which it reaches all other chips.
    kind: Kind = "ring"
    latency: float = 1e-6  # of a hop, seconds
    bandwidth: float = 70e9  # of a link, bytes a second

    @property
    def is_closed(self) -> bool:
        """Whether a link closes the ring, from the last chip to the first; not with two chips."""
        return self.kind == "ring" and self.size > 2


class Route(NamedTuple):
    """The path of a message."""

    links: tuple[int, ...]
    latency: float  # seconds, of all hops


class Grid(NamedTuple):
    """A box of chips, perhaps with failed chips."""

    axes: tuple[Axis, ...]
    holes: frozenset[int] = frozenset()  # ids of the chips that failed

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    @property
    def size(self) -> int:
        """Number of positions, failed chips included."""
        return math.prod(self.shape)

    @property
    def num_healthy(self) -> int:
        """Number of chips that did not fail."""
        return self.size - len(self.holes)

    @property
    def healthy(self) -> NDArray[np.int64]:
        """Ids of the chips that did not fail, ascending: int64 [N]."""
        return np.array([i for i in range(self.size) if i not in self.holes], np.int64)

    def ids(self) -> NDArray[np.int64]:
        """Returns the id at each position: int64 [*shape]."""
        return np.arange(self.size).reshape(self.shape)

    def position(self, chip: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(chip, self.shape))

    def neighbor(self, chip: int, axis: int, direction: int) -> int | None:
        """Returns the position one hop away along a ring or line, failed or not."""
        stride, dim = math.prod(self.shape[axis + 1 :]), self.axes[axis]
        old = chip // stride % dim.size
        new = old + direction
        if not 0 <= new < dim.size:
            if not dim.is_closed:
                return None
            new %= dim.size
        return chip + (new - old) * stride

    def neighbors(self, chip: int) -> Iterator[tuple[int, int]]:
        """Yields (chip, link to it) for each healthy chip one hop away, except over switches."""
        for axis, dim in enumerate(self.axes):
            if dim.kind != "switch":
                for direction in (1, -1):
                    other = self.neighbor(chip, axis, direction)
                    if other is not None and other not in self.holes:
                        yield other, self._link(chip, axis, direction)

    def squares(self) -> Iterator[tuple[int, int, int, int]]:
        """Yields four chips a, b, c, d with links a-b, c-d, a-c and b-d."""
        for i, j in itertools.combinations(range(len(self.axes)), 2):
            for a in self.healthy.tolist():
                b, c = self.neighbor(a, i, 1), self.neighbor(a, j, 1)
                if b is not None and c is not None:
                    d = self.neighbor(c, i, 1)
                    if d is not None and self.holes.isdisjoint((b, c, d)):
                        yield a, b, c, d

    def distances(self, sources: Sequence[int]) -> dict[int, int]:
        """Returns {healthy chip: hops from its nearest source}, nearest chips first."""
        hops, waiting = dict.fromkeys(sources, 0), deque(sources)
        while waiting:
            chip = waiting.popleft()
            for other, _ in self.neighbors(chip):
                if other not in hops:
                    hops[other] = hops[chip] + 1
                    waiting.append(other)
        return hops

    def route(self, source: int, target: int) -> Route:
        """Returns the route between two chips that differ along one axis: straight, if possible.

        Around failed chips, the route is as short as possible. Raises ParamError if there is no
        route.
        """
        here, there = self.position(source), self.position(target)
        differing = [i for i, pair in enumerate(zip(here, there, strict=True)) if len({*pair}) > 1]
        if len(differing) == 1:
            axis = differing[0]
            dim = self.axes[axis]
            if dim.kind == "switch":
                links = (self._link(source, axis, 1), self._link(target, axis, -1))
                return Route(links, dim.latency)
            hops = there[axis] - here[axis]
            if dim.is_closed and 2 * abs(hops) > dim.size:
                hops -= int(math.copysign(dim.size, hops))
            chips, direction = [source], int(math.copysign(1, hops))
            for _ in range(abs(hops)):
                following = self.neighbor(chips[-1], axis, direction)
                if following is None or following in self.holes:
                    break
                chips.append(following)
            else:
                links = tuple(self._link(chip, axis, direction) for chip in chips[:-1])
                return Route(links, dim.latency * abs(hops))
        return self._detour(source, target)

    def _detour(self, source: int, target: int) -> Route:
        """Returns a shortest route around failed chips."""
        hops = self.distances([target])
        if source not in hops:
            raise ParamError(
                f"no links lead from the chip {self.position(source)} to {self.position(target)}"
                f" around the holes of {self}"
            )
        links: list[int] = []
        latency = 0.0
        while source != target:
            source, link = min(self.neighbors(source), key=lambda pair: hops[pair[0]])
            links.append(link)
            latency += self.axes[self.link_axis(link)].latency
        return Route(tuple(links), latency)

    def _link(self, chip: int, axis: int, direction: int) -> int:
        return 2 * (len(self.axes) * chip + axis) + (direction < 0)

    def link_axis(self, link: int) -> int:
        """Returns the axis along which a link leads."""
        return link // 2 % len(self.axes)

    @property
    def num_links(self) -> int:
        """How many link numbers there are, including numbers that no link has."""
        return 2 * len(self.axes) * self.size

    def __str__(self) -> str:
        kinds = {axis.kind for axis in self.axes}
        name = "torus" if kinds == {"ring"} else "mesh" if kinds == {"line"} else "network"
        shape = " x ".join(map(str, self.shape))
        lost = f" without {count_text(len(self.holes), 'chip')}" if self.holes else ""
        return f"{shape} {name}{lost}"


def grid(
    shape: Sequence[int],
    *,
    kind: Kind = "ring",
    holes: Sequence[str] = (),
    latency: float = 1e-6,
    bandwidth: float = 70e9,
) -> Grid:
    """Returns a grid whose axes are alike; arguments and errors are as in `make_grid`."""
    return make_grid([Axis(size, kind, latency, bandwidth) for size in shape], holes)


def make_grid(axes: Sequence[Axis], holes: Sequence[str] = ()) -> Grid:
    """Returns a grid.

    `holes` are rectangles of failed chips, "2x2@4,6": sizes and first position. Raises ParamError
    for a size below 1, too many chips, a hole that is not inside the grid, or holes that leave no
    chip or split the healthy chips.
    """
    whole = Grid(tuple(axes))
    if not axes or min(whole.shape) < 1:
        raise ParamError(f"a mesh has a size of 1 or more for each axis, and not {whole.shape}")
    if len(axes) > MAX_AXES:
        raise ParamError(
            f"a mesh of {len(axes):,} axes: all-reduce is planned for {MAX_AXES} at most"
        )
    if whole.size > MAX_CHIPS:
        raise ParamError(
            f"a mesh of {whole.size:,} chips: all-reduce is planned for {MAX_CHIPS:,} at most"
        )
    result = whole._replace(holes=frozenset(chip for hole in holes for chip in _chips(whole, hole)))
    if not result.num_healthy:
        raise ParamError(f"the holes {', '.join(holes)} leave no chip of {whole}")
    if result.holes and all(axis.kind != "switch" for axis in axes):
        first = int(result.healthy[0])
        num_reached = len(result.distances([first]))
        if num_reached < result.num_healthy:
            raise ParamError(
                f"the holes {', '.join(holes)} split a {whole}: links lead from the chip"
                f" {result.position(first)} to only {num_reached - 1:,} of the"
                f" {result.num_healthy - 1:,} other chips, so their sum cannot be computed"
            )
    return result


def _chips(whole: Grid, hole: str) -> list[int]:
    """Returns the ids of the chips in a hole, "2x2@4,6"."""
    sizes, _, first = hole.partition("@")
    if not re.fullmatch(r"\d{1,9}(x\d{1,9})*@\d{1,9}(,\d{1,9})*", hole):
        raise ParamError(
            f"the hole {hole!r:.80} is not written as its sizes and first position: 2x2@4,6"
        )
    sizes, start = [int(n) for n in sizes.split("x")], [int(n) for n in first.split(",")]
    ends = [a + n for a, n in zip(start, sizes, strict=False)]
    if not len(sizes) == len(start) == len(whole.shape):
        raise ParamError(
            f"the hole {hole!r:.80} needs one size and one position for each axis of {whole}"
        )
    if 0 in sizes:
        raise ParamError(f"the hole {hole!r} has a size of 0: leave it out, or give 1 or more")
    if any(end > size for end, size in zip(ends, whole.shape, strict=True)):
        raise ParamError(f"the hole {hole!r} is not inside a {whole}")
    inside = tuple(slice(a, b) for a, b in zip(start, ends, strict=True))
    return whole.ids()[inside].ravel().tolist()
