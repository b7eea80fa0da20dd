"""Trials: names, commands, and which of them is best."""

import pathlib
import shlex

import pytest

from lingo.config.params import ParamError
from lingo.storage.files import PATH_PART
from lingo.study.metric import Metric
from lingo.study.trial import Result, name_point_in_errors, sort_results, trial_name

POINT = {"optimizer.learning_rate": "1e-3", "FeedForward.activation": "gelu"}


@pytest.mark.parametrize(
    ("point", "name"),
    [
        (POINT, "007-learning_rate-1e-3-activation-gelu"),
        ({"exp.num_layers": "4"}, "007-num_layers-4"),
        ({"eval_inputs['held out'].max_batches": "none"}, "007-max_batches-none"),
        ({"Stack": "Repeat(layer=_, x=[1, 2])"}, "007-Stack-Repeat_layer_x_1_2"),
        ({"source.pattern": "../my data/*.txt"}, "007-pattern-.._my_data_.txt"),
        ({"sizes[0]": "'ü'"}, "007-sizes"),
        ({"x" * 80: "1"}, f"007-{'x' * 60}"),
    ],
)
def test_a_name_is_its_number_and_its_values_fit_for_a_path(point, name):
    assert trial_name(7, point) == name
    assert PATH_PART.fullmatch(name)


def test_names_that_are_cut_differ_by_their_number():
    long = {f"a{'x' * 40}": "1" * 40, "b": "2"}
    assert trial_name(1, long) != trial_name(2, long)
    assert trial_name(1234, {"a": "1"}) == "1234-a-1"


def test_the_command_is_that_of_an_ordinary_run(request_for):
    request = request_for("a.b=1", sets=["c=1"], logdir=pathlib.Path("my runs/s"))
    trial = request.trial(2, {"a.b": "[1, 2]"})
    assert shlex.split(trial.command) == [
        "lingo",
        "train",
        "--exp=toy",
        "--set=c=1",
        "--logdir=my runs/s/002-b-1_2",
        "--set=a.b=[1, 2]",
    ]
    assert trial.path == trial.run.path == pathlib.Path("my runs/s/002-b-1_2")


def test_an_error_about_values_names_the_trial():
    with (
        pytest.raises(ParamError, match=r"^trial optimizer\.learning_rate=1e-3 .*gelu: too high$"),
        name_point_in_errors(POINT),
    ):
        raise ParamError("too high")


def test_only_trials_that_are_done_have_a_score(request_for):
    def result(number, state, value):
        return Result(request_for("a=1").trial(number, POINT), state, value, 1)

    results = [
        result(0, "failed", 0.1),
        result(1, "done", 3.0),
        result(2, "stopped", 0.2),
        result(3, "done", 2.0),
        result(4, "done", None),
    ]
    order = [r.trial.number for r in sort_results(results, Metric("loss/total", "min"))]
    assert order == [3, 1, 0, 2, 4]
