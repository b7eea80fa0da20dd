"""Which points are tried: all of a grid, different ones at random, corners of a space."""

from __future__ import annotations

import pytest

from lingo.config.params import ParamError
from lingo.study import search, space
from lingo.study.search import Listed

AXES = space.read(["a=1,2", "b=x,y,z"])
WIDE = space.read(["a=log(1e-4..1e-1)", "b=1..1000000", "c=x,y"])


def test_a_grid_has_every_combination_the_last_axis_changing_fastest() -> None:
    points = search.grid(AXES)
    assert [f"{p['a']}{p['b']}" for p in points] == ["1x", "1y", "1z", "2x", "2y", "2z"]


def test_a_grid_takes_no_range() -> None:
    with pytest.raises(ParamError, match=r"x=1\.\.8: a grid needs values, as in x=1,8"):
        search.grid(space.read(["a=1,2", "x=1..8"]))


def test_random_points_are_all_different() -> None:
    points = search.random(AXES, num_trials=6, seed=0)
    assert {tuple(p.values()) for p in points} == {tuple(p.values()) for p in search.grid(AXES)}


def test_random_points_can_be_all_there_are() -> None:
    (axis,) = space.read(["x=1..500"])
    points = search.random([axis], num_trials=500, seed=0)
    assert sorted(int(p["x"]) for p in points) == list(range(1, 501))


def test_random_points_depend_on_the_seed_alone() -> None:
    assert search.random(WIDE, num_trials=3, seed=1) == search.random(WIDE, num_trials=3, seed=1)
    assert search.random(WIDE, num_trials=3, seed=1) != search.random(WIDE, num_trials=3, seed=2)


def test_random_points_are_the_same_in_every_version() -> None:
    assert search.random(WIDE, num_trials=2, seed=0) == [
        {"a": "0.0002634", "b": "802827", "c": "x"},
        {"a": "0.00144", "b": "282241", "c": "y"},
    ]


def test_more_random_trials_begin_with_the_same_points() -> None:
    assert search.random(WIDE, num_trials=9, seed=3)[:4] == search.random(
        WIDE, num_trials=4, seed=3
    )


def test_another_axis_leaves_what_is_drawn_for_the_first() -> None:
    narrow = search.random(WIDE[:1], num_trials=5, seed=4)
    assert [p["a"] for p in search.random(WIDE, num_trials=5, seed=4)] == [p["a"] for p in narrow]


def test_a_space_with_too_few_points_is_named_with_what_it_has() -> None:
    with pytest.raises(ParamError, match="not 7 different trials to draw: 6 were found"):
        search.random(AXES, num_trials=7, seed=0)


@pytest.mark.parametrize("num_trials", [10_001, 10**9])
def test_more_trials_than_anybody_means_are_refused(num_trials: int) -> None:
    with pytest.raises(ParamError, match=f"{num_trials:,} trials are too many"):
        search.random(WIDE, num_trials=num_trials, seed=0)


def test_a_grid_that_explodes_is_refused() -> None:
    with pytest.raises(ParamError, match="1,000,000 trials are too many"):
        search.grid(space.read([f"{name}=0,1,2,3,4,5,6,7,8,9" for name in "abcdef"]))


def test_each_value_and_each_end_occurs_in_a_corner() -> None:
    points = search.corners(space.read(["a=1,2", "x=0.5..1.5"]))
    assert points == [{"a": "1", "x": "0.5"}, {"a": "2", "x": "0.5"}, {"a": "1", "x": "1.5"}]


def test_listed_points_are_known_from_the_start_whatever_is_found() -> None:
    listed = Listed(search.grid(AXES))
    before = [listed.point(number) for number in range(listed.num_trials)]
    listed.learn(0, 1.0)
    listed.learn(1, None)
    assert listed.num_known == listed.num_trials == 6
    assert [listed.point(number) for number in range(6)] == before
