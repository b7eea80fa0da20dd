"""The label decides between classes and a number, with losses and metrics of slow NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.learner.state import initial_value
from lingo.learner.step import evaluate_batch, predict_batch
from tasks.click.model import Mlp
from tasks.table.task import TablePrediction

B = 12
DRAW = np.random.RandomState(0)
BATCH: dict[str, Any] = {
    "numbers": DRAW.normal(size=(B, 3)).astype("f"),
    "labels": DRAW.randint(0, 3, B).astype("i"),
    "targets": (100 + 10 * DRAW.normal(size=B)).astype("f"),
    "weights": np.array([1] * 9 + [0] * 3, "f"),
    "rows": np.arange(B, dtype="i"),
}
REAL = BATCH["weights"] > 0


def build(**fields: Any) -> TablePrediction:
    params: Params = TablePrediction.params(num_numbers=3, category_sizes=(), **fields)
    params.all(Mlp).set(output_dims=(4,))
    return params.build()


def compute(task: TablePrediction, **state: float) -> tuple[dict[str, Any], dict[str, float]]:
    """Returns predictions and metrics of the batch, with the given states of the target."""
    weights = {k: tf.constant(initial_value(spec, 0)) for k, spec in task.weights().items()}
    states = {k: tf.constant(initial_value(spec, 0)) for k, spec in task.states().items()}
    states |= {f"target/{name}": tf.constant([value]) for name, value in state.items()}
    batch = {name: tf.constant(value) for name, value in BATCH.items()}
    found = predict_batch(task, weights, states, batch)
    sums = evaluate_batch(task, weights, states, batch)
    metrics = {
        n: task.read_metric(n, tf.nest.map_structure(np.asarray, s)) for n, s in sums.items()
    }
    flat = {name: value for one in metrics.values() for name, value in one.items()}
    return {name: value.numpy() for name, value in found.items()}, task.results(flat)


def test_classes_have_a_cross_entropy_and_an_accuracy() -> None:
    found, metrics = compute(build(class_names=("a", "b", "c")))
    logits, labels = found["logits"][REAL].astype("d"), BATCH["labels"][REAL]
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    loss = -log_probs[np.arange(9), labels].mean()
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-6)
    assert metrics["accuracy"] == (logits.argmax(1) == labels).mean()
    np.testing.assert_array_equal(found["labels"], found["logits"].argmax(1))


def test_numbers_have_errors_in_units_of_the_label() -> None:
    found, metrics = compute(build(), mean=100.0, scale=10.0)
    values, targets = found["values"][REAL].astype("d"), BATCH["targets"][REAL].astype("d")
    errors = values - targets
    np.testing.assert_allclose(metrics["mae"], np.abs(errors).mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["rmse"], np.sqrt((errors**2).mean()), rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"], (errors**2).mean() / 100, rtol=1e-5)
    r2 = 1 - (errors**2).sum() / ((targets - targets.mean()) ** 2).sum()
    np.testing.assert_allclose(metrics["r2"], r2, rtol=1e-4)
    assert {*metrics} == {"mae", "rmse", "loss", "r2"}


def test_equal_targets_have_no_r2() -> None:
    found = build().results({"mse": 4.0, "target": 1.0, "target_square": 1.0})
    assert found["rmse"] == 2.0
    assert np.isnan(found["r2"])


def test_a_confusion_is_shown_with_names() -> None:
    _, metrics = compute(build(class_names=("a", "b", "c"), confusion=True))
    assert {"loss", "accuracy"} < {*metrics}
    with pytest.raises(ParamError, match="confusion=True needs classes"):
        build(confusion=True)


@pytest.mark.parametrize(
    ("offers", "error"),
    [
        ({}, "the input is no table"),
        (
            {"num_numbers": 4, "category_sizes": (), "class_names": ()},
            "task.num_numbers=3, but the input has 4",
        ),
        (
            {"num_numbers": 3, "category_sizes": (), "class_names": ("x", "y")},
            r"task.class_names=\(\), but the input has \('x', 'y'\)",
        ),
    ],
)
def test_an_input_with_other_columns_is_refused(offers, error: str) -> None:
    with pytest.raises(ParamError, match=error):
        build().check_input(offers)
