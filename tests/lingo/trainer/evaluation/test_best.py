"""Which evaluations were best, from the rows of metrics.jsonl alone."""

import json

import pytest

from lingo.checkpoints.errors import NoUsableCheckpoint
from lingo.config.params import ParamError
from lingo.optim.sgd import Sgd
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation import best
from lingo.trainer.evaluation.best import Ranking, Score


@pytest.fixture
def compared(experiment):
    """Makes experiments whose evaluations of two inputs, a and b, are compared."""

    def compared(**evaluate):
        params = experiment("none").set(optimizer=Sgd.params(learning_rate=0.1))
        params.eval_inputs = {name: params.eval_inputs["same"].copy() for name in "ab"}
        params.evaluate.set(**evaluate)
        params.checkpoint.keep_best = 1 if evaluate else 0
        return params.build()

    return compared


def ranked(*values, **kwargs):
    return Ranking(tuple(Score(10 * i, v) for i, v in enumerate(values, 1)), **kwargs)


def test_steps_are_ranked_by_value_and_then_by_age():
    assert ranked(3.0, 1.0, 2.0, 1.0).steps_best_first() == [20, 40, 30, 10]
    assert ranked(3.0, 1.0, 2.0, 1.0, goal="max").steps_best_first() == [10, 30, 20, 40]


def test_what_is_not_finite_is_never_best_and_no_improvement():
    ranking = ranked(None, 2.0, None, None, patience=2)
    assert ranking.steps_best_first() == [20]
    assert ranking.since_best() == 2
    assert ranking.has_stopped_improving
    assert ranked(None, None, patience=2).has_stopped_improving


def test_patience_counts_the_evaluations_since_the_best():
    assert not ranked(3.0, 2.0, 2.5, patience=2).has_stopped_improving
    assert ranked(3.0, 2.0, 2.5, 2.0, patience=2).has_stopped_improving, "an equal one is no better"
    assert not ranked(3.0, 2.0, 2.5, 2.1, 1.9, patience=2).has_stopped_improving
    assert not ranked(1.0, 2.0, 3.0).has_stopped_improving, "without patience it is never enough"


@pytest.mark.parametrize(("goal", "values"), [("min", (3.0, 2.1)), ("max", (1.0, 1.9))])
def test_a_value_is_reached_by_the_best_score_whichever_way_is_better(goal, values):
    assert not ranked(*values, goal=goal, reach=2.0).ends_run
    for last in (2.0, None, values[0]):
        assert ranked(*values, 2.0, last, goal=goal, reach=2.0).ends_run
    assert not ranked(None, goal=goal, reach=2.0).ends_run
    assert not ranked(*values, 2.0, goal=goal).ends_run, "without a value it is never enough"


@pytest.mark.parametrize(("name", "tag"), [("a", "eval/loss"), ("b", "eval/loss@b")])
def test_the_input_that_the_metric_names_is_the_one_compared(compared, name, tag):
    rows = [
        {"step": 2, "eval/loss": 5.0, "eval/loss@b": 6.0},
        {"step": 3, "loss/total": 1.0},
        {"step": 4, "eval/loss": 7.0, "eval/loss@b": None},
    ]
    scores = best.ranking(compared(metric=f"{name}/loss"), rows).scores
    assert scores == (Score(2, rows[0][tag]), Score(4, rows[2][tag]))


def test_without_a_metric_nothing_is_ranked(compared):
    assert best.ranking(compared(), [{"step": 1, "eval/loss": 1.0}]).scores == ()


def test_a_metric_that_an_evaluation_does_not_give_is_named_with_those_it_gives(compared):
    found = {"a": {"loss": 1.0, "accuracy": 0.5}, "b": {}}
    best.check_metric(compared(metric="a/loss"), found)
    best.check_metric(compared(), found)
    with pytest.raises(
        ParamError, match=r"no 'los'. Did you mean 'loss'\? It gives: loss, accuracy"
    ):
        best.check_metric(compared(metric="a/los"), found)


def run_with(folder, *steps):
    for step in steps:
        (folder / "checkpoints" / f"step_{step:08d}").mkdir(parents=True)
    return RunDirectory(folder)


def test_the_best_that_are_there_are_protected(compared, tmp_path):
    run = run_with(tmp_path, 4, 6)
    for step, loss in ((2, 1.0), (4, 3.0), (6, 2.0)):
        run.metrics.append({"step": step, "eval/loss": loss})
    assert best.best_steps(compared(metric="a/loss"), run) == [6]
    assert best.best_steps(compared(metric="a/loss"), run, uploaded={2}) == [2]
    assert best.best_steps(compared(), run) == []


def test_a_best_checkpoint_that_is_gone_is_not_replaced_by_another(compared, tmp_path):
    run = run_with(tmp_path, 4)
    run.metrics.path.write_text(json.dumps({"step": 2, "eval/loss": 1.0}) + "\n")
    with pytest.raises(NoUsableCheckpoint, match="no checkpoint of step 2; it has 4"):
        best.choose(compared(metric="a/loss"), run, "best")


def test_best_needs_a_metric_and_an_evaluation(compared, tmp_path):
    with pytest.raises(ParamError, match=r"set evaluate\.metric"):
        best.choose(compared(), RunDirectory(tmp_path), "best")
    with pytest.raises(NoUsableCheckpoint, match="not been evaluated by a/loss"):
        best.choose(compared(metric="a/loss"), RunDirectory(tmp_path), "best")
    with pytest.raises(NoUsableCheckpoint, match="no checkpoint yet"):
        best.choose(compared(), RunDirectory(tmp_path), None)
