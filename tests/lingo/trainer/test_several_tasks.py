"""A run of several tasks: its reports and evaluations, and batches that depend on evaluations."""

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.data.multi_task_input import MultiTaskInput, TaskInput
from lingo.data.task_schedule import Evaluated, RoundRobinTasks, SimpleAdaptiveTasks
from lingo.layers.layer import Layer
from lingo.learner.multi_task import MultiTask
from lingo.optim.adam import Adam
from lingo.runtimes.local import LocalProgram
from lingo.runtimes.program import LostState
from lingo.trainer import periodic_evaluation
from lingo.trainer.evaluation.evaluate import EvaluationResult
from tests.lingo.learner.several_tasks import SHARED, D, Points, Regression, tasks

PARTS = {"a": Points.params(part=1, batch_size=4), "b": Points.params(part=2, batch_size=8)}
METRICS = {4: (1.0, 0.0), 8: (1.0, 0.3), 12: (1.0, 0.1), 16: (0.0, 1.0)}
ADAPTIVE = SimpleAdaptiveTasks.params(
    task_metrics={"a": "first/loss/error", "b": "second/loss/error"},
    expected={"a": 1.0, "b": 1.0},
)


def experiment(schedule=RoundRobinTasks, **fields):
    heldout = {
        name: TaskInput.params(task=task, input=PARTS[task].copy().set(repeat=False))
        for name, task in (("first", "a"), ("second", "b"))
    }
    params = Experiment.params(
        task=tasks(**SHARED),
        train_input=MultiTaskInput.params(inputs=PARTS, schedule=schedule),
        eval_inputs=heldout,
        optimizer=Adam.params(learning_rate=0.01),
        **{"max_steps": 16} | fields,
    )
    params.evaluate.every_steps = 4
    params.summary.every_steps = 4
    params.checkpoint.every_steps = 2
    return params


@pytest.fixture
def metrics_of_evaluations(monkeypatch):
    def found(one, program, *, between, show_progress):
        list(between([0]))
        step = int(program.state().step)
        for name, value in zip(one.eval_inputs, METRICS[step], strict=True):
            yield EvaluationResult(name, {"loss/error": value}, {}, [])

    monkeypatch.setattr(periodic_evaluation, "evaluate_all", found)


def task_steps(*past):
    """The number of steps of each task in 16 steps, if evaluations at steps `past` are followed."""
    data = experiment(ADAPTIVE).build().train_input
    tags = ADAPTIVE.task_metrics.values()
    data.follow([Evaluated(k, dict(zip(tags, METRICS[k], strict=True))) for k in past])
    return data.task_steps(16)


def test_reports_and_evaluations_are_by_task(run, rows, directory):
    run(experiment(), directory)
    *_, last = (row for row in rows(directory) if "loss/total" in row)
    assert last["step"] == 16
    assert {"loss/a/error", "loss/b/error", "a/size", "b/size"} <= last.keys()
    assert "loss/error" not in last
    evaluated = [row for row in rows(directory) if "eval/loss/error" in row][-1]
    assert "eval/loss/error@second" in evaluated
    assert (directory / "eval_first").is_dir()


@pytest.mark.usefixtures("metrics_of_evaluations")
def test_tasks_follow_the_evaluations(run, weights, directory):
    run(experiment(ADAPTIVE), directory)
    counts = {k: weights(directory)[f"state/tasks/{k}/updates"] for k in "ab"}
    assert counts == task_steps(4, 8, 12)
    assert counts != task_steps()


@pytest.mark.usefixtures("metrics_of_evaluations")
@pytest.mark.parametrize("stop", [6, 8, 10])
def test_a_resumed_run_is_the_same_bit_for_bit(run, rows, weights, tmp_path, stop):
    run(experiment(ADAPTIVE), tmp_path / "whole")
    METRICS.setdefault(stop, (0.0, 0.0))  # the shorter run is evaluated at its end
    run(experiment(ADAPTIVE, max_steps=stop), tmp_path / "parts")
    run(experiment(ADAPTIVE), tmp_path / "parts")
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)
    losses = [
        [row["loss/total"] for row in rows(tmp_path / name) if row.get("step") == 16][:1]
        for name in ("whole", "parts")
    ]
    assert losses[0] == losses[1]


@pytest.mark.usefixtures("metrics_of_evaluations")
def test_a_run_that_loses_its_state_trains_the_same_tasks_again(
    run, weights, tmp_path, monkeypatch
):
    run(experiment(ADAPTIVE), tmp_path / "whole")
    train_on, lost = LocalProgram.train, [LostState("2 chips fail")]

    def losing(self, batches):
        if lost and self.state().step == 11:
            raise lost.pop()
        return train_on(self, batches)

    monkeypatch.setattr(LocalProgram, "train", losing)
    run(experiment(ADAPTIVE), tmp_path / "losing")
    assert not lost
    whole, again = weights(tmp_path / "whole"), weights(tmp_path / "losing")
    for name, value in whole.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


class Centered(Layer):
    """Its input without the mean of the training data, which is fitted before step 1."""

    def setup(self):
        self.mean = self.state("mean", [D], decay=1.0)

    def __call__(self, x):
        return x - self.mean

    def fit(self, x):
        return {"mean": x.mean(axis=0)}


class CenteredRegression(Regression):
    centered: Centered = Centered

    def setup(self):
        super().setup()
        self.centered = self.p.centered.build()

    def predict(self, batch):
        return super().predict({**batch, "x": self.centered(batch["x"])})


def test_states_are_fitted_to_the_data_of_their_task(run, weights, directory):
    params = experiment(max_steps=1)
    params.task = MultiTask.params(tasks={"a": CenteredRegression, "b": CenteredRegression})
    run(params, directory)
    for name, data in params.build().train_input.inputs_by_task().items():
        wanted = data.examples(np.arange(40))["x"].mean(axis=0)
        found = weights(directory)[f"state/tasks/{name}/centered/mean"]
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


def test_a_followed_metric_that_no_evaluation_has_is_refused(run, directory):
    schedule = ADAPTIVE.copy().set(task_metrics={"a": "first/bleu", "b": "second/loss/error"})
    with pytest.raises(ParamError, match="follows 'first/bleu', but evaluations have no such"):
        run(experiment(schedule), directory)


def test_epochs_that_depend_on_evaluations_are_refused(run, directory):
    params = experiment(ADAPTIVE)
    params.evaluate.set(every_steps=None, every_epochs=1.0)
    with pytest.raises(ParamError, match="count steps, by max_steps and evaluate"):
        run(params, directory)


def test_epochs_are_summed_over_tasks(run, rows, directory):
    params = experiment(max_steps=None, max_epochs=2.0)
    run(params, directory)
    steps = max(row["step"] for row in rows(directory))
    assert 4 * steps / 2 / 40 + 8 * steps / 2 / 40 == pytest.approx(2.0, abs=0.2)


def test_inputs_have_the_names_of_the_tasks():
    params = experiment()
    params.train_input.inputs = {"a": PARTS["a"], "c": PARTS["b"]}
    with pytest.raises(ParamError, match="tasks are a, b, but the inputs of train_input are for"):
        params.build()
    params = experiment()
    params.eval_inputs["first"] = PARTS["a"].copy().set(repeat=False)
    with pytest.raises(ParamError, match="names no task"):
        params.build()
