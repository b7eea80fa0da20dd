"""RandAugment draws operations of one magnitude; they have the strengths of its sources."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from lingo.ops import random
from lingo.ops.image import (
    AUTO_AUGMENT_V0,
    EFFICIENTNET_OPS,
    PAPER_OPS,
    auto_augment,
    cutout,
    rand_augment,
)
from tests.lingo.ops.image.images import as_float, scene

KEY = random.root_key(10)
IMAGE = scene(56, 112, 3)  # a quarter and a half of 224
PICTURE = Image.fromarray(IMAGE)


def shift(*affine: float) -> Image.Image:
    return PICTURE.transform(PICTURE.size, Image.Transform.AFFINE, affine, fillcolor=(128,) * 3)


BY_PILLOW = {  # at magnitude 5; those of either side: on one, on the other
    "identity": [PICTURE],
    "autocontrast": [ImageOps.autocontrast(PICTURE)],
    "equalize": [ImageOps.equalize(PICTURE)],
    "invert": [ImageOps.invert(PICTURE)],
    "rotate": [PICTURE.rotate(angle, fillcolor=(128,) * 3) for angle in (15, -15)],
    "shear_x": [shift(1, slope, 0, 0, 1, 0) for slope in (0.15, -0.15)],
    "shear_y": [shift(1, 0, 0, slope, 1, 0) for slope in (0.15, -0.15)],
    "translate_x": [shift(1, 0, pixels, 0, 1, 0) for pixels in (25, -25)],
    "translate_y": [shift(1, 0, 0, 0, 1, pixels) for pixels in (12, -12)],  # of 12.5
    "posterize": [ImageOps.posterize(PICTURE, 2)],
    "solarize": [ImageOps.solarize(PICTURE, 128)],
    "solarize_add": [PICTURE.point([min(i + 55, 255) if i < 128 else i for i in range(256)] * 3)],
    "color": [ImageEnhance.Color(PICTURE).enhance(1.0)],
    "contrast": [ImageEnhance.Contrast(PICTURE).enhance(1.0)],
    "brightness": [ImageEnhance.Brightness(PICTURE).enhance(1.0)],
    "sharpness": [ImageEnhance.Sharpness(PICTURE).enhance(1.0)],
}


def results(name: str, magnitude: float) -> set[bytes]:
    """Returns all that an operation makes of the image."""
    keys = [random.fold(KEY, i) for i in range(12)]
    return {
        rand_augment(IMAGE, key, num_ops=1, magnitude=magnitude, ops=[name]).tobytes()
        for key in keys
    }


@pytest.mark.parametrize("name", BY_PILLOW)
def test_each_operation_is_that_of_pillow_on_either_side(name: str) -> None:
    assert results(name, 5) == {picture.tobytes() for picture in BY_PILLOW[name]}


@pytest.mark.parametrize(("magnitude", "factor"), [(0, 0.1), (10, 1.9), (20, 3.7)])
def test_factors_grow_with_the_magnitude(magnitude: float, factor: float) -> None:
    for name in ("color", "contrast", "brightness", "sharpness"):
        enhancer = getattr(ImageEnhance, name.capitalize())(PICTURE)
        assert results(name, magnitude) == {enhancer.enhance(factor).tobytes()}


def test_squares_and_levels_keep_within_their_range_at_any_magnitude() -> None:
    key = random.fold(random.fold(KEY, random.text_hash("rand_augment")), 0)  # of the first one
    np.testing.assert_array_equal(
        rand_augment(IMAGE, KEY, num_ops=1, magnitude=5, ops=["cutout"]),
        cutout(IMAGE, key, side=10),  # 80/224 of 56, halved
    )
    for name in ("posterize", "solarize"):
        assert results(name, 30) == {IMAGE.tobytes()}
    assert results("posterize", 0) == {bytes(IMAGE.size)}
    assert results("solarize_add", 30) == {np.where(IMAGE < 128, 255, IMAGE).astype("B").tobytes()}


def test_operations_follow_each_other_each_with_draws_of_its_own() -> None:
    """Squares of one image are in different places, and cover more than one."""
    one = rand_augment(IMAGE, KEY, num_ops=1, ops=["cutout"])
    three = rand_augment(IMAGE, KEY, num_ops=3, ops=["cutout"])
    np.testing.assert_array_equal(three[(one != IMAGE)], one[one != IMAGE])
    assert (three != IMAGE).sum() > (one != IMAGE).sum()
    np.testing.assert_array_equal(rand_augment(IMAGE, KEY, num_ops=0), IMAGE)


def test_all_operations_are_equally_likely() -> None:
    image = np.arange(0, 240, 4, dtype=np.uint8).reshape(10, 6, 1)
    ops = ["identity", "invert", "posterize", "brightness", "autocontrast"]
    seen = [
        rand_augment(image, random.fold(KEY, i), num_ops=1, ops=ops).tobytes() for i in range(1000)
    ]
    counts = np.unique(seen, return_counts=True)[1]
    assert len(counts) == 5
    assert ((counts - 200) ** 2 / 200).sum() < 18.5  # chi-squared of 4, one of a thousand


def test_floats_are_rounded_to_256_levels() -> None:
    floats = np.clip(as_float(IMAGE) + np.float32(0.4 / 255), 0, 1)
    for i in range(20):
        key = random.fold(KEY, i)
        expected = as_float(rand_augment(IMAGE, key))
        np.testing.assert_array_equal(rand_augment(floats, key), expected)


def test_the_lists_of_operations_are_those_of_the_sources() -> None:
    assert (len(set(PAPER_OPS)), len(set(EFFICIENTNET_OPS))) == (14, 16)
    assert set(EFFICIENTNET_OPS) - set(PAPER_OPS) == {"invert", "cutout", "solarize_add"}
    assert set(PAPER_OPS) - set(EFFICIENTNET_OPS) == {"identity"}
    assert {*PAPER_OPS, *EFFICIENTNET_OPS} - set(BY_PILLOW) == {"cutout"}


def test_what_is_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_ops=-1 and magnitude=10 are at least 0"):
        rand_augment(IMAGE, KEY, num_ops=-1)
    for magnitude in (-1, np.nan, np.inf):
        with pytest.raises(ValueError, match=rf"magnitude={magnitude} are at least 0"):
            rand_augment(IMAGE, KEY, magnitude=magnitude)
    for ops in ([], ["Rotate"]):
        with pytest.raises(ValueError, match=r"are not one or more of autocontrast, brightness,"):
            rand_augment(IMAGE, KEY, ops=ops)
    with pytest.raises(ValueError, match=r"an image with colours has 1 or 3 channels"):
        rand_augment(scene(4, 4, 2), KEY)


def auto_results(policy, num_keys: int = 400) -> list[bytes]:
    keys = [random.fold(KEY, i) for i in range(num_keys)]
    return [auto_augment(IMAGE, key, policy=policy).tobytes() for key in keys]


@pytest.mark.parametrize("name", [name for name in BY_PILLOW if "translate" not in name])
def test_operations_of_auto_augment_are_those_of_pillow(name: str) -> None:
    expected = {picture.tobytes() for picture in BY_PILLOW[name]}
    assert set(auto_results([[(name, 1.0, 5)]], 12)) == expected


def test_auto_augment_translates_by_more_than_half_of_the_side() -> None:
    """By 250 pixels of 224 at magnitude 10: by 62 of 112 at magnitude 5."""
    moved = {shift(1, 0, pixels, 0, 1, 0).tobytes() for pixels in (62, -62)}
    assert set(auto_results([[("translate_x", 1.0, 5)]], 12)) == moved


def test_sub_policies_are_equally_likely_and_operations_have_their_probabilities() -> None:
    inverted, equalized = (BY_PILLOW[name][0].tobytes() for name in ("invert", "equalize"))
    found = auto_results([[("invert", 0.8, 0)], [("equalize", 0.4, 0)]])
    for result, share in ((inverted, 0.4), (equalized, 0.2), (IMAGE.tobytes(), 0.4)):
        assert abs(found.count(result) / len(found) - share) < 4 * (share / len(found)) ** 0.5


def test_operations_of_a_sub_policy_follow_each_other() -> None:
    both = ImageOps.invert(ImageOps.posterize(PICTURE, 2)).tobytes()
    assert set(auto_results([[("posterize", 1.0, 5), ("invert", 1.0, 0)]], 4)) == {both}


def test_the_policy_v0_is_that_of_efficientnet() -> None:
    """25 pairs; sums of the published probabilities and magnitudes, by operation."""
    steps = [step for pair in AUTO_AUGMENT_V0 for step in pair]
    assert [len(pair) for pair in AUTO_AUGMENT_V0] == [2] * 25
    sums: dict[str, tuple[int, float, int]] = {}
    for name, rate, magnitude in steps:
        count, rates, magnitudes = sums.get(name, (0, 0.0, 0))
        sums[name] = count + 1, round(rates + rate, 1), magnitudes + magnitude
    assert sums == {
        "equalize": (12, 8.0, 55),
        "shear_y": (4, 2.6, 14),
        "color": (9, 5.0, 37),
        "rotate": (7, 4.6, 39),
        "solarize": (8, 4.6, 41),
        "solarize_add": (2, 1.4, 10),
        "shear_x": (2, 0.2, 9),
        "invert": (1, 0.4, 9),
        "posterize": (2, 1.2, 8),
        "autocontrast": (2, 1.0, 9),
        "translate_y": (1, 0.8, 9),
    }


def test_floats_are_augmented_as_their_levels() -> None:
    levels = auto_augment(IMAGE, KEY)
    np.testing.assert_array_equal(auto_augment(as_float(IMAGE), KEY), levels / np.float32(255))


@pytest.mark.parametrize(
    "policy", [[], [[("blur", 0.5, 1)]], [[("invert", 1.5, 1)]], [[("invert", 0.5, 11)]]]
)
def test_policies_that_mean_nothing_are_refused(policy) -> None:
    with pytest.raises(ValueError, match=r"policy: "):
        auto_augment(IMAGE, KEY, policy=policy)
