"""Matching, hard negatives and non-maximum suppression against slow NumPy, and under XLA.

Axes: B batch, N true boxes, A anchors, K classes, M candidates of a class.
"""

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.detection import hard_negatives, match_anchors, select_detections, suppress
from tests.lingo.ops.test_boxes import slow_overlap

B, N, A, K = 3, 6, 100, 4
DRAW = np.random.default_rng(1)


def random_boxes(*shape):
    center, size = DRAW.uniform(0.2, 0.8, [*shape, 2]), DRAW.uniform(0.1, 0.6, [*shape, 2])
    return np.concatenate([center - size / 2, center + size / 2], -1).astype("f")


BOXES, ANCHORS = random_boxes(B, N), random_boxes(A)
LABELS = DRAW.integers(1, K + 1, [B, N]).astype("i")
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
    order = DRAW.permutation(N)
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
    losses = DRAW.integers(0, 9, [B, A]).astype("f")  # with equal ones
    is_object = DRAW.uniform(size=[B, A]) < np.array([[0.1], [0.4], [0.0]])
    chosen = hard_negatives(tf.constant(losses), tf.constant(is_object), per_object=per_object)
    for i in range(B):
        negatives = [a for a in range(A) if not is_object[i, a]]
        hardest = sorted(negatives, key=lambda a: -losses[i, a])  # stable
        expected = np.zeros(A, bool)
        expected[hardest[: int(per_object * is_object[i].sum())]] = True
        np.testing.assert_array_equal(chosen[i], expected)


# ---- what is found ------------------------------------------------------------------------------

CANDIDATES = random_boxes(B, A)
SCORES = DRAW.uniform(size=[B, A, K]).astype("f") ** 2
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
    found = select_detections(tf.constant(CANDIDATES), tf.constant(SCORES), **limits)
    for i in range(B):
        expected = slow_detections(CANDIDATES[i], SCORES[i], **limits)
        num = len(expected)
        assert num < len(found.scores[i].numpy()) or num == limits["max_detections"]
        np.testing.assert_array_equal(found.scores[i, :num], [one[0] for one in expected])
        np.testing.assert_array_equal(found.labels[i, :num], [one[1] for one in expected])
        np.testing.assert_array_equal(found.boxes[i, :num], [one[2] for one in expected])
        for rest in (found.boxes[i, num:], found.labels[i, num:], found.scores[i, num:]):
            assert not np.any(rest)


def test_a_box_of_one_class_suppresses_none_of_another():
    boxes = tf.constant([[[0.0, 0.0, 1.0, 1.0]] * 2])
    scores = tf.constant([[[0.9, 0.0], [0.8, 0.7]]])
    found = select_detections(boxes, scores, **LIMITS)
    assert found.labels.numpy()[0, :3].tolist() == [1, 2, 0]


def test_xla_computes_the_same():
    def compute(boxes, labels, anchors, losses, candidates, scores):
        matches = match_anchors(boxes, labels, anchors)
        negatives = hard_negatives(losses, matches.labels > 0)
        return matches, negatives, select_detections(candidates, scores, **LIMITS)

    losses = DRAW.uniform(size=[B, A]).astype("f")
    args = [tf.constant(x) for x in (BOXES, LABELS, ANCHORS, losses, CANDIDATES, SCORES)]
    tf.nest.map_structure(
        np.testing.assert_array_equal,
        compute(*args),
        tf.function(compute, jit_compile=True)(*args),
    )
