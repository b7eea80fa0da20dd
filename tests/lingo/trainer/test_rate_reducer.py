"""The learning rate falls when evaluations get no better, also where a run resumes."""

import numpy as np
import pytest

from lingo.checkpoints import store
from lingo.config.params import ParamError
from lingo.optim.plateau import Plateau
from lingo.optim.schedule import ConstantRate
from lingo.runtimes.local import LocalProgram
from lingo.runtimes.program import LostState
from lingo.trainer import periodic_evaluation
from lingo.trainer.evaluation.evaluate import EvaluationResult

pytestmark = pytest.mark.usefixtures("once_compiled")

LOSSES = {1: 3.0, 2: 3.5, 3: 2.0, 4: 2.5, 5: 2.5, 6: 2.5}


@pytest.fixture(autouse=True)
def losses_of_evaluations(monkeypatch):
    def found(experiment, program, *, between, show_progress):
        list(between([0]))
        metrics = {"loss": LOSSES[int(program.state().step)]}
        yield EvaluationResult("same", metrics, {}, [])

    monkeypatch.setattr(periodic_evaluation, "evaluate_all", found)


@pytest.fixture
def falling(small):
    """The small experiment, evaluated after each step; its rate is halved after each worse one."""

    def falling(**fields):
        params = small(**fields)
        params.optimizer.set(learning_rate=0.01, schedule=ConstantRate)
        params.optimizer.plateau = Plateau.params(factor=0.5, patience=1)
        params.evaluate.set(every_steps=1, metric="same/loss")
        params.summary.every_steps = 1
        params.checkpoint.keep = 9
        return params

    return falling


def factors(rows, directory):
    """The factors of the peak that the reported learning rates of steps 1, 2, ... have."""
    return [r["learner/learning_rate"] / 0.01 for r in rows(directory) if "loss/total" in r]


def test_the_step_after_a_worse_evaluation_has_a_lower_rate(
    falling, run, rows, weights, directory, capsys
):
    run(falling(), directory)
    assert factors(rows, directory) == pytest.approx([1.0, 1.0, 0.5, 0.5, 0.25, 0.125])
    said = "step 2  learning rate x 0.5: the last 1 evaluations had no better same/loss"
    assert said in capsys.readouterr().out
    assert weights(directory)["state/plateau/factor"] == 0.125


@pytest.mark.parametrize("stop", [2, 3, 4])
def test_a_resumed_run_is_the_same_bit_for_bit(falling, run, rows, weights, tmp_path, stop):
    """It resumes at a fall, before one, and at one after others."""
    run(falling(), tmp_path / "whole")
    run(falling(max_steps=stop), tmp_path / "parts")
    run(falling(), tmp_path / "parts")
    assert factors(rows, tmp_path / "parts") == factors(rows, tmp_path / "whole")
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)


def test_a_run_that_goes_back_takes_the_factor_back(falling, run, rows, directory):
    run(falling(), directory)
    for step in (4, 5, 6):
        store.delete(store.step_path(directory / "checkpoints", step))
    run(falling(), directory)
    assert factors(rows, directory) == pytest.approx([1.0, 1.0, 0.5, 0.5, 0.25, 0.125])


def test_without_a_metric_it_is_refused(falling):
    params = falling()
    params.evaluate.metric = None
    with pytest.raises(ParamError, match=r"optimizer\.plateau needs evaluate\.metric"):
        params.build()


def test_a_rewind_to_a_fall_lowers_the_rate_again_once(
    falling, run, rows, directory, monkeypatch, capsys
):
    train_on, lost = LocalProgram.train, [LostState("2 chips fail")]

    def losing(self, batches):
        if lost and self.state().step == 4:
            raise lost.pop()
        return train_on(self, batches)

    monkeypatch.setattr(LocalProgram, "train", losing)
    run(falling(), directory)
    assert factors(rows, directory) == pytest.approx([1.0, 1.0, 0.5, 0.5, 0.25, 0.125])
    assert capsys.readouterr().out.count("learning rate x 0.25") == 2, "before and after the loss"
