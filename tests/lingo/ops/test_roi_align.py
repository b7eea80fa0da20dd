"""Crops of maps and masks against slow loops, published forms, torchvision, and under XLA.

`tools/oracles/roi_align.py` wrote the values of torchvision.

Axes: B batch, R regions, N objects, C channels, S bins of a crop, M bins of a mask.
"""

import json
import math
import pathlib

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.roi_align import crop_masks, region_levels, roi_align

DRAW = np.random.default_rng(0)
ORACLE = json.loads(pathlib.Path(__file__).with_name("roi_align.json").read_text())
FORMS = ["center", "aligned", "legacy"]
IMAGE = (512, 640)  # pixels
MAPS = [DRAW.normal(size=[2, *(-(-side // 2**level) for side in IMAGE), 3]) for level in (4, 5, 6)]
MAPS = [one.astype("f") for one in MAPS]


def random_boxes(*shape, reach=0.05):
    """Returns boxes of all sizes [*shape, 4], which reach beyond the image by a part `reach`."""
    sides = np.exp(DRAW.uniform(np.log(0.01), 0, [*shape, 2]))
    corner = DRAW.uniform(size=[*shape, 2]) * (1 - sides + 2 * reach) - reach
    return np.concatenate([corner, corner + sides], -1).astype("f")


def slow_point(plane, y, x, form):
    """Returns a map's value [C] at a point, by its four neighbours."""
    height, width, _ = plane.shape
    if form != "center" and not (-1 <= y <= height and -1 <= x <= width):
        return np.zeros(plane.shape[2])
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    total = 0.0
    for i in (math.floor(y), math.floor(y) + 1):
        for j in (math.floor(x), math.floor(x) + 1):
            share = (1 - abs(y - i)) * (1 - abs(x - j))
            if share > 0:
                total = total + share * plane[i, j].astype(float)
    return total


def slow_crop(maps, box, *, size, samples, form, first):
    """Returns the crop [S, S, C] of one image's maps, float64, by a loop over all points."""
    high, wide = (box[2] - box[0]) * IMAGE[0], (box[3] - box[1]) * IMAGE[1]
    level = 4 + math.floor(math.log2(math.sqrt(high * wide) / 224))
    level = min(max(level, first), first + len(maps) - 1)
    top, left, bottom, right = (box.astype(float) * (IMAGE * 2) / 2**level).tolist()
    shift = 0.5 if form == "aligned" else 0.0
    high, wide = bottom - top, right - left
    if form == "legacy":
        high, wide = max(high, 1), max(wide, 1)
    crop = np.zeros([size, size, maps[0].shape[-1]])
    for i in range(size):
        for j in range(size):
            for a in range(samples):
                for b in range(samples):
                    y = top - shift + (i + (a + 0.5) / samples) * high / size
                    x = left - shift + (j + (b + 0.5) / samples) * wide / size
                    crop[i, j] += slow_point(maps[level - first], y, x, form) / samples**2
    return crop


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("samples", [1, 2])
def test_a_crop_is_that_of_a_slow_loop_over_points_of_its_level(form, samples):
    boxes = random_boxes(2, 12)
    fields = {"size": 3, "samples": samples, "form": form}
    found = roi_align([*map(tf.constant, MAPS)], boxes, image=IMAGE, min_level=4, **fields)
    for row in range(2):
        maps = [one[row] for one in MAPS]
        for region in range(12):
            expected = slow_crop(maps, boxes[row, region], first=4, **fields)
            np.testing.assert_allclose(found[row, region], expected, atol=2e-4)


SQUARES = np.arange(16.0, dtype="f").reshape(1, 4, 4, 1)


@pytest.mark.parametrize(
    ("plane", "box", "form", "samples", "expected"),
    [
        (SQUARES, (1, 1, 3, 3), "aligned", 2, [5, 6, 9, 10]),
        (SQUARES, (1, 1, 3, 3), "legacy", 2, [7.5, 8.5, 11.5, 12.5]),
        (SQUARES**2, (0.5, 0.25, 3.5, 3), "aligned", 2, [17.0625, 28.46875, 94.3125, 122.21875]),
        (SQUARES**2, (0.5, 0.25, 3.5, 3), "legacy", 2, [40.59375, 58.71875, 140.375, 174.3125]),
        (SQUARES**2, (0.5, 0.25, 3.5, 3), "center", 1, [38.3125, 56.6875, 145.5625, 180.4375]),
    ],
)
def test_goldens_by_hand(plane, box, form, samples, expected):
    boxes = tf.constant([[box]]) / 4
    fields = {"image": (4, 4), "min_level": 0, "samples": samples, "form": form}
    found = roi_align([tf.constant(plane)], boxes, size=2, **fields)
    np.testing.assert_allclose(found.numpy().ravel(), expected, atol=1e-5)


@pytest.mark.parametrize("name", ORACLE["crops"])
def test_crops_equal_those_of_torchvision(name):
    form, samples = name.split()
    plane = np.array(ORACLE["plane"], "f")
    image = plane.shape[:2]
    boxes = np.array(ORACLE["boxes"], "f") / (image * 2)
    fields = {"image": image, "min_level": 0, "samples": int(samples), "form": form}
    found = roi_align([tf.constant(plane[None])], tf.constant(boxes[None]), size=3, **fields)
    np.testing.assert_allclose(found[0], ORACLE["crops"][name], atol=1e-5)


def test_levels_of_squares_change_at_powers_of_two():
    image = (1024, 1024)
    sides = [1, 111, 112, 223, 224, 447, 448, 1024]
    boxes = np.array([[7, 9, 7 + side, 9 + side] for side in sides], "f") / 1024
    found = region_levels(tf.constant(boxes), image=image, min_level=2, max_level=5)
    assert found.numpy().tolist() == [2, 2, 3, 3, 4, 4, 5, 5]
    found = region_levels(tf.constant(boxes), image=image, min_level=2, max_level=6)
    assert found.numpy().tolist() == [2, 2, 3, 3, 4, 4, 5, 6]


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_maps_are_those_of_finite_differences_and_boxes_have_none(form):
    boxes = tf.constant(random_boxes(1, 4, reach=0.0))
    maps = [tf.constant(DRAW.normal(size=[1, side, side, 2]), tf.float32) for side in (8, 4)]
    weights = tf.constant(DRAW.normal(size=[1, 4, 2, 2, 2]), tf.float32)

    def total(*maps):
        fields = {"image": (32, 32), "min_level": 2, "samples": 2, "form": form}
        return tf.reduce_sum(weights * roi_align(maps, boxes, size=2, **fields))

    with tf.GradientTape() as tape:
        tape.watch([*maps, boxes])
        value = total(*maps)
    *gradients, of_boxes = tape.gradient(value, [*maps, boxes])
    assert of_boxes is None
    assert any(np.abs(gradient).max() > 0 for gradient in gradients)
    for which, gradient in enumerate(gradients):
        direction = [tf.zeros_like(one) for one in maps]
        direction[which] = tf.constant(DRAW.normal(size=maps[which].shape), tf.float32)
        far, near = (
            total(*(one + step * d for one, d in zip(maps, direction, strict=True)))
            for step in (0.5, -0.5)
        )  # the crop is linear in the maps, so that a large step is exact
        slope = tf.reduce_sum(gradient * direction[which])
        np.testing.assert_allclose(slope, far - near, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_xla_gives_the_same_with_the_type_of_the_maps(dtype):
    maps, boxes = [tf.cast(one, dtype) for one in MAPS], tf.constant(random_boxes(2, 5))

    def run(*maps):
        with tf.GradientTape() as tape:
            tape.watch(maps)
            crop = roi_align(maps, boxes, size=2, image=IMAGE, min_level=4)
            total = tf.reduce_sum(tf.cast(crop, tf.float32) ** 2)
        return crop, *tape.gradient(total, maps)

    compiled = tf.function(run, jit_compile=True)(*maps)
    for mine, expected in zip(compiled, run(*maps), strict=True):
        assert mine.dtype == dtype
        close = {"rtol": 1e-5, "atol": 1e-5} if dtype == "float32" else {"rtol": 2e-2, "atol": 2e-2}
        np.testing.assert_allclose(tf.cast(mine, "float32"), tf.cast(expected, "float32"), **close)


# ---- masks ---------------------------------------------------------------------------------------

M = 6


def slow_mask(mask, box, region, size):
    """Returns an object's mask in a region, [S, S], by a loop over bins and mask values."""
    crop = np.zeros([size, size])
    for i in range(size):
        for j in range(size):
            y = region[0] + (region[2] - region[0]) * (i + 0.5) / size
            x = region[1] + (region[3] - region[1]) * (j + 0.5) / size
            y = (y - box[0]) / (box[2] - box[0]) * M - 0.5
            x = (x - box[1]) / (box[3] - box[1]) * M - 0.5
            value = sum(
                mask[a, b] * max(0, 1 - abs(y - a)) * max(0, 1 - abs(x - b))
                for a in range(M)
                for b in range(M)
            )
            crop[i, j] = value >= 0.5 - 1e-4
    return crop


def test_masks_in_regions_are_those_of_a_slow_loop():
    masks = DRAW.integers(0, 2, [2, 3, M, M]).astype(np.uint8)
    boxes = random_boxes(2, 3, reach=0.0)
    objects = DRAW.integers(0, 3, [2, 5]).astype("i")
    own = np.take_along_axis(boxes, objects[..., None], 1)
    regions = (own + DRAW.normal(size=own.shape) * 0.02).astype("f")
    found = crop_masks(masks, tf.constant(boxes), tf.constant(objects), regions, size=4).numpy()
    assert {*found.ravel()} == {0, 1}
    for row in range(2):
        for region in range(5):
            number = objects[row, region]
            one = masks[row, number], boxes[row, number].astype(float)
            expected = slow_mask(*one, regions[row, region].astype(float), 4)
            np.testing.assert_array_equal(found[row, region], expected)


def test_a_region_that_is_the_box_has_the_mask_and_one_elsewhere_nothing():
    mask, box = DRAW.integers(0, 2, [1, 1, M, M]), tf.constant([[[0.1, 0.2, 0.5, 0.9]]])
    objects = tf.zeros([1, 1], tf.int32)
    np.testing.assert_array_equal(crop_masks(mask, box, objects, box, size=M)[0], mask[0])
    elsewhere = tf.constant([[[0.6, 0.2, 0.9, 0.9]]])
    assert not crop_masks(mask, box, objects, elsewhere, size=M).numpy().any()
    nothing = tf.zeros([1, 1, 4])
    assert not crop_masks(mask, nothing, objects, nothing, size=M).numpy().any()


def test_masks_under_xla_are_the_same():
    masks, boxes = DRAW.integers(0, 2, [2, 3, M, M]), tf.constant(random_boxes(2, 3))
    objects = tf.constant(DRAW.integers(0, 3, [2, 7]), tf.int32)
    arguments = tf.constant(masks), boxes, objects, tf.constant(random_boxes(2, 7))
    compiled = tf.function(lambda *one: crop_masks(*one, size=5), jit_compile=True)
    np.testing.assert_array_equal(compiled(*arguments), crop_masks(*arguments, size=5))
