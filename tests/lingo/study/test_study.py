"""Optuna's proposals: kept in a file, gone on with, better than chance."""

from __future__ import annotations

import sys

import pytest

from lingo.config.params import ParamError
from lingo.study import space, study
from lingo.study.plan import checked
from lingo.study.run import run
from lingo.study.study import Study

AXES = space.read(["a=log(1e-4..1.0)", "b=1..9", "c=x,y"])


def test_without_optuna_the_package_to_install_is_named(
    request_for, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ParamError, match=r"pip install 'lingo-tf\[sweep\]'"):
        checked(request_for("a=1,2", method="optuna", num_trials=2))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def opened(tmp_path):
    """Opens one study as often as it is called."""
    pytest.importorskip("optuna", reason="the extra `sweep` is not installed")

    def opened(num_trials: int = 30, seed: int = 0, goal: study.Goal = "min") -> Study:
        return Study(tmp_path / "study.log", AXES, num_trials=num_trials, seed=seed, goal=goal)

    return opened


def test_points_are_texts_of_the_space(opened) -> None:
    search = opened()
    for number in range(20):
        point = search.point(number)
        assert list(point) == ["a", "b", "c"]
        assert 1e-4 <= float(point["a"]) <= 1
        assert len(point["a"].partition("e")[0].replace(".", "").lstrip("0")) <= 4
        assert point["b"] in "123456789"
        assert point["c"] in "xy"


def test_points_never_change_and_are_there_when_it_is_opened_again(opened) -> None:
    search = opened()
    points = [search.point(number) for number in range(4)]
    search.learn(0, 1.0)
    search.learn(1, None)
    again = opened()
    assert again.num_known == 4
    assert [again.point(number) for number in range(4)] == points
    assert again.point(4) not in points


def test_what_is_learned_once_stays(opened) -> None:
    search = opened()
    search.point(0)
    search.learn(0, 1.0)
    search.learn(0, 2.0)
    opened().learn(0, 3.0)


def test_fewer_trials_than_are_known_leave_the_others_out(opened) -> None:
    search = opened()
    search.point(3)
    assert opened(num_trials=2).num_known == opened(num_trials=2).num_trials == 2


@pytest.mark.parametrize(("goal", "sign"), [("min", 1), ("max", -1)])
def test_it_comes_nearer_to_what_is_best(opened, goal, sign) -> None:
    search = opened(goal=goal)
    found = []
    for number in range(30):
        point = search.point(number)
        found.append(abs(int(point["b"]) - 7) + (point["c"] == "x"))
        search.learn(number, sign * found[-1])
    assert sum(found[20:]) < sum(found[:10])


def test_a_sweep_goes_on_with_its_study(request_for, training) -> None:
    pytest.importorskip("optuna", reason="the extra `sweep` is not installed")
    request = request_for("a=0.0..1", method="optuna", num_trials=3)
    launch = training([1.0, 2.0, 3.0], codes={1: 8})
    before = run(request, launch=launch, num_workers=1, show=lambda line: None)
    again = training([9.0, 0.5, 9.0, 4.0])
    after = run(request._replace(num_trials=4), launch=again, num_workers=1, show=lambda line: None)
    assert again.started == [1, 3]
    points = {result.trial.number: result.trial.point for result in after.results}
    assert all(points[r.trial.number] == r.trial.point for r in before.results)
    assert [result.trial.number for result in after.results] == [1, 0, 2, 3]
