"""Networks learn from images whose rows are split over devices what they learn on one device.

The networks are those of the experiments, with fewer channels, and of ResNet-50 one block of each
stage: stem, strides, pools, maps and heads are as there. Before them a weight is added to the
images, whose gradient is that of the images, summed over the batch.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from lingo import layers as nn
from lingo import models
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers.initial import ZEROS
from lingo.layers.window import annotate_image
from lingo.learner.state import Learner, initial_state
from lingo.models.detection.ssd import SSD300, resnet34_trunk, ssd300_extras
from lingo.models.image.resnet import STAGES, resnet
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from tasks.detection.task import ObjectDetection
from tasks.image.segmentation import Segmentation
from tasks.image.task import ImageClassification

B, K, STEPS = 2, 3, 5
MESHES = {"half of a batch": {"data": 2, "height": 4}, "rows alone": {"height": 8}}


@pytest.fixture(autouse=True)
def _programs_of_one_test():
    """JAX keeps what it has compiled."""
    yield
    jax.clear_caches()


class Shift(nn.Layer):
    """Adds a weight to images: its gradient is theirs."""

    shape: tuple[int, ...]  # of an image

    def setup(self) -> None:
        self.shift = self.weight(
            "shift", self.p.shape, axes=(None,) * len(self.p.shape), init=ZEROS
        )

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return annotate_image(x + self.shift)

    def output_shape(self, shape: Any) -> Any:
        return shape


def classifier(shape: tuple[int, ...]) -> Params:
    """Returns ResNet-50 with one block of each stage."""
    layers = resnet(num_layers=50, num_classes=K, width=4, channels=shape[-1])
    _, stages = STAGES[50]
    firsts = [2 + sum(stages[:i]) for i in range(len(stages))]
    layers = [*layers[:2], *(layers[i] for i in firsts), layers[-1]]
    model = nn.Chain.params(layers=[Shift.params(shape=shape), *layers])
    return ImageClassification.params(model=model, num_classes=K, image_shape=shape)


def detector(shape: tuple[int, ...]) -> Params:
    """Returns SSD300 with a sixteenth of its channels."""
    trunk, extras = resnet34_trunk(), ssd300_extras()
    for layer in [*trunk.layers, *extras]:
        for field in ("dim", "hidden_dim", "output_dim"):
            if hasattr(layer, field) and getattr(layer, field) != shape[-1]:
                layer.set(**{field: getattr(layer, field) // 16})
    trunk.layers = [Shift.params(shape=shape), *trunk.layers]
    model = models.Ssd.params(trunk=trunk, extras=extras, **SSD300)
    return ObjectDetection.params(model=model, num_classes=K, image_shape=shape)


def segmenter(shape: tuple[int, ...]) -> Params:
    unet = models.UNet3D.params(dim=shape[-1], num_classes=K, width=2, num_levels=3)
    model = nn.Chain.params(layers=[Shift.params(shape=shape), unet])
    return Segmentation.params(model=model, num_classes=K, volume_shape=shape)


def classes(draw: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {"labels": draw.integers(0, K, [STEPS, B], np.int32)}


def voxels(draw: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {"labels": draw.integers(0, K, [STEPS, B, *shape[:-1]], np.int32)}


def objects(draw: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Returns an object for the anchors of each map."""
    sides = np.array([0.12, 0.25, 0.4, 0.6, 0.8, 0.95])[:, None]
    corners = draw.uniform(size=[STEPS, B, len(sides), 2]) * (1 - sides)
    boxes = np.concatenate([corners, corners + sides], -1).astype("f")
    return {"boxes": boxes, "box_labels": draw.integers(1, K + 1, boxes.shape[:-1], np.int32)}


class Case(NamedTuple):
    """A network, what its batches have besides images, the shape of an image, and a rate."""

    task: Callable[[tuple[int, ...]], Params]
    truth: Callable[[np.random.Generator, tuple[int, ...]], dict[str, np.ndarray]]
    shape: tuple[int, ...]
    learning_rate: float


CASES = {
    "resnet, 64 rows": Case(classifier, classes, (64, 48, 3), 0.1),
    "resnet, 75 rows": Case(classifier, classes, (75, 50, 3), 0.1),
    "ssd, 304 rows": Case(detector, objects, (304, 264, 3), 0.002),
    "ssd, 300 rows": Case(detector, objects, (300, 264, 3), 0.002),
    "unet, 16 rows": Case(segmenter, voxels, (4, 16, 8, 1), 0.3),
    "unet, 10 rows": Case(segmenter, voxels, (5, 10, 6, 1), 0.3),
}


class Trained(NamedTuple):
    """What some steps computed."""

    losses: list[float]
    states: list[dict[str, np.ndarray]]  # weights and moving statistics at the start, and of steps


@functools.cache
def train(name: str, **mesh: int) -> Trained:
    case = CASES[name]
    task = case.task(case.shape)
    task.all(nn.BatchNorm).set(statistics_over=2, epsilon=0.1)
    learner = Learner(task.build(), Sgd.params(learning_rate=case.learning_rate).build())
    state = initial_state(learner)
    weights = {path: _far_from_corners(path, value) for path, value in state.weights.items()}
    runtime = Mesh.params(**mesh) if mesh else Local.params()
    program: Any = runtime.build().start(learner, state._replace(weights=weights))
    losses, states = [], [arrays(program)]
    for step in range(STEPS):
        batch = {key: value[step : step + 1] for key, value in batches(case).items()}
        losses.append(float(np.asarray(program.train(batch)["scalars"]["loss/total"])[0]))
        states.append(arrays(program))
    return Trained(losses, states)


def _far_from_corners(path: str, value: np.ndarray) -> np.ndarray:
    """Returns weights of norms with which few ReLUs are near their corner.

    Of a million, rounding puts some on the other side, and gradients then differ by percents, also
    on one device for images that differ by 1e-7. After the stem, where a maximum comes next, values
    near each other would do the same.
    """
    kind = path.split("/")[-1]
    if kind not in ("gamma", "beta") or path.endswith(f"layers/1/norm/{kind}"):
        return value
    return np.full_like(value, {"gamma": 0.1, "beta": 0.5}[kind])


def arrays(program: Any) -> dict[str, np.ndarray]:
    state = program.state()
    return {path: np.array(value) for path, value in {**state.weights, **state.state}.items()}


def batches(case: Case) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {
        "images": draw.normal(size=[STEPS, B, *case.shape]).astype("f"),
        "weights": np.ones([STEPS, B], "f"),
        "rows": np.tile(np.arange(B, dtype=np.int32), [STEPS, 1]),
        **case.truth(draw, case.shape),
    }


"""Images and volumes, with rows that do not divide, which are more difficult."""


@pytest.mark.parametrize(("name", "mesh"), [*itertools.product(CASES, MESHES)])
def test_five_steps_and_gradients_of_images_are_those_of_one_device(name: str, mesh: str) -> None:
    one, many = train(name), train(name, **MESHES[mesh])
    assert len(set(one.losses)) == STEPS
    np.testing.assert_allclose(many.losses, one.losses, rtol=1e-5)
    start = one.states[0]
    for step, state in enumerate(one.states):
        for path, value in state.items():
            if step > 1 and "/moving_" not in path:  # by then, a ReLU may be on its other side
                continue
            change = np.abs(value - start[path]).max()
            assert change > 0 or step == 0 or not path.endswith("/w"), path
            tolerance = 1e-6 * np.abs(value).max() + 5e-4 * change
            error = np.abs(many.states[step][path] - value).max()
            assert error <= tolerance, (step, path, error, change)
    (path,) = (path for path in start if path.endswith("/shift"))  # 0: now gradients, times a rate
    expected, found = one.states[1][path], many.states[1][path]
    assert np.count_nonzero(expected) > expected.size / 2
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
