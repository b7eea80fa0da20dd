"""An input whose `augment` changes the size of images is refused by tasks that build on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo import layers as nn
from lingo import models
from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.datasets import BlobInput, GlyphInput, GlyphSceneInput
from lingo.layers.context import apply
from lingo.learner.state import initial_value
from tasks.detection.task import ObjectDetection
from tasks.image.segmentation import Segmentation
from tasks.image.task import ImageClassification

CONV = nn.ConvNorm.params(dim=1, output_dim=4, stride=2)


def cut(example: dict[str, np.ndarray], key: Any) -> dict[str, np.ndarray]:
    """Leaves out the last two columns of images, and of voxels' labels."""
    del key
    names = ("images", "labels") if example["images"].ndim == 4 else ("images",)
    wide = {"images": example["images"][..., :-2, :], "labels": example.get("labels")}
    if "labels" in names:
        wide["labels"] = example["labels"][..., :-2]
    return example | {name: wide[name] for name in names}


def classification() -> tuple[Params, Params]:
    head = nn.ImageHead.params(dim=4, num_classes=47)
    model = nn.Chain.params(layers=[CONV, head])
    return ImageClassification.params(model=model), GlyphInput.params(size=32, images_per_class=1)


def detection() -> tuple[Params, Params]:
    model = models.Ssd.params(trunk=CONV.copy().set(dim=3), scales=(12.0, 20.0), ratios=((),))
    data = GlyphSceneInput.params(size=64, min_height=0.2, num_scenes=2)
    return ObjectDetection.params(model=model), data


def segmentation() -> tuple[Params, Params]:
    model = models.UNet3D.params(dim=1, num_classes=3, width=2, num_levels=1)
    return Segmentation.params(model=model), BlobInput.params(size=8, num_volumes=2)


@pytest.mark.parametrize("method", ["loss", "metrics"])
@pytest.mark.parametrize(
    ("example", "message"),
    [
        (classification, r"images of \(32, 30, 1\), .* task.image_shape=\(32, 32, 1\)"),
        (detection, r"images of \(64, 62, 3\), .* task.image_shape=\(64, 64, 3\)"),
        (segmentation, r"images of \(8, 8, 6, 1\), .* task.volume_shape=\(8, 8, 8, 1\)"),
    ],
)
def test_images_of_another_size_than_the_model_is_built_for_are_refused(
    example: Any, message: str, method: str
) -> None:
    task, data = example()
    whole = data.set(batch_size=2).build()
    built = task.build(**whole.offers())
    weights, states = (
        {path: initial_value(spec, 0) for path, spec in specs.items()}
        for specs in (built.weights(), built.states())
    )

    def compute(data: Any) -> None:
        batch = {name: tf.constant(array) for name, array in data.batch(0).items()}
        apply(built, weights, batch, method=method, call={"state": states})

    compute(whole)
    with pytest.raises(ParamError, match=message):
        compute(data.set(augment=cut).build())
