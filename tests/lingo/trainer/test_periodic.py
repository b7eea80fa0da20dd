"""Evaluation between steps: which is best, when it is enough, and by which weights."""

import pytest

from lingo.checkpoints import store
from lingo.checkpoints.errors import NoUsableCheckpoint
from lingo.config.params import ParamError
from lingo.trainer import periodic
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation import best
from lingo.trainer.evaluation.evaluate import EvaluationResult

pytestmark = pytest.mark.usefixtures("once_compiled")


def test_evaluation_can_use_the_moving_average(small, run, tmp_path):
    trained, averaged = small(), small()
    averaged.evaluate.weights = "ema"
    one = run(trained, tmp_path / "trained").evaluations["same"]["eval/loss"]
    other = run(averaged, tmp_path / "averaged").evaluations["same"]["eval/loss"]
    assert one != other


def compared(params, **evaluate):
    """Evaluates at steps 1, 2, 3, ... by a metric, and has no other reason for a checkpoint."""
    params.evaluate.set(every_steps=1, metric="same/loss", **evaluate)
    params.checkpoint.set(every_steps=100, keep=1, keep_best=1)
    return params


def evaluated(monkeypatch, **losses):
    """Lets the evaluation of step n find the loss `at_n`."""

    def found(experiment, program, *, between, show_progress):
        list(between([0]))
        metrics = {"loss": losses[f"at_{int(program.state().step)}"]}
        yield EvaluationResult("same", metrics, {}, [])

    monkeypatch.setattr(periodic, "evaluate_all", found)


def test_a_run_ends_early_when_evaluations_get_no_better(small, run, directory, monkeypatch):
    evaluated(monkeypatch, at_1=3.0, at_2=2.0, at_3=2.5, at_4=2.0, at_5=1.0, at_6=4.0)
    outcome = run(compared(small(), patience=2), directory)
    assert (outcome.step, outcome.state, outcome.signal) == (4, "done (early)", None)
    assert (directory / "STATUS").read_text() == "done (early) at step 4\n"
    assert store.steps(directory / "checkpoints") == [2, 4]
    assert run(compared(small(max_steps=9), patience=2), directory).step == 4, "it is enough"
    assert run(compared(small(), patience=3), directory).step == 6
    assert (directory / "STATUS").read_text() == "done at step 6\n"
    assert store.steps(directory / "checkpoints") == [5, 6]


def test_a_run_ends_when_the_metric_reaches_a_value(small, run, directory, monkeypatch, capsys):
    evaluated(monkeypatch, at_1=3.0, at_2=2.0, at_3=2.5, at_4=1.0)
    outcome = run(compared(small(), reach=2.0), directory)
    assert (outcome.step, outcome.state) == (2, "done (early)")
    again = run(compared(small(max_steps=9), reach=2.0), directory)
    assert (again.step, again.state) == (2, "done (early)"), "it ends at once"
    assert "same/loss has reached 2.0: evaluate.reach." in capsys.readouterr().out
    assert run(compared(small(), reach=1.0), directory).step == 4, "more is asked for"


def test_a_value_that_was_reached_before_a_kill_ends_the_run_when_it_resumes(
    small, run, directory, monkeypatch
):
    evaluated(monkeypatch, at_1=3.0, at_2=2.0)
    with pytest.raises(KeyError, match="at_3"):
        run(compared(small()), directory)
    evaluated(monkeypatch, at_3=4.0)
    outcome = run(compared(small(), reach=2.0), directory)
    assert (outcome.step, outcome.state) == (3, "done (early)")


def test_the_best_survives_a_crash_and_a_resume(small, run, directory, monkeypatch):
    evaluated(monkeypatch, at_1=3.0, at_2=2.0)  # the third evaluation is the end of the process
    with pytest.raises(KeyError, match="at_3"):
        run(compared(small()), directory)
    evaluated(monkeypatch, at_3=2.5, at_4=2.2, at_5=2.1, at_6=2.3)
    run(compared(small()), directory)
    assert store.steps(directory / "checkpoints") == [2, 6]
    with pytest.raises(NoUsableCheckpoint, match="no checkpoint of step 1"):
        best.choose(compared(small(), goal="max").build(), RunDirectory(directory), "best")
    assert best.choose(compared(small()).build(), RunDirectory(directory), "best").step == 2


def test_a_metric_that_is_not_there_is_refused_before_the_first_step(small, run, directory):
    params = compared(small())
    params.evaluate.metric = "same/losss"
    with pytest.raises(ParamError, match=r"no 'losss'. Did you mean 'loss'\?"):
        run(params, directory)
    assert not RunDirectory(directory).exists
