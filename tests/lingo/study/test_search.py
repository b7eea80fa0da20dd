"""Which points are tried: all of a grid, different ones at random, those that Optuna proposes."""

import pytest

from lingo.config.params import ParamError
from lingo.study.search import (
    TriedPoint,
    corner_points,
    grid_points,
    propose_point,
    random_points,
)
from lingo.study.space import read_axes

AXES = read_axes(["a=1,2", "b=x,y,z"])
WIDE = read_axes(["a=log(1e-4..1e-1)", "b=1..1000000", "c=x,y"])


def test_a_grid_has_every_combination_the_last_axis_changing_fastest():
    points = grid_points(AXES)
    assert [f"{p['a']}{p['b']}" for p in points] == ["1x", "1y", "1z", "2x", "2y", "2z"]


def test_a_grid_takes_no_range():
    with pytest.raises(ParamError, match=r"x=1\.\.8: a grid needs values, as in x=1,8"):
        grid_points(read_axes(["a=1,2", "x=1..8"]))


def test_random_points_are_all_different_and_can_be_all_there_are():
    (axis,) = read_axes(["x=1..500"])
    points = random_points([axis], num_trials=500, seed=0)
    assert sorted(int(p["x"]) for p in points) == list(range(1, 501))


def test_random_points_are_the_same_in_every_version():
    assert random_points(WIDE, num_trials=2, seed=0) == [
        {"a": "0.0002634", "b": "802827", "c": "x"},
        {"a": "0.00144", "b": "282241", "c": "y"},
    ]
    assert random_points(WIDE, num_trials=2, seed=1) != random_points(WIDE, num_trials=2, seed=0)


def test_more_random_trials_begin_with_the_same_points():
    assert random_points(WIDE, num_trials=9, seed=3)[:4] == random_points(
        WIDE, num_trials=4, seed=3
    )


def test_another_axis_leaves_what_is_drawn_for_the_first():
    narrow = random_points(WIDE[:1], num_trials=5, seed=4)
    assert [p["a"] for p in random_points(WIDE, num_trials=5, seed=4)] == [p["a"] for p in narrow]


def test_a_space_with_too_few_points_is_named_with_what_it_has():
    with pytest.raises(ParamError, match="not 7 different trials to draw: 6 were found"):
        random_points(AXES, num_trials=7, seed=0)


def test_each_value_and_each_end_occurs_in_a_corner():
    points = corner_points(read_axes(["a=1,2", "x=0.5..1.5"]))
    assert points == [{"a": "1", "x": "0.5"}, {"a": "2", "x": "0.5"}, {"a": "1", "x": "1.5"}]


# ---- Optuna ------------------------------------------------------------------------------------

SPACE = read_axes(["a=log(1e-4..1.0)", "b=1..9", "c=x,y"])


def propose(trials, goal="min"):
    pytest.importorskip("optuna", reason="the extra `sweep` is not installed")
    return propose_point(SPACE, trials, seed=len(trials), goal=goal)


def test_proposed_points_are_texts_of_the_space():
    trials = []
    for number in range(15):
        point = propose(trials)
        assert list(point) == ["a", "b", "c"]
        assert 1e-4 <= float(point["a"]) <= 1
        assert len(point["a"].partition("e")[0].replace(".", "").lstrip("0")) <= 4
        assert point["b"] in "123456789"
        assert point["c"] in "xy"
        trials.append(TriedPoint(point, None if number % 3 else float(number)))


def test_a_proposal_follows_from_the_seed_and_the_earlier_trials():
    trials = [TriedPoint({"a": "0.1", "b": "2", "c": "x"}, 1.0)] * 12
    assert propose(trials) == propose(trials)
    others = propose_point(SPACE, trials, seed=99, goal="min")
    assert others != propose(trials)


@pytest.mark.parametrize(("goal", "sign"), [("min", 1), ("max", -1)])
def test_proposals_come_nearer_to_the_best_point(goal, sign):
    trials = []
    losses = []
    for _ in range(30):
        point = propose(trials, goal)
        losses.append(abs(int(point["b"]) - 7) + (point["c"] == "x"))
        trials.append(TriedPoint(point, float(sign * losses[-1])))
    assert sum(losses[20:]) < sum(losses[:10])


def test_points_without_a_result_are_avoided():
    bad = {"a": "0.1", "b": "2", "c": "x"}
    good = {"a": "0.1", "b": "8", "c": "y"}
    trials = [TriedPoint(bad, None)] * 10 + [TriedPoint(good, 1.0)] * 10
    points = [propose_point(SPACE, trials, seed=seed, goal="min") for seed in range(10)]
    assert sum(point["c"] == "y" for point in points) >= 8
