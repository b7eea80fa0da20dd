"""Image classification: the loss and the metrics, against NumPy, and a step of training.

Axes: B batch, K classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.contract import Experiment
from lingo.data import ImageInput, TextInput
from lingo.layers import BatchNorm, Chain, Layer, ReductionCell, context
from lingo.layers.vision.amoebanet import AmoebaNetHead, AmoebaNetStem
from lingo.learner.state import Learner, initial_state, load_arrays
from lingo.learner.step import evaluate_batch, train_step
from lingo.optim.sgd import Momentum
from tasks.image.task import ImageClassification

B, K = 5, 4
DRAW = np.random.default_rng(0)
BATCH = {
    "images": DRAW.normal(size=[B, 1, 1, K]).astype("f"),
    "labels": DRAW.integers(0, K, B).astype("i"),
    "weights": np.array([1, 1, 0, 1, 1], "f"),
    "rows": np.arange(B, dtype="i"),
}
LOGITS = BATCH["images"][:, 0, 0].astype(np.float64)
COUNTED = BATCH["weights"] > 0


class Pixels(Layer):
    """An image's channels are the logits."""

    def __call__(self, x: Any) -> Any:
        return x[:, 0, 0]

    def output_shape(self, shape: Any) -> tuple[int, ...]:
        return (shape[0], shape[3])


def task(**fields: Any) -> Params:
    known = {"model": Pixels, "num_classes": K, "image_shape": (1, 1, K)}
    return ImageClassification.params(**known | fields)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def call(method: str, **fields: Any) -> Any:
    batch = {k: tf.constant(v) for k, v in BATCH.items()}
    return context.apply(task(**fields).build(), {}, batch, method=method)[0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_cross_entropy_with_smoothed_labels(smoothing: float) -> None:
    target = (1 - smoothing) * np.eye(K)[BATCH["labels"]] + smoothing / K
    expected = -(target * log_softmax(LOGITS)).sum(-1)[COUNTED].sum()
    found = call("loss", label_smoothing=smoothing)
    np.testing.assert_allclose(found["cross_entropy"], expected, rtol=1e-5)
    assert call("loss_denominators")["cross_entropy"] == 4


def test_predictions_are_logits_and_the_likeliest_labels() -> None:
    found = call("predict")
    np.testing.assert_array_equal(found["logits"], LOGITS.astype("f"))
    assert found["labels"].numpy().tolist() == LOGITS.argmax(-1).tolist()


def test_metrics_are_of_plain_labels_and_of_images_that_count() -> None:
    found = call("metrics", label_smoothing=0.1)
    nats = -np.take_along_axis(log_softmax(LOGITS), BATCH["labels"][:, None], -1)[:, 0]
    right = LOGITS.argmax(-1) == BATCH["labels"]
    np.testing.assert_allclose(found["loss"]["sum"], nats[COUNTED].sum(), rtol=1e-5)
    assert found["accuracy"]["sum"] == right[COUNTED].sum()
    assert found["loss"]["weight"] == found["accuracy"]["weight"] == 4


def test_a_model_of_other_classes_is_refused() -> None:
    with pytest.raises(ParamError, match=r"the model makes \[1, 4\] of an image.*num_classes=3"):
        task(num_classes=3).build()


@pytest.mark.parametrize(
    ("offers", "message"),
    [
        ({"num_classes": K + 1, "image_shape": (1, 1, K)}, "the input has 5 classes"),
        ({"num_classes": K, "image_shape": (8, 8, 1)}, r"images of \(8, 8, 1\)"),
        ({"vocab_size": 256}, "the input has no images"),
    ],
)
def test_an_input_that_does_not_suit_is_refused(offers: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError, match=message):
        task().build().check_input(offers)
    task().build().check_input({"num_classes": K - 1, "image_shape": (1, 1, K)})


def test_a_wrong_rate_is_refused() -> None:
    with pytest.raises(ParamError, match=r"label_smoothing=1\.0 is not in \[0, 1\)"):
        task(label_smoothing=1.0).build()


def network(**batch_norm: Any) -> Params:
    """Returns a task with a network of one cell."""
    layers = [
        AmoebaNetStem.params(dim=1, output_dim=8),
        ReductionCell.params(dim=8, before_dim=8, num_filters=8),
        AmoebaNetHead.params(dim=24, num_classes=10),
    ]
    model = Chain.params(layers=layers)
    model.all(BatchNorm).set(**batch_norm)
    return ImageClassification.params(model=model, label_smoothing=0.1)


def test_an_input_fills_in_what_the_task_has_to_know() -> None:
    cfg = Experiment.params(
        task=network(),
        train_input=ImageInput.params(batch_size=4),
        optimizer=Momentum.params(learning_rate=0.1),
    )
    built = cfg.build()
    assert built.task.p.num_classes == 10
    assert built.task.p.image_shape == (8, 8, 1)
    assert built.step_flops() == 3 * built.task.model.flops([4, 8, 8, 1])
    with pytest.raises(ParamError, match="needs num_classes and image_shape"):
        cfg.copy().set(train_input=TextInput.params(batch_size=4, length=8)).build()


def stepped(accumulation_steps: int, steps: int = 2) -> dict[str, Any]:
    """Returns weights and moving statistics after steps of training, and a batch's metrics."""
    data = ImageInput.params(batch_size=8).build()
    built = network(statistics_over=2).build(**data.offers())
    optimizer = Momentum.params(learning_rate=0.1).build()
    learner = Learner(built, optimizer, accumulation_steps=accumulation_steps)
    state = tf.nest.map_structure(tf.constant, load_arrays(initial_state(learner)))
    do = tf.function(lambda state, batch: train_step(learner, state, batch)[0], autograph=False)
    for step in range(steps):
        state = do(state, {k: tf.constant(v) for k, v in data.batch(step).items()})
    batch = {k: tf.constant(v) for k, v in data.batch(steps).items()}
    metrics = evaluate_batch(built, state.weights, state.state, batch)
    return {**state.weights, **state.state, "loss": metrics["loss"]["sum"]}


def test_parts_of_a_batch_train_what_the_whole_does() -> None:
    whole, parts = stepped(1), stepped(4)
    assert whole.keys() == parts.keys()
    for name, value in whole.items():
        np.testing.assert_allclose(parts[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
