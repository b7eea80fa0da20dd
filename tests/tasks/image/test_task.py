"""Image classification: the loss and the metrics, against NumPy, and a step of training.

Axes: B batch, K classes.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from sklearn.metrics import top_k_accuracy_score

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.contract import Experiment
from lingo.data import ImageInput, TextInput
from lingo.datasets import Digits
from lingo.layers import BatchNorm, Chain, Layer, context
from lingo.learner.state import Learner, initial_state, load_arrays
from lingo.learner.step import evaluate_batch, train_step
from lingo.metrics import Accumulator, confusion_image, sample_image
from lingo.models import ReductionCell
from lingo.models.image.amoebanet import AmoebaNetHead, AmoebaNetStem
from lingo.ops import random
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


def call(method: str, batch: dict[str, np.ndarray] = BATCH, **fields: Any) -> Any:
    tensors = {k: tf.constant(v) for k, v in batch.items()}
    return context.apply(task(**fields).build(), {}, tensors, method=method)[0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_cross_entropy_with_smoothed_labels(smoothing: float) -> None:
    target = (1 - smoothing) * np.eye(K)[BATCH["labels"]] + smoothing / K
    expected = -(target * log_softmax(LOGITS)).sum(-1)[COUNTED].sum()
    found = call("loss", label_smoothing=smoothing)
    np.testing.assert_allclose(found["cross_entropy"], expected, rtol=1e-5)
    assert call("loss_denominators")["cross_entropy"] == 4


class Twice(Pixels):
    """Pixels, and an auxiliary head that knows nothing."""

    def __call__(self, x: Any) -> Any:
        return super().__call__(x), tf.zeros([B, K])

    def output_shape(self, shape: Any) -> Any:
        return (super().output_shape(shape),) * 2


def test_auxiliary_heads_have_a_loss_of_their_own_weight_and_predict_nothing() -> None:
    plain, found = call("loss"), call("loss", model=Twice)
    np.testing.assert_allclose(found["cross_entropy"], plain["cross_entropy"])
    expected = BATCH["weights"].sum() * np.log(K)
    np.testing.assert_allclose(found["auxiliary_cross_entropy"], expected, rtol=1e-6)
    built = task(model=Twice, auxiliary_weight=0.3).build()
    assert built.coefficients() == {"auxiliary_cross_entropy": 0.3}
    tf.nest.map_structure(
        np.testing.assert_array_equal, call("predict", model=Twice), call("predict")
    )


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


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_mixed_labels_is_that_of_keras(smoothing: float) -> None:
    shares = DRAW.dirichlet(np.ones(K), B).astype("f")
    found = call("loss", BATCH | {"labels": shares}, label_smoothing=smoothing)
    loss = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=smoothing, reduction="sum"
    )
    expected: Any = loss(shares[COUNTED], LOGITS[COUNTED].astype("f"))
    np.testing.assert_allclose(found["cross_entropy"], expected, rtol=1e-5)


@pytest.mark.parametrize("method", ["loss", "metrics"])
def test_whole_shares_are_labels(method: str) -> None:
    shares = np.eye(K, dtype="f")[BATCH["labels"]]
    whole, mixed = (
        call(method, BATCH | {"labels": labels}, label_smoothing=0.1)
        for labels in (BATCH["labels"], shares)
    )
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), whole, mixed)


def test_shares_of_other_classes_are_refused() -> None:
    with pytest.raises(ParamError, match=r"float32 \[5, 3\], but the task has num_classes=4"):
        call("loss", BATCH | {"labels": np.ones([B, 3], "f")})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float_class_numbers_are_refused_with_what_to_write(dtype: str) -> None:
    message = rf"^labels are {dtype}, but .* let the input give labels\.astype\(np\.int32\)$"
    with pytest.raises(ParamError, match=message):
        call("loss", BATCH | {"labels": BATCH["labels"].astype(dtype)})


def test_top5_is_that_of_sklearn_over_images_that_count() -> None:
    size, num_classes = 64, 9
    logits = DRAW.normal(size=[size, num_classes]).astype("f")
    labels = DRAW.integers(0, num_classes, size).astype("i")
    weights = (np.arange(size) < 50).astype("f")
    batch = {"images": logits[:, None, None], "labels": labels, "weights": weights}
    shape = {"num_classes": num_classes, "image_shape": (1, 1, num_classes)}
    state = call("metrics", batch, **shape)["top5"]
    expected = top_k_accuracy_score(labels[:50], logits[:50], k=5, labels=range(num_classes))
    assert state["sum"] / state["weight"] == expected < 1
    assert "top5" not in call("metrics")  # of four classes


def test_an_evaluation_counts_each_image_once_whatever_the_batches() -> None:
    data = ImageInput.params(source=Digits, batch_size=100, repeat=False, shuffle=False).build()
    built = ImageClassification.params(model=FirstPixels, confusion=True).build(**data.offers())
    sums = Accumulator()
    for step in range(data.num_batches()):
        batch = {k: tf.constant(v) for k, v in data.batch(step).items()}
        sums.add(context.apply(built, {}, batch, method="metrics")[0])
    images, labels = data.source.arrays
    found: dict[str, float] = {}
    for name, state in sums.states.items():
        found |= built.read_metric(name, state)
    assert sums.states["classes"]["confusion"].sum() == len(labels) == 1797
    logits = np.pad(images[:, 4, :, 0], ((0, 0), (0, 2)), constant_values=-1)
    assert found["accuracy"] == found["classes/accuracy"] == np.mean(logits.argmax(1) == labels)
    larger = (logits > np.take_along_axis(logits, labels[:, None], 1)).sum(1)
    assert found["top5"] == np.mean(larger < 5)


class FirstPixels(Layer):
    """Pixels of the middle row are the logits of eight digits; the others have less."""

    def __call__(self, x: Any) -> Any:
        return tf.pad(x[:, 4, :, 0], [[0, 0], [0, 2]], constant_values=-1.0)

    def output_shape(self, shape: Any) -> tuple[int, ...]:
        return (shape[0], 10)


def test_levels_are_scaled_and_normalized_by_channel() -> None:
    levels = DRAW.integers(0, 256, [B, 1, 1, K], np.uint8)
    mean, std = DRAW.uniform(0.2, 0.8, [2, K]).tolist()
    found = call("predict", BATCH | {"images": levels}, mean=tuple(mean), std=tuple(std))
    expected = (levels[:, 0, 0] / 255 - mean) / std  # close to 0 where a level is near its mean
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-5, atol=1e-6)
    found = call("predict", BATCH | {"images": levels}, mean=0.5, std=0.25)
    np.testing.assert_allclose(found["logits"], 4 * (levels[:, 0, 0] / 255 - 0.5), atol=1e-6)


def test_training_mirrors_images_by_their_numbers_alone() -> None:
    size = 400
    images = DRAW.integers(0, 256, [size, 1, 2, K], np.uint8)
    built = task(image_shape=(1, 2, K), flip_rate=0.3).build()

    def logits(rows: np.ndarray, *, step: int = 1, training: bool = True) -> np.ndarray:
        """Returns those of `Pixels`, which are the first pixel of each image."""
        call = {"training": training, "key": random.root_key(step), "rows": tf.constant(rows)}
        batch = {"images": tf.constant(images[rows])}
        return context.apply(built, {}, batch, method="predict", call=call)[0]["logits"].numpy()

    rows = np.arange(size, dtype="i")
    whole, left, right = logits(rows), *(images[:, 0, i] / np.float32(255) for i in (0, 1))
    is_mirrored = (whole == right).all(1)
    np.testing.assert_array_equal(whole[~is_mirrored], left[~is_mirrored])
    assert abs(is_mirrored.mean() - 0.3) < 0.1
    parts = [logits(rows[:7]), logits(rows[7:])]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert (logits(rows, step=2) != whole).any()
    np.testing.assert_array_equal(logits(rows, training=False), left)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mean": (0.1, 0.2)}, r"mean has 2 numbers, but image_shape=\(1, 1, 4\) has 4 channels"),
        ({"std": (0.1,) * 3}, "std has 3 numbers"),
        ({"std": 0.0}, r"std=0\.0 is not positive"),
        ({"flip_rate": 1.5}, r"flip_rate=1\.5 is not in \[0, 1\)"),
        ({"class_names": tuple("abcde")}, "class_names has 5 names, but num_classes=4"),
    ],
)
def test_numbers_that_do_not_suit_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError, match=message):
        task(**fields).build()


def test_a_confusion_counts_images_of_weight_1_and_shows_names() -> None:
    built = task(confusion=True, class_names=("cat", "dog")).build()
    state = call("metrics", confusion=True)["classes"]
    assert state["confusion"].numpy().sum() == COUNTED.sum()
    assert built.read_metric("classes", state)["classes/accuracy"] == np.mean(
        LOGITS.argmax(-1)[COUNTED] == BATCH["labels"][COUNTED]
    )
    shown = built.metric_summaries("classes", {"confusion": state["confusion"].numpy()})
    named = confusion_image(state["confusion"].numpy(), class_names=["cat", "dog", "2", "3"])
    np.testing.assert_array_equal(shown["classes/confusion"].pixels, named.pixels)


def test_images_are_shown_with_label_and_prediction() -> None:
    logits = np.log(np.array([[0.9, 0.05, 0.03, 0.02], [0.1, 0.2, 0.3, 0.4]], "f"))
    predictions = {"logits": logits, "labels": logits.argmax(-1)}
    built = task(class_names=("cat",)).build()
    images = DRAW.integers(0, 256, [2, 8, 8, 3], np.uint8)
    batch = {"images": images, "labels": np.array([0, 1], "i")}
    expected = sample_image(
        images,
        labels=["cat", "1"],
        predictions=["cat  90%", "3  40%"],
        is_right=[True, False],
    )
    shown = built.summaries(batch, predictions)["predictions"]
    np.testing.assert_array_equal(shown.pixels, expected.pixels)
    mixed = batch | {"labels": np.eye(K, dtype="f")[:2]}
    np.testing.assert_array_equal(
        built.summaries(mixed, predictions)["predictions"].pixels, expected.pixels
    )
    assert not built.summaries(batch | {"images": images[..., :2]}, predictions)


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
        train_input=ImageInput.params(source=Digits, batch_size=4),
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
    data = ImageInput.params(source=Digits, batch_size=8).build()
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


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_weights_of_classes_and_the_focal_loss_against_numpy(gamma: float) -> None:
    """The mean is over the weights, as in torch's cross_entropy(weight=...)."""
    fields: Any = {"class_weights": (1.0, 2.0, 0.5, 4.0), "focal_gamma": gamma}
    labels = BATCH["labels"]
    nats = -np.take_along_axis(log_softmax(LOGITS), labels[:, None], -1)[:, 0]
    weights = np.array(fields["class_weights"])[labels] * BATCH["weights"]
    expected = (weights * (1 - np.exp(-nats)) ** gamma * nats).sum()
    np.testing.assert_allclose(call("loss", **fields)["cross_entropy"], expected, rtol=1e-5)
    denominators = call("loss_denominators", **fields)
    np.testing.assert_allclose(denominators["cross_entropy"], weights.sum(), rtol=1e-6)
    metrics = call("metrics", **fields)
    np.testing.assert_allclose(metrics["loss/cross_entropy"]["sum"], expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"]["sum"], nats[COUNTED].sum(), rtol=1e-5)


def test_weights_of_classes_need_class_numbers_and_one_for_each() -> None:
    with pytest.raises(ParamError, match=r"class_weights has 2 numbers, but num_classes=4"):
        task(class_weights=(1.0, 2.0)).build()
    shares = np.eye(K, dtype="f")[BATCH["labels"]]
    with pytest.raises(ParamError, match="class_weights are for class numbers"):
        call("loss", BATCH | {"labels": shares}, class_weights=(1.0, 2.0, 3.0, 4.0))
