"""What a sweep is asked to do: checked as a whole, before anything is created."""

from __future__ import annotations

import pathlib

import pytest

from lingo.config.params import ParamError
from lingo.study import plan
from lingo.study.directory import ChangedSweep, SweepDirectory


def test_every_value_is_built_before_anything_is_created(request_for, tmp_path) -> None:
    with pytest.raises(ParamError, match=r"^trial a=1 b=13: b is unlucky$"):
        plan.checked(request_for("a=1,2", "b=1,13"))
    assert list(tmp_path.iterdir()) == []


def test_a_random_search_is_checked_trial_by_trial(request_for) -> None:
    with pytest.raises(ParamError, match="unlucky"):
        plan.checked(request_for("a=12..14", method="random", num_trials=3))
    assert len(plan.checked(request_for("a=1..12", method="random", num_trials=3))) == 3


def test_the_commands_are_those_of_the_trials_that_are_not_done(
    request_for, finished, tmp_path: pathlib.Path
) -> None:
    request = request_for("a=1,2,3", sets=["c=5"])
    assert len(plan.commands(request)) == 3
    assert list(tmp_path.iterdir()) == []
    for number, code in ((0, 0), (1, 8)):
        trial = request.trial(number, {"a": str(number + 1)})
        trial.path.mkdir(parents=True)
        finished(trial, 1.0, code)
    path = request.logdir
    assert plan.commands(request) == [
        f"lingo train --exp=toy --set=c=5 --logdir={path / '001-a-2'} --set=a=2",
        f"lingo train --exp=toy --set=c=5 --logdir={path / '002-a-3'} --set=a=3",
    ]


def test_a_trial_that_is_done_is_not_when_more_is_asked_of_it(request_for, finished) -> None:
    request = request_for("a=1", sets=["max_steps=7"])
    trial = request.trial(0, {"a": "1"})
    trial.path.mkdir(parents=True)
    finished(trial, 1.0)
    assert plan.is_done(request, trial)
    assert not plan.is_done(request_for("a=1", sets=["max_steps=9"]), trial)
    (trial.path / "STATUS").write_text("done (early) at step 5\n")
    assert plan.is_done(request, trial)


def test_a_trial_with_another_configuration_is_refused_with_the_difference(
    request_for, finished
) -> None:
    request = request_for("a=1", sets=["c=5"])
    trial = request.trial(0, {"a": "1"})
    trial.path.mkdir(parents=True)
    finished(trial, 1.0)
    with pytest.raises(ChangedSweep, match=r"000-a-1 was begun as another sweep:\n  c: 5 -> 6\n"):
        plan.commands(request_for("a=1", sets=["c=6"]))
    assert plan.commands(request_for("a=1", sets=["c=5", "max_steps=9"]))
    (trial.path / "checkpoints/step_00000007").rmdir()
    assert plan.commands(request_for("a=1", sets=["c=6"]))  # there is nothing to go on from


def test_a_search_that_learns_has_no_commands_to_print(request_for) -> None:
    with pytest.raises(ParamError, match="it has none to print"):
        plan.commands(request_for("a=1,2", method="optuna", num_trials=2))


@pytest.mark.parametrize(
    ("method", "changes", "said"),
    [
        ("grid", {"metric": ("perf/x", "max")}, ""),
        ("random", {"num_trials": 5}, ""),
        ("random", {"seed": 1}, "seed: 0 -> 1"),
        ("grid", {"method": "random"}, "search: grid -> random"),
        ("grid", {"axes": ["a=1,2", "b=3"]}, "sweep: a=1,2 -> a=1,2 b=3"),
        ("grid", {"axes": ["a= 1, 2"]}, ""),
        ("optuna", {"metric": ("perf/x", "min")}, "metric: loss/total -> perf/x"),
        ("optuna", {"metric": ("loss/total", "max")}, "goal: min -> max"),
    ],
)
def test_what_says_which_trials_there_are_may_not_change(
    request_for, method, changes, said
) -> None:
    request = request_for("a=1,2", method=method)
    directory = SweepDirectory(request.logdir)
    with directory.locked():
        directory.begin(request.asked())
    if "axes" in changes:
        changes["axes"] = request_for(*changes["axes"]).axes
    if "metric" in changes:
        changes["metric"] = request.metric._replace(
            name=changes["metric"][0], goal=changes["metric"][1]
        )
    after = request._replace(**changes)
    if not said:
        directory.check(after.asked(), fixed=after.fixed())
        return
    with pytest.raises(ChangedSweep, match=said) as caught:
        directory.check(after.asked(), fixed=after.fixed())
    assert caught.value.exit_code == 7
