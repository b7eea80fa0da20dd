"""Operations that XLA would differentiate wrongly are refused."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import Chain, ImageHead, Layer
from lingo.layers.keras import Keras
from lingo.learner.state import Learner, initial_state
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from tasks.image.task import ImageClassification

BOTH = Mesh.params(data=2, model=2)  # two devices have the same half of a batch
IMAGES = np.random.default_rng(0).normal(size=[1, 4, 3, 3, 4]).astype("f")


def depthwise() -> Any:
    return keras.Sequential([keras.Input((3, 3, 4)), keras.layers.DepthwiseConv2D(2, name="own")])


def grouped() -> Any:
    return keras.Sequential([keras.Input((3, 3, 4)), keras.layers.Conv2D(4, 2, groups=2)])


class Smooth(Layer):
    """A layer of a user's own."""

    dim: int  # channels

    def setup(self) -> None:
        self.w = self.weight("w", [2, 2, self.p.dim, 1], axes=(None,) * 4)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.depthwise_conv2d(x, self.w, [1, 1, 1, 1], "SAME")

    def output_shape(self, shape: Any) -> Any:
        return shape


def weights(layer: Params, runtime: Params) -> dict[str, np.ndarray]:
    """Returns the weights after a step of a layer with a head."""
    model = Chain.params(layers=[layer, ImageHead.params(dim=4, num_classes=3)])
    task = ImageClassification.params(model=model, num_classes=3, image_shape=(3, 3, 4))
    learner = Learner(task.build(), Sgd.params(learning_rate=1.0).build())
    program = runtime.build().start(learner, initial_state(learner))
    rows = np.arange(4, dtype="i")[None]
    batch = {"labels": rows % 3, "weights": np.ones([1, 4], "f"), "rows": rows}
    program.train({"images": IMAGES, **batch})
    return {name: np.asarray(value) for name, value in program.state().weights.items()}


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (Keras.params(factory=depthwise), r"layers/0 \(Keras\): own of Keras"),
        (Keras.params(factory=grouped), r"layers/0 \(Keras\): conv2d of Keras"),
        (Smooth.params(dim=4), r"layers/0 \(Smooth\)"),
    ],
    ids=["depthwise", "grouped", "own"],
)
def test_they_are_refused_where_devices_have_the_same_part_of_a_batch(layer, name):
    with pytest.raises(ParamError, match=rf"{name} convolves channels in groups.*Mesh\(data=4\)"):
        weights(layer, BOTH)


@pytest.mark.parametrize("axes", [{"data": 4}, {"model": 2}], ids=["data", "model"])
def test_elsewhere_they_are_trained_as_on_one_device(axes):
    layer = Keras.params(factory=depthwise)
    expected = weights(layer, Local.params())
    for name, value in weights(layer, Mesh.params(**axes)).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)


def pooled() -> Any:
    return keras.Sequential([keras.Input((3, 3, 4)), keras.layers.MaxPooling2D(2, strides=1)])


@pytest.mark.parametrize("layer", [Keras.params(factory=pooled), Smooth.params(dim=4)])
def test_windows_that_know_nothing_of_split_images_are_refused(layer):
    with pytest.raises(ParamError, match=r"layers/0 .*of images whose rows or columns are split"):
        weights(layer, Mesh.params(height=2))
