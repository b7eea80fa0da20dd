"""One ring through every healthy chip, by single hops: it has the most steps, and avoids holes.

`find_cycle` finds a ring through every healthy chip of a grid; all of its hops are single links.
Chips are first put on many small cycles; then cycles that are side by side are joined:

    a - b         a   b      the links a-b of one cycle and c-d of another are
              ->  |   |      replaced by a-c and b-d
    c - d         c   d

Boards of 2 x 2 are such cycles. If the healthy chips are whole boards, joining always ends in one
ring, along a spanning tree of the boards. For other holes the cycles come from a maximum matching
in which every chip has two neighbours. If joining gets stuck, the search tries again after random
turns of squares, and from other matchings. Without such a matching there is no ring.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from lingo.config.count_text import count_text
from lingo.config.params import ParamError
from lingo.mesh.allreduce.grid import Grid
from lingo.mesh.allreduce.plan import AllReducePlan, ring_steps


def ring(grid: Grid) -> AllReducePlan:
    """Returns the plan of a ring whose hops are single links (Kumar and Jouppi 2020, 1-D).

    Raises ParamError if no such ring is found.
    """
    cycle = np.array(find_cycle(grid))
    pieces = np.arange(len(cycle))[None]
    return AllReducePlan("ring", grid, len(cycle), tuple(ring_steps(cycle[None], pieces, 1)))


Cover = dict[int, list[int]]
"""Cycles that cover all chips: the two neighbours of each chip on its cycle. On a cycle of two
chips, both neighbours are the same chip."""

MAX_STARTS, MAX_TURNS = 20, 50
"""The most matchings that a search tries, and the most random squares it turns after each."""


def find_cycle(grid: Grid) -> list[int]:
    """Returns the ids of the healthy chips in the order of a ring.

    Raises ParamError if there is no ring, or if none was found; the message says which.
    """
    chips = grid.healthy.tolist()
    if any(axis.kind == "switch" for axis in grid.axes):
        raise ParamError(f"ring goes by links between neighbours, and {grid} has a switch")
    if len(chips) <= 2:
        return chips
    squares = list(grid.squares())
    for cover in _board_covers(grid):
        if cycle := _join(cover, squares):
            return cycle
    rng = random.Random(0)
    for start in range(MAX_STARTS):
        cover = _matching_cover(grid, rng if start else None)
        if cycle := _join(cover, squares):
            return cycle
        for a, b, c, d in rng.choices(squares, k=MAX_TURNS) if squares else ():
            is_turned = _turn(cover, a, b, c, d) or _turn(cover, a, c, b, d)
            if is_turned and (cycle := _join(cover, squares)):
                return cycle
    raise ParamError(
        f"no ring of single hops was found through the {len(chips):,} chips of {grid}; there may be"
        " one"
    )


def _board_covers(grid: Grid) -> Iterator[Cover]:
    """Yields covers by whole 2 x 2 boards of a plane, which may begin at odd positions."""
    if len(grid.axes) != 2:
        return
    for rows, columns in itertools.product((0, 1), repeat=2):
        cover: Cover = {}
        for a, b, c, d in grid.squares():
            row, column = grid.position(a)
            if row % 2 == rows and column % 2 == columns and not {a, b, c, d} & cover.keys():
                cover |= {a: [b, c], b: [a, d], c: [a, d], d: [b, c]}
        if len(cover) == len(grid.healthy):
            yield cover


def _matching_cover(grid: Grid, rng: random.Random | None) -> Cover:
    """Returns a cover by cycles of any shape, random with `rng`; raises ParamError without a cover.

    If hops lead only from even to odd positions, each even chip is matched with two odd chips. Else
    each chip is matched with the chip after it, and two chips may follow each other.
    """
    chips = grid.healthy.tolist()
    near = {chip: [other for other, _ in grid.neighbors(chip)] for chip in chips}
    if rng is not None:
        rng.shuffle(chips)
        for others in near.values():
            rng.shuffle(others)
    ends = [chip for chip in chips if len(near[chip]) < 2]
    if ends:
        raise ParamError(
            f"no ring of single hops leads through {grid}: the chip {grid.position(ends[0])} has"
            f" {count_text(len(near[ends[0]]), 'healthy neighbour')}, and needs two"
        )
    even = [chip for chip in chips if sum(grid.position(chip)) % 2 == 0]
    is_bipartite = not any(axis.is_closed and axis.size % 2 for axis in grid.axes)
    if is_bipartite and 2 * len(even) != len(chips):
        raise ParamError(
            f"no ring of single hops leads through {grid}: hops alternate between even and odd"
            f" positions, and {len(even):,} chips are even, {len(chips) - len(even):,} odd"
        )
    matched = _match(even, near, 2) if is_bipartite else _match(chips, near, 1)
    if matched is None:
        raise ParamError(
            f"no ring of single hops leads through {grid}: its chips cannot have two neighbours"
            " each"
        )
    cover: Cover = {chip: [] for chip in chips}
    for chip, others in matched.items():
        for other in others:
            cover[chip].append(other)
            cover[other].append(chip)
    return cover


def _match(left: list[int], near: Cover, degree: int) -> Cover | None:
    """Matches each chip on the left with `degree` chips on the right, and vice versa."""
    partners: Cover = {chip: [] for chip in left}
    users: Cover = {chip: [] for others in near.values() for chip in others}
    for start in left * degree:
        released: dict[int, int | None] = {
            start: None
        }  # chip on the left -> its partner to give up
        taken: dict[int, int] = {}  # chip on the right -> chip on the left that takes it
        waiting, end = deque([start]), None
        while waiting and end is None:
            chip = waiting.popleft()
            for other in near[chip]:
                if other in taken or other in partners[chip]:
                    continue
                taken[other] = chip
                if len(users[other]) < degree:
                    end = other
                    break
                for user in users[other]:
                    if user not in released:
                        released[user] = other
                        waiting.append(user)
        if end is None:
            return None
        while end is not None:
            chip = taken[end]
            partners[chip].append(end)
            users[end].append(chip)
            end = released[chip]
            if end is not None:
                partners[chip].remove(end)
                users[end].remove(chip)
    return partners


def _join(cover: Cover, squares: Sequence[tuple[int, int, int, int]]) -> list[int] | None:
    """Joins cycles that are side by side; returns the ring if a single cycle is left."""
    cycles = {chip: cycle for cycle in _cycles(cover) for chip in cycle}  # one list per cycle
    is_changed = True
    while is_changed:
        is_changed = False
        for a, b, c, d in squares:
            if cycles[a] is cycles[b] and cycles[c] is cycles[d] and cycles[a] is not cycles[c]:
                is_turned = _turn(cover, a, b, c, d)
                first, second = cycles[a], cycles[c]
            elif cycles[a] is cycles[c] and cycles[b] is cycles[d] and cycles[a] is not cycles[b]:
                is_turned = _turn(cover, a, c, b, d)
                first, second = cycles[a], cycles[b]
            else:
                continue
            if is_turned:
                is_changed = True
                if len(first) < len(second):
                    first, second = second, first
                first += second
                cycles |= dict.fromkeys(second, first)
    cycle = next(_cycles(cover))
    return cycle if len(cycle) == len(cover) else None


def _cycles(cover: Cover) -> Iterator[list[int]]:
    """Yields the cycles of a cover, each as its chips in order."""
    left = dict.fromkeys(cover)
    while left:
        cycle = [next(iter(left))]
        del left[cycle[0]]
        while (following := next((o for o in cover[cycle[-1]] if o in left), None)) is not None:
            del left[following]
            cycle.append(following)
        yield cycle


def _turn(cover: Cover, a: int, b: int, c: int, d: int) -> bool:
    """Replaces the links a-b and c-d by a-c and b-d; returns False if they are not in the cover."""
    if b not in cover[a] or d not in cover[c]:
        return False
    for chip, old, new in ((a, b, c), (b, a, d), (c, d, a), (d, c, b)):
        cover[chip].remove(old)
        cover[chip].append(new)
    return True
