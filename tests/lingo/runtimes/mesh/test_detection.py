"""A detector learns and finds on a mesh what it does on one device, with whole and cut images."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from lingo import layers as nn
from lingo import models
from lingo.config.params import Params
from lingo.learner.state import Learner, initial_state
from lingo.optim import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from tasks.detection.task import ObjectDetection

pytestmark = pytest.mark.xdist_group("detection")  # one device computes once
B, H, W, N, STEPS = 4, 10, 8, 2, 5
MESHES = {
    "parts of a batch": Mesh.params(data=4),
    "parts of images": Mesh.params(data=2, sequence=2, activation_rules={"height": ["sequence"]}),
}
DRAW = np.random.default_rng(0)
CORNERS = DRAW.uniform(0, 0.5, [STEPS, B, N, 2])
BATCHES = {
    "images": DRAW.normal(1.0, 1.0, [STEPS, B, H, W, 1]).astype("f"),
    "boxes": np.concatenate([CORNERS, CORNERS + 0.5], -1).astype("f"),
    "box_labels": DRAW.integers(0, 4, [STEPS, B, N], np.int32),
    "example_id": np.arange(STEPS * B, dtype=np.int64).reshape(STEPS, B),
    "rows": np.tile(np.arange(B, dtype=np.int32), [STEPS, 1]),
    "weights": np.ones([STEPS, B], "f"),
}


def train(runtime: Params) -> dict[str, Any]:
    """Returns the weights after some steps, and the predictions for the first batch."""
    model = models.Ssd.params(
        trunk=nn.ConvNorm.params(dim=1, output_dim=4, stride=2),
        extras=[models.ExtraMap.params(dim=4, hidden_dim=4, output_dim=4)],
        scales=(3.0, 5.0, 8.0),
        ratios=((2.0,), ()),
    )
    task = ObjectDetection.params(
        model=model, num_classes=3, image_shape=(H, W, 1), min_score=0.3, max_detections=10
    )
    learner = Learner(task.build(), Sgd.params(learning_rate=0.02).build())
    program = runtime.build().start(learner, initial_state(learner))
    program.train(BATCHES)
    found = program.predict({name: array[0] for name, array in BATCHES.items()})
    return {name: np.asarray(v) for name, v in {**program.state().weights, **found}.items()}


@functools.cache
def on_one_device() -> dict[str, Any]:
    return train(Local.params())


@pytest.mark.parametrize("mesh", MESHES)
def test_weights_and_predictions_are_those_of_one_device(mesh: str) -> None:
    expected, found = on_one_device(), train(MESHES[mesh])
    assert found.keys() == expected.keys()
    assert (expected["box_labels"] > 0).any()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
