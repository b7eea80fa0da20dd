"""Mask R-CNN learns on devices of any layout what it learns on one: samples are the same."""

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
from tasks.detection.instance_segmentation import InstanceSegmentation

pytestmark = pytest.mark.xdist_group("instance_segmentation")  # one device computes once
B, H, W, N, M, STEPS = 4, 32, 24, 3, 6, 5
LAYOUTS = {
    "parts of a batch": Mesh.params(data=4),
    "rows of half of a batch": Mesh.params(data=2, height=4),
    "rows": Mesh.params(height=4),
}
DRAW = np.random.default_rng(0)
CORNERS = DRAW.uniform(0, 0.5, [STEPS, B, N, 2])
BATCHES = {
    "images": DRAW.normal(1.0, 1.0, [STEPS, B, H, W, 1]).astype("f"),
    "boxes": np.concatenate([CORNERS, CORNERS + 0.4], -1).astype("f"),
    "box_labels": DRAW.integers(0, 4, [STEPS, B, N], np.int32),
    "masks": DRAW.integers(0, 2, [STEPS, B, N, M, M], np.uint8),
    "example_id": np.arange(STEPS * B, dtype=np.int64).reshape(STEPS, B),
    "rows": np.tile(np.arange(B, dtype=np.int32), [STEPS, 1]),
    "weights": np.ones([STEPS, B], "f"),
}


def task() -> Params:
    layers = [nn.ConvNorm.params(dim=d, output_dim=4, stride=2) for d in (1, 4, 4)]
    model = models.MaskRcnn.params(
        trunk=models.Backbone.params(layers=layers, first_level=2), anchor_scale=3.0, base_side=16.0
    )
    model.all(nn.BatchNorm).set(statistics_over=1, epsilon=0.1)
    model.pyramid.output_dim = model.region_head.hidden_dim = model.box_head.hidden_dim = 8
    model.box_head.size = 3
    model.mask_head.set(size=4, hidden_dim=4, num_convs=1)
    return InstanceSegmentation.params(
        model=model,
        num_classes=3,
        image_shape=(H, W, 1),
        num_anchors=16,
        max_per_level=12,
        num_proposals=12,
        eval_max_per_level=12,
        eval_num_proposals=12,
        num_regions=12,
        min_score=0.2,
        max_detections=6,
    )


def train(runtime: Params) -> dict[str, Any]:
    """Returns the losses of some steps, the weights after them, and predictions."""
    learner = Learner(task().build(), Sgd.params(learning_rate=0.02).build())
    program = runtime.build().start(learner, initial_state(learner))
    losses = program.train(BATCHES)["scalars"]
    found = program.predict({name: array[0] for name, array in BATCHES.items()})
    terms = {name: value for name, value in losses.items() if name.startswith("loss/")}
    return {
        name: np.asarray(v) for name, v in {**terms, **program.state().weights, **found}.items()
    }


@functools.cache
def expected() -> dict[str, Any]:
    """Returns what one device computes."""
    return train(Local.params())


def check(found: dict[str, Any]) -> None:
    """Asserts that these losses, weights and predictions are those of one device."""
    assert found.keys() == expected().keys()
    for name, value in expected().items():
        tolerance = 1e-5 if name.startswith("loss/") else 1e-4
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=1e-5, err_msg=name)


def test_objects_are_found_and_every_step_has_another_loss() -> None:
    assert (expected()["box_labels"] > 0).any()
    assert len(set(expected()["loss/masks"].tolist())) == STEPS


@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_weights_and_predictions_are_those_of_one_device(layout: str) -> None:
    check(train(LAYOUTS[layout]))
