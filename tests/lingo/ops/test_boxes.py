"""Boxes and anchors against slow NumPy.

Axes: N boxes, A anchors.
"""

import itertools

import numpy as np

from lingo.config.lazy import tf
from lingo.ops.boxes import (
    AnchorMap,
    anchor_boxes,
    box_areas,
    box_overlaps,
    decode_boxes,
    encode_boxes,
)

DRAW = np.random.default_rng(0)


def random_boxes(*shape):
    """Returns boxes [*shape, 4], float64, some of which reach over the border."""
    center, size = DRAW.uniform(0, 1, [*shape, 2]), DRAW.uniform(0.01, 0.7, [*shape, 2])
    return np.concatenate([center - size / 2, center + size / 2], -1)


def slow_overlap(a, b):
    """Returns the intersection over union of two boxes."""
    height = min(a[2], b[2]) - max(a[0], b[0])
    width = min(a[3], b[3]) - max(a[1], b[1])
    common = height * width if height > 0 and width > 0 else 0.0
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    return common / union if union else 0.0


def test_overlaps_are_intersections_over_unions():
    boxes, others = random_boxes(2, 9), random_boxes(7)
    overlaps = box_overlaps(tf.constant(boxes), tf.constant(others)).numpy()
    expected = [[[slow_overlap(a, b) for b in others] for a in image] for image in boxes]
    np.testing.assert_allclose(overlaps, expected, rtol=1e-12, atol=0)
    assert 0.1 < (overlaps > 0).mean() < 0.9


def test_empty_and_inverted_boxes_overlap_nothing():
    boxes = tf.constant([[0.3, 0.3, 0.3, 0.6], [0.9, 0.1, 0.2, 0.8], [0.0, 0.0, 0.0, 0.0]])
    assert not box_areas(boxes).numpy().any()
    assert not box_overlaps(boxes, tf.concat([boxes, [[0.0, 0.0, 1.0, 1.0]]], 0)).numpy().any()


def test_codes_are_shifts_in_sizes_of_the_anchor_and_logarithms_of_ratios():
    anchor = tf.constant([[0.25, 0.0, 0.75, 1.0]], tf.float64)  # centre .5 .5, size .5 1
    box = tf.constant([[0.5, 0.0, 0.6, 0.5]], tf.float64)  # centre .55 .25, size .1 .5
    expected = [[0.1 / 0.1, -0.25 / 0.1, np.log(0.2) / 0.2, np.log(0.5) / 0.2]]
    np.testing.assert_allclose(encode_boxes(box, anchor), expected, rtol=1e-12)


def test_decoding_inverts_encoding():
    boxes, anchors = tf.constant(random_boxes(3, 20)), tf.constant(random_boxes(20))
    np.testing.assert_allclose(
        decode_boxes(encode_boxes(boxes, anchors), anchors), boxes, rtol=0, atol=1e-14
    )
    assert np.abs(encode_boxes(anchors, anchors)).max() == 0


def test_codes_do_not_depend_on_the_scale_of_the_image():
    boxes, anchors = tf.constant(random_boxes(20)), tf.constant(random_boxes(20))
    np.testing.assert_allclose(
        encode_boxes(4 * boxes, 4 * anchors), encode_boxes(boxes, anchors), rtol=1e-10, atol=1e-12
    )


# ---- anchors ------------------------------------------------------------------------------------

SCALES = (21, 45, 99, 153, 207, 261, 315)
SIZES, STEPS = (38, 19, 10, 5, 3, 1), (8, 16, 32, 64, 100, 300)
RATIOS = ([2], [2, 3], [2, 3], [2, 3], [2], [2])


def reference_anchors():
    """Returns the boxes (centre x, centre y, width, height) of each map in MLPerf's reference.

    There, each shape has its positions; here, each position has its shapes.
    """
    maps = []
    for k, size in enumerate(SIZES):
        small, large = SCALES[k] / 300, SCALES[k + 1] / 300
        shapes = [(small, small), ((small * large) ** 0.5,) * 2]
        for ratio in RATIOS[k]:
            w, h = small * ratio**0.5, small / ratio**0.5
            shapes += [(w, h), (h, w)]
        boxes = [
            ((j + 0.5) * STEPS[k] / 300, (i + 0.5) * STEPS[k] / 300, w, h)
            for (w, h), i, j in itertools.product(shapes, range(size), range(size))
        ]
        by_shape = np.clip(boxes, 0, 1).reshape(len(shapes), size**2, 4)
        maps.append(by_shape.swapaxes(0, 1).reshape(-1, 4))
    return maps


def test_the_anchors_of_ssd300_are_those_of_the_reference_in_another_order():
    maps = [
        AnchorMap((size, size), (step, step), SCALES[k], SCALES[k + 1], RATIOS[k])
        for k, (size, step) in enumerate(zip(SIZES, STEPS, strict=True))
    ]
    assert [one.num_shapes for one in maps] == [4, 6, 6, 6, 4, 4]
    anchors = anchor_boxes(maps, image=(300, 300))
    assert anchors.shape == (8732, 4)
    assert anchors.dtype == np.float32
    x, y, w, h = np.concatenate(reference_anchors()).T
    expected = np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1)
    np.testing.assert_allclose(anchors, expected, atol=1e-6)


def test_anchors_of_an_oblong_image_keep_their_shape_in_pixels():
    one = AnchorMap(size=(2, 3), step=(10, 20), scale=4, next_scale=9, ratios=[4])
    pixels = anchor_boxes([one], image=(20, 60)) * np.array([20, 60, 20, 60])
    sides = pixels[:, 2:] - pixels[:, :2]
    np.testing.assert_allclose(sides[:4], [[4, 4], [6, 6], [2, 8], [8, 2]], rtol=1e-6)
    centers = (pixels[::4, :2] + pixels[::4, 2:]) / 2
    np.testing.assert_allclose(
        centers, [[5, 10], [5, 30], [5, 50], [15, 10], [15, 30], [15, 50]], rtol=1e-6
    )
