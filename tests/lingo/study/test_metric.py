"""The metric: what it is called, what runs report of it, which run is best."""

import types
from typing import cast

import pytest

from lingo.config.params import ParamError
from lingo.contract import Evaluation, Experiment
from lingo.study.metric import Metric, Reading, choose_metric

ROWS = [
    {"step": 1, "loss/total": 5.0},
    {"step": 2, "loss/total": 4.0, "eval/loss": 3.0, "eval/loss@keras": 6.0},
    {"step": 3, "loss/total": 4.5, "eval/loss": 3.5, "eval/loss@keras": 5.0},
]


def experiment(inputs=("heldout", "keras"), **evaluate):
    p = types.SimpleNamespace(
        eval_inputs=dict.fromkeys(inputs), evaluate=Evaluation.params(**evaluate)
    )
    return cast("Experiment", types.SimpleNamespace(p=p, evaluation_names=[*inputs]))


@pytest.mark.parametrize(
    ("name", "reading"),
    [
        ("loss/total", Reading(3, 4.5)),
        ("heldout/loss", Reading(3, 3.5)),
        ("keras/loss", Reading(3, 5.0)),
        ("heldout/bleu", None),
    ],
)
def test_a_run_counts_by_its_last_report(name, reading):
    assert Metric(name, "min").read(ROWS) == reading
    assert Metric(name, "max").read(ROWS) == reading


def test_a_run_may_count_by_its_best_report():
    assert Metric("heldout/loss", "min", best_report=True).read(ROWS) == Reading(2, 3.0)
    assert Metric("heldout/loss", "max", best_report=True).read(ROWS) == Reading(3, 3.5)
    assert Metric("heldout/bleu", "max", best_report=True).read(ROWS) is None


def test_a_number_that_is_not_finite_is_never_best():
    rows = [*ROWS, {"step": 4, "loss/total": None}]
    assert Metric("loss/total", "min").read(rows) == Reading(4, None)
    assert Metric("loss/total", "min", best_report=True).read(rows) == Reading(2, 4.0)


def test_the_best_comes_first_and_none_last():
    values = [2.0, None, 1.0, 3.0]
    assert sorted(values, key=Metric("x", "min").rank) == [1.0, 2.0, 3.0, None]
    assert sorted(values, key=Metric("x", "max").rank) == [3.0, 2.0, 1.0, None]


@pytest.mark.parametrize("name", ["heldout/loss", "keras/anything", "loss/total", "perf/x"])
def test_a_metric_of_an_input_or_of_training_is_taken(name):
    assert choose_metric(experiment(), name, None) == Metric(name, "min")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("heldot/loss", "Did you mean 'heldout/loss'"),
        ("heldout", "'heldout' is not input/metric"),
        ("loss", "for example, heldout/loss and keras/loss and loss/total"),
        ("heldout/", "is not input/metric"),
    ],
)
def test_a_metric_that_no_run_will_report_is_refused(name, message):
    with pytest.raises(ParamError, match=message):
        choose_metric(experiment(), name, None)


def test_the_loss_of_the_first_input_is_compared_by_default():
    assert choose_metric(experiment(), None, None) == Metric("heldout/loss", "min")
    assert choose_metric(experiment(()), None, None) == Metric("loss/total", "min")


def test_the_experiments_own_metric_is_compared_where_it_was_best():
    own = experiment(metric="keras/accuracy", goal="max")
    expected = Metric("keras/accuracy", "max", best_report=True)
    assert choose_metric(own, None, None) == expected
    assert choose_metric(own, "keras/accuracy", "max") == expected


def test_a_metric_or_goal_that_is_given_overrides_the_experiments_own():
    own = experiment(metric="keras/accuracy", goal="max")
    assert choose_metric(own, "heldout/loss", None) == Metric("heldout/loss", "min")
    assert choose_metric(own, None, "min") == Metric("keras/accuracy", "min")
    with pytest.raises(ParamError, match="heldot"):
        choose_metric(own, "heldot/loss", None)
