"""The recipe of detection applies the functions of lingo.ops.image, and leaves the rest alone."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.datasets import GlyphSceneInput
from lingo.ops import random
from lingo.ops.image import BoxedImage, color_jitter, flip_boxed, min_iou_crop, resize, scale_jitter
from tasks.detection.augmentation import train_example

KEY = random.root_key(5)


@pytest.fixture(scope="module")
def example() -> dict[str, np.ndarray]:
    """Returns a scene and an array that no recipe knows."""
    data = GlyphSceneInput.params(batch_size=1, size=64, min_height=0.2).build()
    return {name: array[0] for name, array in data.read_indices(np.array([3])).items()} | {
        "mine": np.arange(3)
    }


def test_it_crops_then_mirrors_then_changes_colours(example):
    result = train_example(example, KEY, size=48, flip_rate=1, jitter=0.4)
    one = BoxedImage(example["images"], example["boxes"], example["box_labels"])
    one = flip_boxed(min_iou_crop(one, KEY, size=(48, 48)), KEY, rate=1)
    jittered = color_jitter(one.image, KEY, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    np.testing.assert_array_equal(result["images"], jittered)
    np.testing.assert_array_equal(result["boxes"], one.boxes)
    np.testing.assert_array_equal(result["box_labels"], one.labels)
    np.testing.assert_array_equal(result["mine"], example["mine"])


def test_without_any_change_boxes_stay_and_the_image_is_resized(example):
    result = train_example(example, KEY, size=32, crop=False, flip_rate=0)
    np.testing.assert_array_equal(result["images"], resize(example["images"], (32, 32)))
    np.testing.assert_array_equal(result["boxes"], example["boxes"])


def test_scales_take_the_place_of_the_crop_and_masks_follow():
    data = GlyphSceneInput.params(batch_size=1, size=64, min_height=0.2, mask_size=9).build()
    example = {name: array[0] for name, array in data.read_indices(np.array([3])).items()}
    result = train_example(example, KEY, size=48, flip_rate=1, scales=(0.1, 2.0))
    one = BoxedImage(*(example[name] for name in ("images", "boxes", "box_labels", "masks")))
    one = scale_jitter(one, KEY, size=(48, 48), low=0.1, high=2.0)
    one = flip_boxed(one, KEY, rate=1)
    expected = {"images": one.image, "boxes": one.boxes, "box_labels": one.labels}
    assert one.masks.any()
    for name, array in (expected | {"masks": one.masks}).items():
        np.testing.assert_array_equal(result[name], array)


def test_an_input_calls_it_and_keeps_its_types():
    recipe = {"size": 64, "flip_rate": 0.0}
    data = GlyphSceneInput.params(
        batch_size=8, size=64, min_height=0.2, augment=train_example, augment_arguments=recipe
    ).build()
    plain = GlyphSceneInput.params(batch_size=8, size=64, min_height=0.2).build()
    data.check_repeatable()
    assert data.specs() == plain.specs()
    batch, before = data.batch(0), plain.batch(0)
    assert (batch["box_labels"] > 0).any(axis=1).all()
    assert (batch["box_labels"] > 0).sum() < (before["box_labels"] > 0).sum()
