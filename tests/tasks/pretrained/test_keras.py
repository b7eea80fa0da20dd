"""Networks of keras.applications: the same logits, from each of Keras's formats."""

from __future__ import annotations

import pathlib
from typing import Any

import keras
import numpy as np
import pytest

from lingo.checkpoints.sources.warm_start import WarmStart, weight_shapes
from lingo.export.hugging_face import ignored_tensors, layout_tensors
from tasks.pretrained.architecture import find_architecture
from tasks.pretrained.names import ImageLayout
from tasks.pretrained.read import read_image_model
from tests.tasks.pretrained.test_names import build_task, compute_logits


def make_model(name: str, size: tuple[int, int], gain: float) -> Any:
    """Returns a network of ten classes whose weights are drawn, its levels excepted."""
    random = np.random.default_rng(0)
    model = getattr(keras.applications, name)(
        weights=None, classes=10, input_shape=(*size, 3), classifier_activation=None
    )
    for layer in model.layers:
        for weight in () if layer.name.startswith("normalization") else layer.weights:
            values = random.standard_normal(weight.shape).astype("f")
            shape = weight.shape[:-2] if "dwconv" in layer.name else weight.shape[:-1]
            if weight.name == "kernel":
                values *= np.sqrt(gain / np.prod(shape))
            elif weight.name == "moving_variance":
                values = np.exp(0.3 * values)
            else:
                values = 0.1 * values + (weight.name == "gamma")
            weight.assign(values)
    return model


@pytest.mark.parametrize(
    ("name", "size", "gain"),
    [
        ("ResNet50", (64, 64), 1.15),
        ("EfficientNetB0", (64, 96), 2.4),
        ("EfficientNetB0", (75, 64), 2.4),
    ],
)
def test_a_network_computes_the_logits_of_keras(
    name: str, size: Any, gain: float, tmp_path: pathlib.Path
) -> None:
    model, images = (
        make_model(name, size, gain),
        np.random.default_rng(1).normal(size=[2, *size, 3]),
    )
    images = images.astype("f")
    # Keras's ResNets read blue first, and its EfficientNets divide levels by 255
    theirs = images[..., ::-1] if name == "ResNet50" else 255 * images
    expected = model(theirs, training=False).numpy()
    assert np.abs(expected[0] - expected[1]).max() > 0.1
    model.save_weights(tmp_path / "a.weights.h5")
    model.save(tmp_path / "a.keras")
    layout = ImageLayout.params(architecture=f"keras.{name}")
    task = build_task(f"keras.{name}", size)
    tensors = []
    for file in (tmp_path / "a.weights.h5", tmp_path / "a.keras"):
        transfer = (
            WarmStart.params(path=str(file), layout=layout).build().transfer(weight_shapes(task))
        )
        weights = {weight: transfer.value(weight) for weight in transfer.reads}
        found = compute_logits(task, weights, images)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
        built = layout.build()
        tensors.append(layout_tensors(built, task, weights) | ignored_tensors(built, file))
    for layer in model.layers:
        for weight in layer.weights:
            value = tensors[0][f"{layer.name}/{weight.name}"]
            np.testing.assert_array_equal(value, weight.numpy(), err_msg=weight.path)
            np.testing.assert_array_equal(value, tensors[1][f"{layer.name}/{weight.name}"])


def test_levels_of_pixels_are_those_of_the_file(tmp_path: pathlib.Path) -> None:
    model = keras.applications.EfficientNetB0(weights=None, classes=2, input_shape=(32, 32, 3))
    layer = next(one for one in model.layers if one.name.startswith("normalization"))
    file = str(tmp_path / "a.weights.h5")
    published = [0.229, 0.224, 0.225]
    for variance, std in (([1.0] * 3, [1.0] * 3), ([0.25] * 3, [0.5] * 3), (published, published)):
        layer.weights[0].assign([0.4, 0.5, 0.6])
        layer.weights[1].assign(variance)
        model.save_weights(file, overwrite=True)
        read = read_image_model(file, "keras.EfficientNetB0")
        np.testing.assert_allclose(read.mean, [0.4, 0.5, 0.6], rtol=1e-6)
        np.testing.assert_allclose(read.std, std, rtol=1e-6)
    assert (read.num_classes, read.image_size) == (2, 224)


def test_a_resnet_of_keras_subtracts_means_of_red_green_and_blue() -> None:
    """`preprocess_input` subtracts 103.939, 116.779 and 123.68 from blue, green and red."""
    pixels = np.arange(24, dtype="f").reshape(1, 2, 4, 3)
    expected = keras.applications.resnet.preprocess_input(pixels.copy())[..., ::-1]
    mean, std = np.array(find_architecture("keras.ResNet50").levels)
    np.testing.assert_allclose((pixels / 255 - mean) / std, expected, rtol=1e-4)
