"""A run whose length, evaluations and schedule are given in epochs."""

import pathlib

import numpy as np
import pytest

import lingo
from lingo.config.params import ParamError
from lingo.data.record_source import DataError
from lingo.optim.compound_schedule import InEpochs, Warmup
from lingo.optim.schedule import Cosine
from lingo.trainer.dry_run import dry_run
from lingo.trainer.request import Request

pytestmark = pytest.mark.usefixtures("once_compiled")

EXAMPLES = 10  # of the data, in batches of 4: an epoch has 2.5 steps


@pytest.fixture
def in_epochs(small, monkeypatch):
    """The small experiment, of two epochs or `max_epochs`, evaluated after each."""

    def in_epochs(max_epochs=2):
        params = small().set(max_steps=None, max_epochs=max_epochs)
        params.evaluate.set(every_steps=None, every_epochs=1)
        params.optimizer.schedule = InEpochs.params(
            schedule=Warmup.params(num_steps=1, then=Cosine)
        )
        data = params.train_input.build()
        monkeypatch.setattr(type(data), "num_examples", lambda self: EXAMPLES)
        return params

    return in_epochs


def test_it_ends_and_is_evaluated_after_whole_epochs(in_epochs, run, rows, directory, capsys):
    assert run(in_epochs(), directory).step == 5
    found = rows(directory)
    assert [r["step"] for r in found if "eval/loss" in r] == [3, 5]
    rates = [r["learner/learning_rate"] / 0.01 for r in found if "loss/total" in r]
    expected = [0.0, 0.4, 0.8, *(np.cos(np.pi * (np.array([1.2, 1.6]) - 1)) / 2 + 0.5)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-7)
    assert "step 4/5  epoch 1.60/2  loss" in capsys.readouterr().out


def test_it_resumes_bit_for_bit(in_epochs, run, losses, weights, tmp_path):
    def constant(max_epochs):
        params = in_epochs(max_epochs)
        params.optimizer.schedule = InEpochs.params(schedule=Warmup.params(num_steps=1))
        return params

    run(constant(2), tmp_path / "whole")
    run(constant(0.5), tmp_path / "parts")
    assert run(constant(2), tmp_path / "parts").step == 5
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)


def test_a_dry_run_tells_the_last_step(in_epochs):
    assert "to step 5\n" in dry_run(Request(in_epochs(), "{}", ""), None)


def test_it_is_built_without_the_data_until_its_length_is_needed(in_epochs):
    params = in_epochs()
    params.train_input.source.pattern = "/nowhere/*.txt"
    experiment = params.build()
    with pytest.raises(DataError, match="/nowhere"):
        experiment.train_input.prepare()


def test_a_rate_that_is_not_finite_is_found_when_the_data_is_open(in_epochs, run, directory):
    params = in_epochs()
    params.optimizer.schedule.schedule = Warmup.params(num_steps=1, start=1e-38).set(
        then=Cosine.params(end=3e38)
    )
    params.optimizer.learning_rate = 1e3
    with pytest.raises(ParamError, match="optimizer: learning_rate is inf at step"):
        run(params, directory)
    assert not pathlib.Path(directory).exists()


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ["max_epochs=2"],
            "max_steps=20 and max_epochs=2.0 exclude each other: set max_steps=None to count",
        ),
        (["max_steps=None"], "max_steps and max_epochs are both None: set one of them"),
        (["max_steps=None", "max_epochs=0"], "max_epochs=0.0 is not positive"),
    ],
)
def test_a_run_has_one_length(overrides, text):
    cfg = lingo.get("tiny", "max_steps=20", *overrides)
    with pytest.raises(ParamError, match=text):
        cfg.build()
