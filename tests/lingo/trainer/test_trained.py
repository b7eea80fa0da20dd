"""A trained model is loaded from a checkpoint that is there and can be read, and predicts."""

import types

import numpy as np
import pytest

from lingo.checkpoints import store
from lingo.checkpoints.errors import DamagedCheckpoint, NoUsableCheckpoint
from lingo.config.params import ParamError
from lingo.layers.stacks.repeat import Repeat
from lingo.processes.processes import ALONE
from lingo.runtimes.local import Local
from lingo.trainer import trained
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.trained import Trained

pytestmark = pytest.mark.usefixtures("once_compiled")


@pytest.fixture
def load(small, run, directory, monkeypatch):
    """Loads a model of checkpoints 2, 4 and 6; `before` is done with each before it is read."""
    run(small(), directory)
    restore_state = trained.restore_state

    def load(before, step=None):
        def restore(learner, found):
            before(found)
            return restore_state(learner, found)

        monkeypatch.setattr(trained, "restore_state", restore)
        return Trained(small(), RunDirectory(directory), step=step)

    return load


def test_if_the_training_deletes_the_checkpoint_the_next_is_loaded(load, directory):
    def delete(found):
        if found.step == 6:
            store.delete(found.path)

    model = load(delete)
    assert (model.step, model.checkpoint.later_errors) == (4, ())
    store.delete(model.checkpoint.path)
    assert model.loss(model.experiment.train_input.batch(0)) > 0  # its weights are in memory
    with pytest.raises(NoUsableCheckpoint, match=r"has no checkpoint of step 2; it has none\.$"):
        load(lambda found: store.delete(found.path), step=2)
    with pytest.raises(NoUsableCheckpoint, match="has no checkpoint yet"):
        load(lambda found: None)


def test_if_the_latest_turns_out_to_be_garbage_the_one_before_is_loaded(load):
    def destroy(found):
        if found.step == 6:
            (found.path / "tensors.index").write_bytes(b"garbage")

    model = load(destroy)
    assert model.step == 4
    assert [error.path.name for error in model.checkpoint.later_errors] == ["step_00000006"]
    with pytest.raises(DamagedCheckpoint, match="step_00000006 is damaged"):
        load(destroy, step=6)


def test_all_processes_choose_again_if_one_could_not_read(load, monkeypatch):
    class Together(type(ALONE)):
        """A process beside one that first finds its checkpoint deleted."""

        answers = [True, False]

        def any(self, flag):
            return flag or self.answers.pop(0)

    monkeypatch.setattr(Local, "join", lambda self: Together())
    seen = []
    assert load(lambda found: seen.append(found.step)).step == 6
    assert seen == [6, 6]


@pytest.fixture
def model(small, run, directory):
    params = small(max_steps=2)
    run(params, directory)
    return Trained(params, RunDirectory(directory))


def test_a_model_predicts_an_input_arrays_and_a_batch_alike(model):
    heldout = model.experiment.eval_inputs["same"]
    whole = model.predict(heldout)
    assert len(whole["tokens"]) == heldout.num_examples() == len(whole["example_id"])
    batches = [heldout.batch(step) for step in range(heldout.num_batches())]
    arrays = {
        name: np.concatenate([batch[name][batch["weights"] > 0] for batch in batches])
        for name in ("tokens", "segments", "positions", "targets")
    }
    for found in (model.predict(arrays), model.predict(arrays, batch_size=3), model(arrays)):
        np.testing.assert_array_equal(found["tokens"], whole["tokens"])
        np.testing.assert_allclose(found["log_probs"], whole["log_probs"], rtol=1e-5)
    total = -(whole["target_log_probs"] * (arrays["segments"] > 0)).sum()
    mean = total / (arrays["segments"] > 0).sum()
    assert mean == pytest.approx(model.evaluate()["same"]["loss"], rel=1e-5)


def test_results_are_streamed_a_batch_at_a_time(model):
    heldout = model.experiment.eval_inputs["same"]
    batches = model.predict(heldout, batch_size=2, stream=True)
    assert isinstance(batches, types.GeneratorType)
    sizes = [len(batch["tokens"]) for batch in batches]
    number = heldout.num_examples()
    assert sizes == [2] * (number // 2) + [1] * (number % 2)


def test_a_mistake_in_what_to_predict_is_told_before_the_first_result(model):
    experiment = model.experiment
    for inputs, options, message in (
        (experiment.train_input, {}, "TextInput repeats without end: set repeat=False"),
        (
            [1, 2],
            {},
            "predict takes an Input, a dict of arrays, or the path of files, got a list: ",
        ),
        ({}, {"batch_size": 0}, "batch_size=0 is not a positive int"),
        ({}, {"batch_size": True}, "batch_size=True is not a positive int"),
        ({"token": []}, {}, "no input of the experiment has an array 'token'. Did you mean"),
    ):
        with pytest.raises(ParamError) as error:
            model.predict(inputs, stream=True, **options)
        assert message in str(error.value)
    with pytest.raises(ParamError, match="a batch is a dict of arrays, got list"):
        model([1, 2])


def test_weights_are_those_of_each_layer_as_saved(model, directory, weights, small):
    saved = weights(directory)
    names = [name.removeprefix("weights/") for name in saved if name.startswith("weights/")]
    assert sorted(model.weights) == sorted(names)
    stacked = small(max_steps=2)
    stacked.task.model.stack = Repeat.params(
        layer=stacked.task.model.stack.layer, num_layers=stacked.task.model.stack.num_layers
    )
    for found in (model.weights, Trained(stacked, RunDirectory(directory)).weights):
        assert len(found) == len(names)
        for name in names:
            np.testing.assert_array_equal(found[name], saved[f"weights/{name}"])
    with pytest.raises(KeyError, match=r"there is no weight 'model/embeding/table'\. Did you mean"):
        model.weights["model/embeding/table"]
    assert "model/norm" not in model.weights
    with pytest.raises(ValueError, match="read-only"):
        model.weights[names[0]][:] = 0
    assert repr(model.weights) == f"<{len(names)} weights, by path>"


def test_where_evaluations_use_averages_they_are_the_weights(small, run, directory, weights):
    params = small(max_steps=2)
    params.evaluate.weights = "ema"
    run(params, directory)
    model, saved = Trained(params, RunDirectory(directory)), weights(directory)
    for name, value in model.weights.items():
        np.testing.assert_array_equal(value, saved[f"slots/ema/{name}"])
