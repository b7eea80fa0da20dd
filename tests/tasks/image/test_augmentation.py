"""Recipes of augmentation: which functions they call, and as `augment` of an input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.config.text import render, resolve
from lingo.datasets import GlyphInput
from lingo.ops import image as ops
from lingo.ops import random
from tasks.image.augmentation import eval_example, train_example
from tests.lingo.data.documents import assert_starts_anywhere

KEY = random.root_key(3)
IMAGE = np.random.default_rng(0).integers(0, 256, [30, 40, 3], np.uint8)
EXAMPLE = {"images": IMAGE, "labels": np.int32(7)}


def changed(**fields: Any) -> np.ndarray:
    arguments: dict[str, Any] = {"size": 16} | fields
    result = train_example(EXAMPLE, KEY, **arguments)
    assert result["labels"] == 7
    return result["images"]


def test_the_default_is_a_random_rectangle_that_may_be_mirrored() -> None:
    crop = ops.inception_crop(IMAGE, KEY, size=(16, 16))
    np.testing.assert_array_equal(changed(flip_rate=0.0), crop)
    np.testing.assert_array_equal(changed(flip_rate=1.0), crop[:, ::-1])
    small = ops.inception_crop(IMAGE, KEY, size=(16, 16), min_area=0.9)
    np.testing.assert_array_equal(changed(flip_rate=0.0, min_area=0.9), small)


def test_with_padding_the_whole_image_is_resized_and_moved() -> None:
    whole = ops.resize(IMAGE, (16, 16))
    np.testing.assert_array_equal(changed(flip_rate=0.0, padding=0), whole)
    moved = ops.pad_and_crop(whole, KEY, padding=4)
    np.testing.assert_array_equal(changed(flip_rate=0.0, padding=4), moved)


def test_colours_operations_and_rectangles_follow_in_this_order() -> None:
    image = changed(flip_rate=0.0)
    image = ops.color_jitter(image, KEY)
    np.testing.assert_array_equal(changed(flip_rate=0.0, jitter=0.4), image)
    image = ops.rand_augment(image, KEY, num_ops=2, magnitude=7, ops=["rotate", "solarize"])
    image = ops.random_erasing(image, KEY, rate=1.0)
    fields: Any = {
        "num_ops": 2,
        "magnitude": 7.0,
        "ops": ("rotate", "solarize"),
        "erasing_rate": 1.0,
    }
    np.testing.assert_array_equal(changed(flip_rate=0.0, jitter=0.4, **fields), image)


def test_the_learned_policy_comes_before_chosen_operations() -> None:
    image = ops.auto_augment(changed(flip_rate=0.0), KEY)
    np.testing.assert_array_equal(changed(flip_rate=0.0, uses_auto_augment=True), image)
    image = ops.rand_augment(image, KEY, num_ops=1, magnitude=7, ops=["solarize"])
    fields: Any = {"num_ops": 1, "magnitude": 7.0, "ops": ("solarize",)}
    np.testing.assert_array_equal(changed(flip_rate=0.0, uses_auto_augment=True, **fields), image)


def test_an_evaluation_sees_the_middle() -> None:
    found = eval_example(EXAMPLE, KEY, size=21)["images"]
    expected = ops.center_crop(ops.resize_short_side(IMAGE, 24), (21, 21))
    np.testing.assert_array_equal(found, expected)
    whole = eval_example(EXAMPLE, KEY, size=30, crop_ratio=1.0)["images"]
    np.testing.assert_array_equal(whole, IMAGE[:, 5:35])
    with pytest.raises(ValueError, match=r"crop_ratio=0\.0 is not above 0"):
        eval_example(EXAMPLE, KEY, size=8, crop_ratio=0.0)


def glyphs(**arguments: Any) -> GlyphInput:
    data = GlyphInput.params(batch_size=3, images_per_class=1, augment=train_example)
    return data.set(augment_arguments={"size": 32, "flip_rate": 0.0} | arguments).build()


def test_an_input_augments_each_example_by_its_own_key() -> None:
    assert_starts_anywhere(lambda: glyphs(padding=4, num_ops=1), range(3))
    plain = GlyphInput.params(batch_size=3, images_per_class=1).build().batch(0)
    np.testing.assert_array_equal(glyphs(padding=0).batch(0)["images"], plain["images"])
    moved = glyphs(padding=4).batch(0)["images"]
    assert (moved != plain["images"]).any()


def test_recipe_and_arguments_are_parameters_like_others() -> None:
    lines = render(resolve(glyphs(ops=("rotate", "equalize"), num_ops=2).p))
    assert "augment = augmentation.py:train_example" in lines
    assert "'ops': ('rotate', 'equalize'), 'num_ops': 2}" in lines


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(
        ParamError, match=r"augment_arguments=.* do not fit .*train_example: .*'eze'"
    ):
        glyphs(eze=3)
    with pytest.raises(ParamError, match=r"augment_arguments=.*size.* need augment, which is None"):
        GlyphInput.params(batch_size=3, augment_arguments={"size": 32}).build()
