"""Networks of images learn on a mesh what they learn on one device, with whole and split images."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from lingo import layers as nn
from lingo.config.params import Params
from lingo.learner.state import Learner, initial_state
from lingo.optim import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from tasks.image.task import ImageClassification

B, H, W, STEPS = 6, 8, 5, 2
MESHES = {
    "parts of a batch": Mesh.params(data=2, model=2),
    "parts of images": Mesh.params(data=2, sequence=2, activation_rules={"height": ["sequence"]}),
}


def network() -> Params:
    """Convolutions of every kind, one after the other."""
    layers = [
        nn.ConvNorm.params(dim=1, output_dim=4),
        nn.DepthwiseConv2D.params(dim=4, stride=2),
        nn.TransposedConv2D.params(dim=4, output_dim=4),
        nn.SeparableConv2D.params(dim=4, output_dim=4, dilation=2),
        nn.ImageHead.params(dim=4, num_classes=3, dropout_rate=0.1),
    ]
    return nn.Chain.params(layers=layers)


def train(runtime: Params) -> dict[str, np.ndarray]:
    """Returns the weights after a few steps."""
    task = ImageClassification.params(model=network(), num_classes=3, image_shape=(H, W, 1))
    learner = Learner(task.build(), Sgd.params(learning_rate=0.3).build())
    draw = np.random.default_rng(0)
    batches = {
        "images": draw.normal(1.0, 1.0, [STEPS, B, H, W, 1]).astype("f"),
        "labels": draw.integers(0, 3, [STEPS, B], np.int32),
        "weights": np.ones([STEPS, B], "f"),
        "rows": np.tile(np.arange(B, dtype=np.int32), [STEPS, 1]),
    }
    program = runtime.build().start(learner, initial_state(learner))
    program.train(batches)
    return {name: np.asarray(value) for name, value in program.state().weights.items()}


@functools.cache
def on_one_device() -> dict[str, np.ndarray]:
    return train(Local.params())


@pytest.mark.parametrize("mesh", MESHES)
def test_weights_after_some_steps_are_those_of_one_device(mesh: str) -> None:
    expected, found = on_one_device(), train(MESHES[mesh])
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
