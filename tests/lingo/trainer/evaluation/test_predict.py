"""Predictions are those of the bare model, whatever the batches; mistakes in arrays are told."""

import re
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.data import read_table
from lingo.data.input import Input
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.learner.fit import fit_layers, layers_to_fit, training_examples
from lingo.learner.state import initial_state
from lingo.learner.step import predict_batch
from lingo.learner.task import Task
from lingo.optim.sgd import Sgd
from lingo.runtimes.replicated.replicated import Replicated
from lingo.trainer.evaluation.predict import (
    concatenate,
    convert_arrays,
    predict_arrays,
    predict_batches,
    predict_input,
)
from tasks.table.task import TablePrediction

NUM = 7  # examples
POINTS = np.random.default_rng(0).normal(size=[NUM, 3]).astype("f")


class Points(Input):
    """Seven points; what follows them is not a number."""

    def prepare(self, *, progress: Any = None) -> None:
        pass

    def num_examples(self) -> int:
        return NUM

    def specs(self) -> Any:
        return {**super().specs(), "x": ((self.p.batch_size, 3), "float32")}

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        rows = POINTS[numbers % NUM].copy()
        rows[numbers >= NUM] = np.nan
        return {"x": rows}


class Fit(Task):
    """A linear map of points."""

    body: Layer = Linear.params(output_dim=2, use_bias=False)

    def setup(self) -> None:
        self.body = self.p.body.build(dim=3)

    def loss(self, batch: Any) -> dict[str, tf.Tensor]:
        return {"loss": tf.reduce_sum(self.body(batch["x"]) * batch["weights"][:, None])}

    def predict(self, batch: Any) -> dict[str, tf.Tensor]:
        y = self.body(batch["x"])
        return {"y": y, "half": tf.cast(y, tf.bfloat16), "is_large": y[:, 0] > 0}


class Silent(Fit):
    """Says nothing."""

    predict = Task.predict


class Wrong(Fit):
    """Says something else."""

    result: str  # what

    def predict(self, batch: Any) -> Any:
        y = self.body(batch["x"])
        return {
            "none": {},
            "mean": {"y": tf.reduce_mean(y)},
            "one": {"y": y[:1]},
            "weights": {"weights": y},
            "text": {"y": tf.strings.as_string(y)},
        }[self.p.result]


def build(task: Any = Fit, **changes: Any) -> Experiment:
    return Experiment.params(
        task=task,
        train_input=Points.params(batch_size=4),
        eval_inputs={"all": Points.params(batch_size=4, repeat=False)},
        optimizer=Sgd.params(learning_rate=0.1),
        **changes,
    ).build()


def start(experiment: Experiment) -> Any:
    return experiment.runtime.start(experiment.learner, initial_state(experiment.learner))


@pytest.fixture(scope="module")
def fit() -> Any:
    """An experiment, its program, and what NumPy computes."""
    experiment = build()
    program = start(experiment)
    (weight,) = program.state().weights.values()
    return experiment, program, POINTS @ weight


@pytest.mark.parametrize("batch_size", [1, 3, 4, 9])
def test_predictions_are_the_models_own_without_padding_in_the_order_of_the_input(fit, batch_size):
    experiment, program, y = fit
    input = Points.params(batch_size=batch_size, repeat=False).build()
    counts: list[Any] = []
    batches = [*predict_input(experiment, program, input, progress=lambda *n: counts.append(n))]
    assert len(batches) == input.num_batches()
    assert counts[-1] == (len(batches),) * 2
    found = concatenate(batches)
    np.testing.assert_allclose(found["y"], y, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["is_large"], found["y"][:, 0] > 0)
    np.testing.assert_array_equal(found["example_id"], np.arange(NUM))
    assert {k: v.dtype.name for k, v in found.items()} == {
        "y": "float32", "half": "float32", "is_large": "bool", "example_id": "int64"
    }  # fmt: skip


@pytest.mark.parametrize("batch_size", [1, 3, 7, 9])
def test_arrays_are_cut_into_batches_of_one_size(fit, batch_size):
    experiment, program, y = fit
    traces = program._predict.experimental_get_tracing_count()
    arrays = convert_arrays(experiment, {"x": POINTS.astype(np.float64).tolist()})
    found = concatenate(predict_arrays(experiment, program, arrays, batch_size=batch_size))
    np.testing.assert_allclose(found["y"], y, rtol=1e-5, atol=1e-6)
    assert found.keys() == {"y", "half", "is_large"}
    assert program._predict.experimental_get_tracing_count() <= traces + 1


def test_nothing_is_computed_before_it_is_asked_for(fit):
    experiment, program, _ = fit
    input = Points.params(batch_size=1, repeat=False).build()
    made: list[int] = []

    class Counting(Points):
        def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
            made.append(int(numbers[0]))
            return input.examples(numbers)

    batches = predict_input(
        experiment, program, Counting.params(batch_size=1, repeat=False).build()
    )
    assert made == []
    next(batches)
    batches.close()
    assert made[0] == 0
    assert len(made) <= 4  # one is in use, at most two wait, one is being made


def test_averaged_weights_are_used_where_evaluations_use_them():
    params = build().p.copy()
    params.optimizer.ema_decay = 0.5
    params.evaluate.weights = "ema"
    experiment = params.build()
    program = start(experiment)
    (before,) = program.state().weights.values()
    batches = {k: v[None] for k, v in experiment.train_input.batch(0).items()}
    program.train(batches)
    (weight,), (slots,) = program.state().weights.values(), program.state().slots.values()
    arrays = {"x": POINTS}
    (found,) = predict_arrays(experiment, program, arrays, batch_size=NUM)
    np.testing.assert_allclose(found["y"], POINTS @ slots["ema"], rtol=1e-5, atol=1e-6)
    assert np.abs(slots["ema"] - weight).max() > 1e-3 < np.abs(slots["ema"] - before).max()


def test_replicas_say_what_one_device_says(fit):
    _, _, y = fit
    experiment = build(runtime=Replicated.params())
    program = start(experiment)
    found = concatenate(predict_input(experiment, program, experiment.eval_inputs["all"]))
    np.testing.assert_allclose(found["y"], y, rtol=1e-5, atol=1e-6)
    assert found["is_large"].dtype == bool


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "there is no example to predict"),
        ({"x": np.zeros([0, 3])}, "there is no example to predict"),
        ({"X": POINTS}, "no input of the experiment has an array 'X'. Did you mean 'x'? There are"),
        ({"x": POINTS[0]}, "'x' has shape [3], but needs 2 axes: experiment.train_input.batch(0)"),
        ({"x": POINTS, "weights": np.ones(6)}, "'weights' has 6 examples, but 'x' has 7"),
        ({"x": np.array([["a"] * 3])}, "'x' is <U1, but needs float32, and not all of its"),
        ({"rows": [2**40]}, "'rows' is int64, but needs int32, and not all of its values"),
        ({"rows": [0.5]}, "'rows' is float64, but needs int32"),
        ({"rows": [np.nan]}, "'rows' is float64, but needs int32"),
        ({"x": [[1.0], [1.0, 2.0]]}, "'x' has rows that differ in length: cut or pad them to"),
    ],
)
def test_a_mistake_in_arrays_is_told_before_anything_is_computed(fit, arrays, message):
    with pytest.raises(ParamError, match=re.escape(message)):
        convert_arrays(fit[0], arrays)


@pytest.mark.parametrize("row", [np.int64(5), 5.0, True])
def test_numbers_convert_where_no_value_changes_and_floats_are_rounded(fit, row):
    found = convert_arrays(fit[0], {"x": [[1, 2, 3]], "rows": np.array([row])})
    assert {k: v.dtype.name for k, v in found.items()} == {"x": "float32", "rows": "int32"}
    assert found["rows"] == row
    assert convert_arrays(fit[0], {"x": [[0.1] * 3]})["x"][0, 0] == np.float32(0.1)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"weights": np.ones(2, "f")},
            r"the batch has no 'x', but example_id, rows, weights\. experiment\.train_input",
        ),
        (
            {"x": np.ones([2, 5], "f")},
            r"'x' has shape \[2, 5\], in training \[4, 3\], and the model cannot compute it: \w+",
        ),
    ],
)
def test_what_the_model_cannot_compute_is_told_by_the_arrays_name(fit, arrays, message):
    experiment, program, _ = fit
    with pytest.raises(ParamError, match=message):
        [*predict_arrays(experiment, program, arrays, batch_size=2)]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("none", r"Wrong\.predict returned nothing: it returns \{name: \[B, ...\] tensor\}"),
        (
            "mean",
            r"returned a float32 tensor of shape \(\) as 'y': numbers with an entry for each",
        ),
        ("one", r"returned a float32 tensor of shape \(1, 2\) as 'y': .* example, \[4, ...\], are"),
        ("text", r"returned a string tensor of shape \(4, 2\) as 'y': numbers with an entry"),
        ("weights", "'weights' is the name of an array of a batch: rename yours"),
    ],
)
def test_a_task_that_says_something_else_is_told_so(result, message):
    experiment = build(Wrong.params(result=result))
    state = initial_state(experiment.learner)
    batch = {k: tf.constant(v) for k, v in experiment.train_input.batch(0).items()}
    weights = {where: tf.constant(np.asarray(value)) for where, value in state.weights.items()}
    with pytest.raises(ParamError, match=message):
        predict_batch(experiment.task, weights, {}, batch)


def test_a_task_without_predictions_says_what_to_define():
    experiment = build(Silent)
    with pytest.raises(ParamError, match="Silent has no `predict`: it returns"):
        [*predict_input(experiment, start(experiment), experiment.eval_inputs["all"])]


def test_batches_of_several_shapes_are_not_concatenated():
    batches = [{"y": np.zeros([2, 3])}, {"y": np.zeros([2, 4])}]
    with pytest.raises(ParamError, match=r"'y' has shape \[2, 3\] in one batch and \[2, 4\] in an"):
        concatenate(batches)


# ---- rows of tables ------------------------------------------------------------------------------


class Frame:
    """What lingo asks of a data frame of pandas or polars."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns, self._values = list(columns), columns

    def __getitem__(self, name: str) -> np.ndarray:
        return np.array(self._values[name], object)

    def to_dict(self) -> None:
        raise NotImplementedError


def test_rows_of_a_table_are_given_by_column(tmp_path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("\n".join(["x,kind,y", *(f"{i},{'ab'[i % 2]},{i % 2}" for i in range(12))]))
    data = read_table(file, label="y", batch_size=4)
    experiment = Experiment.params(
        task=TablePrediction,
        train_input=data,
        eval_inputs={"same": data.copy().set(repeat=False)},
        optimizer=Sgd.params(learning_rate=0.1),
    ).build()
    layers, start = layers_to_fit(experiment.task), initial_state(experiment.learner)
    fitted = fit_layers(experiment.task, layers, start, training_examples(experiment.train_input))
    state = initial_state(experiment.learner, fitted.get)
    program = experiment.runtime.start(experiment.learner, state)

    def predict(inputs: Any, **options: Any) -> dict[str, np.ndarray]:
        return concatenate(predict_batches(experiment, program, inputs, **options))

    rows = {"x": [0, 5, 3.5], "kind": ["a", "b", "c"]}
    found = predict(rows)
    assert found["unknown_categories"].tolist() == [0, 0, 1]
    assert {*found} == {"logits", "labels", "unknown_categories"}
    for same in (predict(rows, batch_size=2), predict(Frame(rows))):
        np.testing.assert_allclose(same["logits"], found["logits"], atol=1e-6)
    one = predict({"x": 5, "kind": "b"})
    np.testing.assert_allclose(one["logits"], found["logits"][1:2], atol=1e-6)
    arrays = {k: v for k, v in experiment.train_input.batch(0).items() if k[0] in "nc"}
    assert len(predict(arrays)["labels"]) == 4  # encoded arrays still are what they were
