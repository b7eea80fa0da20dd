"""Boxes, anchors, matching and non-maximum suppression against slow NumPy, and under XLA.

Axes: B batch, N boxes, A anchors, K classes, M candidates of a class.
"""

import itertools

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.boxes import (
    AnchorMap,
    anchor_boxes,
    box_areas,
    box_overlaps,
    decode_boxes,
    encode_boxes,
    hard_negatives,
    match_anchors,
    select_detections,
    suppress,
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


def test_codes_with_and_without_variances_are_those_of_published_examples():
    """The anchor (10, 20, 50, 60) and the box (12, 18, 60, 70), in any unit."""
    anchor = tf.constant([[10.0, 20.0, 50.0, 60.0]], tf.float64)
    box = tf.constant([[12.0, 18.0, 60.0, 70.0]], tf.float64)
    plain = encode_boxes(box, anchor, variances=(1.0, 1.0))
    np.testing.assert_allclose(plain, [[0.15, 0.1, 0.182321557, 0.262364264]], atol=1e-9)
    expected = [[1.5, 1.0, 0.911607784, 1.311821322]]
    np.testing.assert_allclose(encode_boxes(box, anchor), expected, atol=1e-9)
    assert box_overlaps(box, anchor).numpy() == pytest.approx(0.590062112)
    back = decode_boxes(plain, anchor, variances=(1.0, 1.0))
    np.testing.assert_allclose(back, box, rtol=1e-12)


def test_decoded_sides_have_a_limit():
    anchor = tf.constant([[0.0, 0.0, 1.0, 2.0]], tf.float64)
    limits = {"variances": (1.0, 1.0), "max_log_ratio": np.log(1000 / 16)}
    box = decode_boxes(tf.constant([[0.0, 0.0, 9.0, 4.0]], tf.float64), anchor, **limits).numpy()[0]
    assert box[2] - box[0] == pytest.approx(62.5)
    assert box[3] - box[1] == pytest.approx(2 * np.exp(4.0))


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


B, N, A, K = 3, 6, 100, 4
DRAW_OBJECTS = np.random.default_rng(1)


def test_one_square_per_position_that_may_exceed_the_image():
    grid = AnchorMap((2, 3), (4, 4), 8, None, [2], is_limited=False)
    assert grid.num_shapes == 3
    boxes = anchor_boxes([grid], image=(7, 10)).reshape(2, 3, 3, 4) * [7, 10, 7, 10]
    root = np.sqrt(2)
    for row, column in np.ndindex(2, 3):
        y, x = 4 * row + 2, 4 * column + 2
        for box, (h, w) in zip(
            boxes[row, column], [(8, 8), (8 / root, 8 * root), (8 * root, 8 / root)], strict=True
        ):
            expected = [y - h / 2, x - w / 2, y + h / 2, x + w / 2]
            np.testing.assert_allclose(box, expected, atol=1e-5)


def random_objects(*shape):
    center, size = (
        DRAW_OBJECTS.uniform(0.2, 0.8, [*shape, 2]),
        DRAW_OBJECTS.uniform(0.1, 0.6, [*shape, 2]),
    )
    return np.concatenate([center - size / 2, center + size / 2], -1).astype("f")


BOXES, ANCHORS = random_objects(B, N), random_objects(A)
LABELS = DRAW_OBJECTS.integers(1, K + 1, [B, N]).astype("i")
LABELS[1, 2:] = 0  # absent
LABELS[2] = 0
OVERLAPS = np.array([[[slow_overlap(a, b) for b in ANCHORS] for a in image] for image in BOXES])


def slow_match(overlaps, labels, min_overlap=0.5):
    """Returns the index of the object of each anchor of an image, -1 for none."""
    objects, strength = np.full(A, -1), np.zeros(A)
    for n in range(N):
        best = overlaps[n].argmax()
        if labels[n] and overlaps[n, best] > strength[best]:
            objects[best], strength[best] = n, overlaps[n, best]
    for a in np.flatnonzero(objects < 0):
        n = np.where(labels > 0, overlaps[:, a], 0).argmax()
        if labels[n] and overlaps[n, a] >= min_overlap:
            objects[a] = n
    return objects


def match(boxes=BOXES, labels=LABELS, anchors=ANCHORS, **fields):
    return match_anchors(tf.constant(boxes), tf.constant(labels), tf.constant(anchors), **fields)


def test_objects_take_their_best_anchors_and_other_anchors_what_overlaps_them():
    matches = match()
    for i in range(B):
        objects = slow_match(OVERLAPS[i], LABELS[i])
        labels = np.where(objects >= 0, LABELS[i, objects], 0)
        np.testing.assert_array_equal(matches.labels[i], labels)
        boxes = np.where((objects >= 0)[:, None], BOXES[i, objects], ANCHORS)
        np.testing.assert_array_equal(matches.boxes[i], boxes)
    counts = (matches.labels.numpy() > 0).sum(1)
    assert counts[0] > N
    assert counts[1] >= 2 > counts[2] == 0


def test_each_object_gets_its_best_anchor_however_little_they_overlap():
    objects = slow_match(OVERLAPS[0], LABELS[0], min_overlap=2.0)
    labels = match(min_overlap=2.0).labels.numpy()
    np.testing.assert_array_equal(labels[0], np.where(objects >= 0, LABELS[0, objects], 0))
    assert 1 < (labels[0] > 0).sum() <= N


def test_the_order_of_objects_changes_nothing():
    order = DRAW_OBJECTS.permutation(N)
    for one, other in zip(match(), match(BOXES[:, order], LABELS[:, order]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_object_wins_the_anchor_that_another_one_overlaps_more():
    anchors = np.array([[0, 0, 1, 1], [0, 0, 0.2, 0.2]], "f")
    boxes = np.array([[[0, 0, 0.9, 0.9], [0, 0, 0.3, 0.3]]], "f")
    # box 0 overlaps anchor 0 by .81, box 1 by .09; anchor 1 is the best one of box 1 by .44
    labels = match(boxes, np.array([[1, 2]], "i"), anchors).labels
    assert labels.numpy().tolist() == [[1, 2]]


def test_a_box_without_overlap_matches_nothing():
    far = np.tile(np.array([2, 2, 2.5, 2.5], "f"), [1, 1, 1])
    assert not match(far, np.array([[3]], "i")).labels.numpy().any()


# ---- hard negatives -----------------------------------------------------------------------------


@pytest.mark.parametrize("per_object", [0.0, 1.0, 3.0, 100.0])
def test_negatives_are_those_of_the_largest_losses_in_each_image(per_object):
    losses = DRAW_OBJECTS.integers(0, 9, [B, A]).astype("f")  # with equal ones
    is_object = DRAW_OBJECTS.uniform(size=[B, A]) < np.array([[0.1], [0.4], [0.0]])
    chosen = hard_negatives(tf.constant(losses), tf.constant(is_object), per_object=per_object)
    for i in range(B):
        negatives = [a for a in range(A) if not is_object[i, a]]
        hardest = sorted(negatives, key=lambda a: -losses[i, a])  # stable
        expected = np.zeros(A, bool)
        expected[hardest[: int(per_object * is_object[i].sum())]] = True
        np.testing.assert_array_equal(chosen[i], expected)


# ---- what is found ------------------------------------------------------------------------------

CANDIDATES = random_objects(B, A)
SCORES = DRAW_OBJECTS.uniform(size=[B, A, K]).astype("f") ** 2
LIMITS = {"min_score": 0.1, "max_overlap": 0.4, "max_per_class": 15, "max_detections": 12}


def slow_suppress(boxes, max_overlap):
    kept = []
    for i, box in enumerate(boxes):
        if all(slow_overlap(box, boxes[j]) <= max_overlap for j in kept):
            kept.append(i)
    return kept


def slow_detections(boxes, scores, *, min_score, max_overlap, max_per_class, max_detections):
    """Returns (score, label, box) of an image, the likeliest first."""
    found = []
    for k in range(K):
        order = np.argsort(-scores[:, k], kind="stable")[:max_per_class]
        order = order[scores[order, k] > min_score]
        for i in slow_suppress(boxes[order], max_overlap):
            found.append((scores[order[i], k], k + 1, boxes[order[i]].tolist()))
    return sorted(found, key=lambda one: -one[0])[:max_detections]


@pytest.mark.parametrize("max_overlap", [0.0, 0.3, 0.7, 1.0])
def test_suppression_is_greedy(max_overlap):
    is_kept = suppress(tf.constant(CANDIDATES), max_overlap=max_overlap).numpy()
    for i in range(B):
        assert np.flatnonzero(is_kept[i]).tolist() == slow_suppress(CANDIDATES[i], max_overlap)
    assert is_kept[:, 0].all()


@pytest.mark.parametrize(
    "fields", [{}, {"max_detections": 200}, {"min_score": 0.97}, {"max_per_class": 3}]
)
def test_detections_are_the_likeliest_of_all_classes_after_suppression_in_each(fields):
    limits = LIMITS | fields
    boxes = tf.constant(CANDIDATES)[:, :, None]
    found = select_detections(boxes, tf.constant(SCORES), **limits)
    for i in range(B):
        expected = slow_detections(CANDIDATES[i], SCORES[i], **limits)
        num = len(expected)
        assert num < len(found.scores[i].numpy()) or num == limits["max_detections"]
        np.testing.assert_array_equal(found.scores[i, :num], [one[0] for one in expected])
        np.testing.assert_array_equal(found.labels[i, :num], [one[1] for one in expected])
        np.testing.assert_array_equal(found.boxes[i, :num], [one[2] for one in expected])
        for rest in (found.boxes[i, num:], found.labels[i, num:], found.scores[i, num:]):
            assert not np.any(rest)


def test_with_a_box_for_each_class_detections_are_those_of_the_classes_boxes():
    boxes, scores = random_boxes(2, 12, 3).astype("f"), DRAW.uniform(size=[2, 12, 3]).astype("f")
    limits = {"min_score": 0.2, "max_overlap": 0.4, "max_per_class": 8, "max_detections": 9}
    found = select_detections(tf.constant(boxes), tf.constant(scores), **limits)
    for i in range(2):
        every = []
        for k in range(3):
            order = np.argsort(-scores[i, :, k])[:8]
            order = order[scores[i, order, k] > 0.2]
            kept = order[slow_suppress(boxes[i, order, k], 0.4)]
            every += [(scores[i, a, k], k + 1, boxes[i, a, k]) for a in kept]
        best = sorted(every, key=lambda one: -one[0])[:9]
        np.testing.assert_allclose(found.scores.numpy()[i, : len(best)], [b[0] for b in best])
        assert found.labels.numpy()[i, : len(best)].tolist() == [b[1] for b in best]
        np.testing.assert_allclose(found.boxes.numpy()[i, : len(best)], [b[2] for b in best])


def test_a_box_of_one_class_suppresses_none_of_another():
    boxes = tf.constant([[[[0.0, 0.0, 1.0, 1.0]]] * 2])
    scores = tf.constant([[[0.9, 0.0], [0.8, 0.7]]])
    found = select_detections(boxes, scores, **LIMITS)
    assert found.labels.numpy()[0, :3].tolist() == [1, 2, 0]


def test_xla_computes_the_same():
    def compute(boxes, labels, anchors, losses, candidates, scores):
        matches = match_anchors(boxes, labels, anchors)
        negatives = hard_negatives(losses, matches.labels > 0)
        found = select_detections(candidates[:, :, None], scores, **LIMITS)
        return matches, negatives, found

    losses = DRAW_OBJECTS.uniform(size=[B, A]).astype("f")
    args = [tf.constant(x) for x in (BOXES, LABELS, ANCHORS, losses, CANDIDATES, SCORES)]
    tf.nest.map_structure(
        np.testing.assert_array_equal,
        compute(*args),
        tf.function(compute, jit_compile=True)(*args),
    )
