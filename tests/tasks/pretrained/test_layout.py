"""Networks of timm and torchvision: tensors in, the same logits and the same tensors out.

`tools/oracles/image_networks.py` wrote what the libraries compute.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from lingo.checkpoints.sources.warm_start import weight_shapes
from lingo.layers import Layer
from lingo.layers.context import apply
from tasks.image.task import ImageClassification
from tasks.pretrained.architecture import find_architecture
from tasks.pretrained.layout import ImageLayout
from tools.oracles.image_networks import FOLDER, NETWORKS, draw_images, draw_tensors

TOLERANCE = 1e-4  # of logits whose largest is between 1 and 12


def build_task(name: str, size: tuple[int, int], num_classes: int = 10) -> Layer:
    model = find_architecture(name).model(num_classes=num_classes)
    return ImageClassification.params(
        model=model, num_classes=num_classes, image_shape=(*size, 3)
    ).build()


def read_weights(name: str, task: Layer, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    reads = ImageLayout.params(architecture=name).build().reads(weight_shapes(task))
    return {weight: read.change(tensors[read.name]) for weight, read in reads.items()}


def compute_logits(task: Layer, weights: Mapping[str, np.ndarray], images: np.ndarray) -> Any:
    own = {name.removeprefix("model/"): value for name, value in weights.items()}
    model = task.p.model.copy().build()
    state = {name: own[name] for name in model.states()}
    return apply(model, {n: own[n] for n in model.weights()}, images, call={"state": state})[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_computes_the_logits_of_its_library(name: str) -> None:
    content = json.loads((FOLDER / f"{name}.json").read_text())
    tensors = draw_tensors(content["shapes"], content["gain"])
    size = tuple(content["size"])
    task = build_task(name, size)
    weights = read_weights(name, task, tensors)
    found = compute_logits(task, weights, draw_images(size))
    np.testing.assert_allclose(found, content["logits"], rtol=0, atol=TOLERANCE)
