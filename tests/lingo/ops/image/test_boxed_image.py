"""Boxes and masks stay where their objects are when images are cropped, scaled and mirrored."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.ops import random
from lingo.ops.image.box import Box
from lingo.ops.image.boxed_image import (
    BoxedImage,
    crop_boxes,
    flip_boxed,
    flip_boxes,
    jitter_window,
    min_iou_box,
    min_iou_crop,
    sample_mask,
    scale_jitter,
)
from lingo.ops.image.crop import flip

SIZE = (60, 80)
KEYS = [random.fold(random.root_key(0), i) for i in range(300)]


def boxed(seed):
    """Returns an image of up to three boxes in whole pixels; a box is painted in its channel."""
    draw = np.random.default_rng(seed)
    image = np.zeros([*SIZE, 3], np.uint8)
    boxes, labels = np.zeros([3, 4], np.float32), draw.integers(0, 3, 3).astype(np.int32)
    for i in np.flatnonzero(labels):
        height, width = draw.integers(1, 40, 2)
        top, left = draw.integers(0, np.array(SIZE) - [height, width] + 1)
        image[top : top + height, left : left + width, i] = 255
        boxes[i] = np.array([top, left, top + height, left + width]) / [*SIZE, *SIZE]
    return BoxedImage(image, boxes, labels)


def painted(channel):
    """Returns the box around what is painted, in 0..1, by a slow loop over pixels; None if none."""
    ink = [(r, c) for r in range(channel.shape[0]) for c in range(channel.shape[1])]
    ink = np.array([pixel for pixel in ink if channel[pixel]])
    if not len(ink):
        return None
    return np.concatenate([ink.min(0), ink.max(0) + 1]) / [*channel.shape, *channel.shape]


def slow_iou(first, second):
    height = max(0, min(first[2], second[2]) - max(first[0], second[0]))
    width = max(0, min(first[3], second[3]) - max(first[1], second[1]))
    areas = [(one[2] - one[0]) * (one[3] - one[1]) for one in (first, second)]
    return height * width / (sum(areas) - height * width)


def part_of(window):
    bottom, right = window.row + window.height, window.column + window.width
    return np.array([window.row, window.column, bottom, right]) / [*SIZE, *SIZE]


@pytest.mark.parametrize("seed", range(8))
def test_boxes_of_a_part_are_around_what_is_painted_there(seed):
    example = boxed(seed)
    draw = np.random.default_rng(seed)
    height, width = draw.integers(10, 50, 2).tolist()
    window = Box(*draw.integers(0, np.array(SIZE) - [height, width] + 1).tolist(), height, width)
    boxes, labels = crop_boxes(example.boxes, example.labels, window, SIZE)
    part = part_of(window)
    for i in range(3):
        middle = (example.boxes[i, :2] + example.boxes[i, 2:]) / 2
        stays = example.labels[i] and (part[:2] <= middle).all() and (middle < part[2:]).all()
        assert labels[i] == (example.labels[i] if stays else 0)
        box = painted(example.image[window.slices][..., i]) if stays else np.zeros(4)
        np.testing.assert_allclose(boxes[i], box, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_boxes_of_a_mirror_image_are_around_what_is_painted_there(seed):
    example = boxed(seed)
    for key in KEYS[:4]:
        image, boxes, labels, _ = flip_boxed(example, key)
        np.testing.assert_array_equal(image, flip(example.image, key))
        np.testing.assert_array_equal(labels, example.labels)
        for i in range(3):
            box = painted(image[..., i]) if labels[i] else np.zeros(4)
            np.testing.assert_allclose(boxes[i], box, atol=1e-6)
    twice = flip_boxes(flip_boxes(example.boxes, example.labels), example.labels)
    np.testing.assert_allclose(twice, example.boxes, atol=1e-6)


def test_windows_are_the_first_that_meet_their_condition():
    """A slow loop over the tries of each key, by the paper's words."""
    kinds = set()
    for number, key in enumerate(KEYS):
        _, boxes, labels, _ = boxed(number % 7)
        window = min_iou_box(SIZE, boxes, labels, key)
        kinds.add(window == Box(0, 0, *SIZE))
        assert window == slow_window(boxes, labels, key)
    assert kinds == {True, False}


def slow_window(boxes, labels, key):
    choice = random.uniform(random.fold(key, random.text_hash("min_iou_crop.choice")))
    least = [None, 0, 0.1, 0.3, 0.5, 0.7, 0.9][int(float(choice) * 7)]
    draws = random.uniform(random.fold(key, random.text_hash("min_iou_crop")), 50, 4)
    objects = [box.astype(float) for box, label in zip(boxes, labels, strict=True) if label]
    for scale, aspect, down, right in draws.astype(float).tolist() if least is not None else []:
        scale = 0.3 + 0.7 * scale
        low, high = max(0.5, scale**2), min(2, 1 / scale**2)
        ratio = low + (high - low) * aspect
        height = min(SIZE[0], round(scale / ratio**0.5 * SIZE[0]))
        width = min(SIZE[1], round(scale * ratio**0.5 * SIZE[1]))
        row, column = int(down * (SIZE[0] - height + 1)), int(right * (SIZE[1] - width + 1))
        window = Box(row, column, height, width)
        part = part_of(window)
        middles = [(box[:2] + box[2:]) / 2 for box in objects]
        if not any((part[:2] <= m).all() and (m < part[2:]).all() for m in middles):
            continue
        if max(slow_iou(part, box) for box in objects) >= least:
            return window
    return Box(0, 0, *SIZE)


def test_all_conditions_are_drawn_and_a_part_has_an_object():
    """One large object: windows of each least overlap occur, and its label never gets lost."""
    boxes, labels = np.array([[0.2, 0.2, 0.8, 0.8]], "f"), np.array([5], np.int32)
    ious, areas = [], []
    for key in KEYS:
        window = min_iou_box(SIZE, boxes, labels, key)
        _, left = crop_boxes(boxes, labels, window, SIZE)
        assert left.tolist() == [5]
        ious.append(slow_iou(part_of(window), boxes[0]))
        areas.append(window.height * window.width / np.prod(SIZE))
        assert 0.45 < window.height / SIZE[0] / (window.width / SIZE[1]) < 2.2
    assert min(ious) < 0.25
    assert max(ious) > 0.9
    assert 0.08 < min(areas) < 0.2
    assert max(areas) == 1


def test_an_image_without_objects_is_whole():
    nothing = np.zeros([2, 4], "f"), np.zeros(2, np.int32)
    assert {min_iou_box(SIZE, *nothing, key) for key in KEYS[:20]} == {Box(0, 0, *SIZE)}


def test_a_crop_is_its_part_resized():
    example = boxed(1)
    for key in KEYS[:20]:
        window = min_iou_box(SIZE, example.boxes, example.labels, key)
        image, boxes, labels, _ = min_iou_crop(example, key, size=(window.height, window.width))
        np.testing.assert_array_equal(image, example.image[window.slices])
        expected = crop_boxes(example.boxes, example.labels, window, SIZE)
        np.testing.assert_array_equal(boxes, expected[0])
        np.testing.assert_array_equal(labels, expected[1])
    assert min_iou_crop(example, KEYS[0], size=(30, 30)).image.shape == (30, 30, 3)


def test_what_is_not_an_image_or_a_rate_is_refused():
    example = boxed(1)
    with pytest.raises(ValueError, match="an image is uint8"):
        min_iou_crop(example._replace(image=example.image.astype(int)), KEYS[0], size=(8, 8))
    with pytest.raises(ValueError, match=r"rate=1\.5 is not in 0\.\.1"):
        flip_boxed(example, KEYS[0], rate=1.5)


# ---- masks and scales ----------------------------------------------------------------------------

M = 40  # bins: more than the pixels of any box


def discs(seed):
    """Returns an image with masks: a disc or half of one in each channel, in its smallest box."""
    draw = np.random.default_rng(seed)
    image, rows = np.zeros([*SIZE, 3], np.uint8), np.mgrid[: SIZE[0], : SIZE[1]]
    boxes, masks = np.zeros([3, 4], np.float32), np.zeros([3, M, M], np.uint8)
    for i in range(3):
        radius, place = draw.uniform(6, 18), draw.uniform([20, 20], np.array(SIZE) - 20)
        far = rows - place[:, None, None]
        disc = (np.hypot(*far) < radius) & (far[1] > draw.uniform(-radius, 0))
        image[disc, i] = 255
        boxes[i] = painted(disc)
        masks[i] = sample_mask(disc, boxes[i] * [*SIZE, *SIZE], size=M)
    return BoxedImage(image, boxes, np.array([1, 2, 3], np.int32), masks)


def slow_bins(channel, box):
    """Returns what is painted at the centres of the bins of a box, by a loop."""
    height, width = channel.shape
    bins = np.zeros([M, M], np.uint8)
    for i in range(M):
        for j in range(M):
            y = (box[0] + (box[2] - box[0]) * (i + 0.5) / M) * height
            x = (box[1] + (box[3] - box[1]) * (j + 0.5) / M) * width
            bins[i, j] = channel[min(int(y), height - 1), min(int(x), width - 1)] > 127
    return bins


def assert_masks_follow(changed, least=0.93):
    """Checks that masks are what is painted in their boxes, but for resampling at the rims."""
    for i in np.flatnonzero(changed.labels):
        expected = slow_bins(changed.image[..., i], changed.boxes[i].astype(float))
        assert (changed.masks[i] == expected).mean() > least
    assert not changed.masks[changed.labels == 0].any()


@pytest.mark.parametrize("seed", range(4))
def test_masks_follow_a_mirror_image_exactly_and_a_crop_and_a_scale_to_a_pixel(seed):
    example = discs(seed)
    assert_masks_follow(example, 0.999)
    for key in KEYS[:8]:
        assert_masks_follow(flip_boxed(example, key, rate=1), 0.995)
        window = min_iou_box(SIZE, example.boxes, example.labels, key)
        crop = min_iou_crop(example, key, size=(window.height, window.width))
        assert_masks_follow(crop)
        assert_masks_follow(scale_jitter(example, key, size=(70, 90), low=0.8, high=1.6), 0.9)


@pytest.mark.parametrize(
    ("size", "shown"),
    [((480, 640), (800, 1067)), ((427, 640), (800, 1199)), ((300, 640), (625, 1333))],
)
def test_the_short_side_has_800_pixels_unless_the_long_one_would_exceed_1333(size, shown):
    limits = {"target": (832, 1344), "fit": (800, 1333), "low": 1, "high": 1}
    assert jitter_window(size, KEYS[0], **limits) == (Box(0, 0, *size), shown)


def test_windows_of_jitter_keep_the_aspect_and_cover_all_factors_and_places():
    factors, corners = [], []
    for key in KEYS:
        window, shown = jitter_window((60, 80), key, target=(90, 90), low=0.1, high=2.0)
        down, across = shown[0] / window.height, shown[1] / window.width
        assert abs(down / across - 1) < 0.1
        assert max(shown) <= 90
        assert window.row + window.height <= 60
        assert window.column + window.width <= 80
        factor = across * 80 / 90  # 1: the image just fits
        factors.append(factor)
        if factor < 0.98:  # nothing is cut off
            assert window == Box(0, 0, 60, 80)
        if factor > 1.35:  # both sides are cut off
            assert shown == (90, 90)
            corners.append([window.row, window.column])
    assert 0.05 < min(factors) < 0.15
    assert 1.9 < max(factors) < 2.1
    assert abs(np.mean(factors) - 1.05) < 0.1  # uniform
    assert np.min(corners, 0).tolist() == [0, 0]
    assert (np.max(corners, 0) > 15).all()


def test_a_small_image_has_zeros_below_and_right_and_boxes_keep_their_pixels():
    example = discs(1)
    small = scale_jitter(example, KEYS[0], size=(120, 120), low=0.5, high=0.5)
    assert small.image[:45, :60].any()
    assert not small.image[45:].any()
    assert not small.image[:, 60:].any()
    expected = example.boxes * [*SIZE, *SIZE] * 0.75 / 120
    np.testing.assert_allclose(small.boxes, expected, atol=1e-6)
    np.testing.assert_array_equal(small.masks, example.masks)
    assert (scale_jitter(example, KEYS[0], size=SIZE, low=1, high=1).image == example.image).all()


def test_jitter_drops_boxes_of_which_nothing_is_shown_and_no_others():
    example, dropped = discs(2), 0
    for key in KEYS[:40]:
        window, _ = jitter_window(SIZE, key, target=SIZE, low=2, high=4)
        result = scale_jitter(example, key, size=SIZE, low=2, high=4)
        for i in range(3):
            part, box = part_of(window), example.boxes[i]
            is_seen = (box[:2] < part[2:] - 1e-4).all() and (part[:2] < box[2:] - 1e-4).all()
            assert (result.labels[i] > 0) == is_seen
            dropped += not is_seen
            if is_seen:
                seen = np.clip((box.reshape(2, 2) - part[:2]) / (part[2:] - part[:2]), 0, 1)
                np.testing.assert_allclose(result.boxes[i], seen.ravel(), atol=1e-5)
    assert dropped


@pytest.mark.parametrize("scales", [(0, 1), (2, 1), (1, float("inf"))])
def test_scales_out_of_range_are_refused(scales):
    with pytest.raises(ValueError, match="are not 0 < low <= high"):
        scale_jitter(discs(0), KEYS[0], size=(8, 8), low=scales[0], high=scales[1])
