"""Segmentation: its loss and metrics against NumPy, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.layers.vision.conv import Conv3D
from lingo.learner.state import initial_value
from lingo.metrics.results import read_state
from tasks.image.segmentation import Segmentation

SHAPE, K, B = (2, 3, 4, 1), 3, 2


def segmentation(**fields):
    model = Conv3D.params(dim=1, output_dim=K)
    fields = {"model": model, "num_classes": K, "volume_shape": SHAPE} | fields
    return Segmentation.params(**fields).build()


def batch():
    draw = np.random.default_rng(0)
    return {
        "images": draw.normal(size=[B, *SHAPE]).astype("f"),
        "labels": draw.integers(0, K, [B, *SHAPE[:-1]], np.int32),
        "weights": np.array([1, 0.5], "f"),
    }


def test_loss_and_metrics_are_those_of_numpy():
    task, tensors = segmentation(), tf.nest.map_structure(tf.constant, batch())
    values = {path: initial_value(spec, 0) for path, spec in task.weights().items()}
    arrays, weights = batch(), batch()["weights"]
    logits, _ = context.apply(task.model, values, tensors["images"])
    logits, labels = logits.numpy().astype("d"), arrays["labels"]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(log_probs, labels[..., None], -1)[..., 0].mean(axis=(1, 2, 3))
    guesses = logits.argmax(-1)
    expected = {
        "loss": (losses * weights).sum() / 1.5,
        "accuracy": ((guesses == labels).mean(axis=(1, 2, 3)) * weights).sum() / 1.5,
    }
    both, either = (
        ((f(guesses > 0, labels > 0)).sum(axis=(1, 2, 3)) * weights).sum()
        for f in (np.logical_and, lambda a, b: a.astype("i") + b)
    )
    expected["dice"] = 2 * both / either
    metrics, _ = context.apply(task, values, tensors, method="metrics")
    for name, value in expected.items():
        state = {part: np.asarray(x, "d") for part, x in metrics[name].items()}
        assert read_state(name, state)[name] == pytest.approx(value, rel=1e-5)
    loss, _ = context.apply(task, values, tensors, method="loss")
    denominators = task.loss_denominators(tensors)
    found = loss["cross_entropy"] / denominators["cross_entropy"]
    assert float(found) == pytest.approx(expected["loss"], rel=1e-5)


def test_a_model_of_another_shape_is_refused():
    with pytest.raises(ParamError, match="not"):
        segmentation(model=Conv3D.params(dim=1, output_dim=K, stride=2))


def test_an_input_of_another_shape_is_refused():
    task = segmentation()
    task.check_input({"volume_shape": SHAPE, "num_classes": K})
    with pytest.raises(ParamError, match=r"task\.num_classes=3, but the input has 4"):
        task.check_input({"volume_shape": SHAPE, "num_classes": 4})
    with pytest.raises(ParamError, match="but the input has None"):
        task.check_input({"image_shape": (4, 4, 1)})
