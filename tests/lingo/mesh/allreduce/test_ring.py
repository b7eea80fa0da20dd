"""Rings of single hops are found where there are any."""

from __future__ import annotations

import itertools
import random

import pytest

from lingo.config.params import ParamError
from lingo.mesh.allreduce.grid import grid
from lingo.mesh.allreduce.ring import find_cycle


def is_ring(one, cycle):
    near = {chip: [other for other, _ in one.neighbors(chip)] for chip in cycle}
    steps = zip(cycle, cycle[1:] + cycle[:1], strict=True)
    return sorted(cycle) == one.healthy.tolist() and all(b in near[a] for a, b in steps)


def exists(one):
    """Returns whether there is a ring, by trying every way."""
    chips = one.healthy.tolist()
    near = {chip: [other for other, _ in one.neighbors(chip)] for chip in chips}

    def extend(chip, left):
        if not left:
            return chips[0] in near[chip]
        return any(extend(o, left - {o}) for o in near[chip] if o in left)

    return extend(chips[0], frozenset(chips[1:]))


@pytest.mark.parametrize("kind", ["ring", "line"])
@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (3, 4), (2, 2, 3)])
def test_a_ring_is_found_exactly_where_one_exists(shape, kind) -> None:
    chips = list(itertools.product(*map(range, shape)))
    pairs = list(itertools.combinations(chips, 2))
    random.Random(0).shuffle(pairs)
    for failed in [[], *([chip] for chip in chips), *pairs[:12]]:
        size = "x".join("1" for _ in shape)
        holes = [f"{size}@{','.join(map(str, chip))}" for chip in failed]
        try:
            one = grid(shape, kind=kind, holes=holes)
        except ParamError:
            continue
        try:
            cycle = find_cycle(one)
        except ParamError:
            assert not exists(one), (shape, holes)
        else:
            assert is_ring(one, cycle)


def test_boards_that_are_whole_are_always_one_ring() -> None:
    rng = random.Random(0)
    for _ in range(20):
        boards = {(2 * rng.randrange(5), 2 * rng.randrange(6)) for _ in range(rng.randint(0, 6))}
        try:
            one = grid((10, 12), kind="line", holes=[f"2x2@{r},{c}" for r, c in boards])
        except ParamError:  # the boards split it
            continue
        assert is_ring(one, find_cycle(one))


@pytest.mark.parametrize(
    ("shape", "holes", "message"),
    [
        ((3, 3), [], "alternate between even and odd positions, and 5 chips are even, 4 odd"),
        ((3, 4), ["1x1@0,1", "1x1@1,1"], r"the chip \(0, 0\) has 1 healthy neighbour"),
        ((1, 8), [], "needs two"),
        ((4, 6), ["2x1@0,0", "1x2@3,2"], "no ring of single hops"),
    ],
)
def test_a_refusal_says_why(shape, holes, message) -> None:
    with pytest.raises(ParamError, match=message):
        find_cycle(grid(shape, kind="line", holes=holes))


def test_a_switch_has_no_hops() -> None:
    with pytest.raises(ParamError, match="and 8 network has a switch"):
        find_cycle(grid((8,), kind="switch"))
