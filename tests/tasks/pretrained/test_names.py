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
from lingo.config.params import ParamError
from lingo.export.hugging_face import layout_tensors
from lingo.layers import Layer
from lingo.layers.context import apply
from tasks.image.task import ImageClassification
from tasks.pretrained.architecture import ARCHITECTURES, find_architecture
from tasks.pretrained.names import ImageLayout
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


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("torchvision.resnet18", {"padding": "SAME"}),
        ("timm.efficientnet_b0", {"padding": "SAME"}),
        ("timm.tf_efficientnet_b0", {"padding": "CENTERED"}),
        ("torchvision.efficientnet_b0", {"epsilon": 1e-3}),
    ],
)
def test_what_differs_between_libraries_changes_the_logits(name: str, other: Any) -> None:
    """So the logits above would be wrong without it."""
    content = json.loads((FOLDER / f"{name}.json").read_text())
    size = tuple(content["size"])
    task = build_task(name, size)
    weights = read_weights(name, task, draw_tensors(content["shapes"], content["gain"]))
    model = find_architecture(name)._replace(**other).model(num_classes=10)
    changed = task.p.copy().set(model=model).build()
    found = compute_logits(changed, weights, draw_images(size))
    assert np.abs(found - np.array(content["logits"])).max() > 10 * TOLERANCE


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_read_is_written_bit_for_bit(name: str) -> None:
    content = json.loads((FOLDER / f"{name}.json").read_text())
    tensors = draw_tensors(content["shapes"], content["gain"])
    layout, task = ImageLayout.params(architecture=name).build(), build_task(name, content["size"])
    written = layout_tensors(layout, task, read_weights(name, task, tensors))
    assert {n for n in tensors if n not in written} == {n for n in tensors if layout.is_ignored(n)}
    for tensor, value in written.items():
        np.testing.assert_array_equal(value, tensors[tensor], err_msg=tensor, strict=True)


def test_every_architecture_has_a_tensor_for_each_weight() -> None:
    for name, architecture in ARCHITECTURES.items():
        side = architecture.image_size
        shapes = weight_shapes(build_task(name, (side, side)))
        reads = ImageLayout.params(architecture=name).build().reads(shapes)
        whole = [read.name for read in reads.values() if read.part[1] == 1]
        assert len({*whole}) == len(whole), name
        for weight, read in reads.items():
            assert np.prod(read.form) == np.prod(shapes[weight]), (name, weight)


def test_a_weight_that_the_network_lacks_is_named() -> None:
    layout = ImageLayout.params(architecture="timm.resnet18").build()
    for weight in (
        "model/layers/0/conv/v",
        "model/layers/99/conv/w",
        "model/table",
        "model/layers/1/w",
    ):
        with pytest.raises(ParamError, match=f"timm.resnet18 has no tensor for .* {weight}"):
            layout.reads({weight: (1,)})


def test_the_settings_of_an_export_say_what_the_task_sees() -> None:
    task = build_task("timm.vit_tiny_patch16_224", (96, 96))
    layout = ImageLayout.params(architecture="timm.vit_tiny_patch16_224").build()
    original = {
        "architecture": "vit_tiny_patch16_224",
        "label_names": ["old"],
        "model_args": {"num_classes": 1000},
        "pretrained_cfg": {"tag": "mine", "mean": [0, 0, 0]},
    }
    assert layout.config(task, original, ("a", "b")) == {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 10,
        "label_names": ["a", "b"],
        "model_args": {"num_classes": 10, "img_size": 96},
        "pretrained_cfg": {
            "tag": "mine",
            "input_size": [3, 96, 96],
            "num_classes": 10,
            "mean": [0.0] * 3,
            "std": [1.0] * 3,
        },
    }
    resnet = ImageLayout.params(architecture="torchvision.resnet18").build()
    settings = resnet.config(build_task("torchvision.resnet18", (64, 64)), {}, ())
    assert (settings["architecture"], "label_names" in settings) == ("torchvision.resnet18", False)
