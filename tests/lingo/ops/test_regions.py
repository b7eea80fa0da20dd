"""Regions: matching, sampling and proposals against slow NumPy, and under XLA.

Axes: B batch, A regions, N objects of an image.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops import random
from lingo.ops.boxes import box_overlaps
from lingo.ops.regions import (
    BACKGROUND,
    IGNORED,
    match_regions,
    propose_regions,
    sample_regions,
)

DRAW = np.random.default_rng(0)
B, A, N = 3, 40, 4


def random_boxes(*shape: int) -> np.ndarray:
    center, size = DRAW.uniform(0.2, 0.8, [*shape, 2]), DRAW.uniform(0.1, 0.5, [*shape, 2])
    return np.concatenate([center - size / 2, center + size / 2], -1).clip(0, 1).astype("f")


BOXES, REGIONS = random_boxes(B, N), random_boxes(A)
LABELS = np.array([[1, 2, 3, 0], [4, 0, 0, 5], [0, 0, 0, 0]], "i")
BOUNDS = {"min_overlap": 0.5, "max_background": 0.2, "claims_best": True}


def match(regions: Any = REGIONS, boxes: Any = BOXES, labels: Any = LABELS, **bounds: Any) -> Any:
    arguments = (tf.constant(value) for value in (regions, boxes, labels))
    return match_regions(*arguments, **BOUNDS | bounds).numpy()


def slow_match(overlaps: np.ndarray, labels: np.ndarray, *, claims_best: bool) -> np.ndarray:
    """Returns the objects of an image's regions; `overlaps` are [N, A]."""
    overlaps = np.where(labels[:, None] > 0, overlaps, 0)
    objects = np.full(A, IGNORED)
    for a in range(A):
        best = int(overlaps[:, a].argmax())
        if overlaps[best, a] >= 0.5:
            objects[a] = best
        elif overlaps[best, a] < 0.2:
            objects[a] = BACKGROUND
    claims: dict[int, int] = {}
    for n in np.flatnonzero(labels) if claims_best else ():
        a = int(overlaps[n].argmax())
        if overlaps[n, a] > overlaps[claims[a], a] if a in claims else overlaps[n, a] > 0:
            claims[a] = int(n)
    for a, n in claims.items():
        objects[a] = n
    return objects


@pytest.mark.parametrize("claims_best", [True, False])
def test_regions_take_their_object_and_objects_their_best_region(claims_best: bool) -> None:
    overlaps = box_overlaps(tf.constant(BOXES), tf.constant(REGIONS)).numpy()
    found = match(claims_best=claims_best)
    for i in range(B):
        expected = slow_match(overlaps[i], LABELS[i], claims_best=claims_best)
        np.testing.assert_array_equal(found[i], expected)
    assert {BACKGROUND, IGNORED, 0} <= set(found.flat)
    assert (found[2] == BACKGROUND).all()  # an image without objects


def test_each_object_has_a_region_however_little_they_overlap() -> None:
    box, region = [[[0.0, 0.0, 0.1, 0.1]]], [[0.09, 0.09, 1.0, 1.0], [0.5, 0.5, 1.0, 1.0]]
    assert match(np.array(region, "f"), np.array(box, "f"), [[1]]).tolist() == [[0, -1]]
    assert match(np.array(region[1:], "f"), np.array(box, "f"), [[1]]).tolist() == [[-1]]


def test_regions_of_each_image_may_differ() -> None:
    each = np.stack([REGIONS, REGIONS[::-1], REGIONS])
    found = match(each)
    np.testing.assert_array_equal(found[1], match()[1][::-1])
    np.testing.assert_array_equal(found[0], match()[0])


def keys(ids: Any, seed: int = 0) -> random.Key:
    return random.fold(random.root_key(seed), tf.constant(ids))


OBJECTS = DRAW.choice([IGNORED, BACKGROUND, 0, 1], size=[B, A], p=[0.2, 0.4, 0.2, 0.2]).astype("i")


def sample(objects: Any = OBJECTS, ids: Any = (0, 1, 2), **fields: Any) -> Any:
    limits = {"num": 12, "max_objects": 5} | fields
    return sample_regions(tf.constant(objects), keys(ids), **limits)


def test_a_sample_has_objects_first_then_background_and_nothing_twice() -> None:
    found = sample()
    for i in range(B):
        indices = found.indices.numpy()[i]
        assert len(set(indices)) == 12
        assert found.is_object.numpy()[i].tolist() == [True] * 5 + [False] * 7
        assert (OBJECTS[i, indices[:5]] >= 0).all()
        assert (OBJECTS[i, indices[5:]] == BACKGROUND).all()
    assert found.is_counted.numpy().all()


def test_background_takes_the_places_of_missing_objects_and_the_rest_stays_empty() -> None:
    objects = np.full([2, 10], IGNORED, "i")
    objects[0, 3], objects[0, 5:9] = 2, BACKGROUND
    objects[1, :2] = [1, 0]
    found = sample(objects, (0, 1), num=8, max_objects=4)
    assert found.is_object.numpy().sum(1).tolist() == [1, 2]
    assert found.is_counted.numpy().sum(1).tolist() == [5, 2]
    assert found.is_counted.numpy()[:, 0].all()
    assert set(found.indices.numpy()[0, :5]) == {3, 5, 6, 7, 8}


def test_a_sample_depends_on_its_example_and_not_on_the_batch() -> None:
    whole, alone = sample(), sample(OBJECTS[1:2], (1,))
    for one, other in zip(whole, alone, strict=True):
        np.testing.assert_array_equal(one.numpy()[1:2], other.numpy())
    same = np.stack([OBJECTS[0]] * 2)
    first, second = sample(same, (0, 1)).indices.numpy()
    assert set(first) != set(second)


def test_each_region_is_drawn_equally_often() -> None:
    objects = np.tile(np.array([0] * 4 + [BACKGROUND] * 6, "i"), (2000, 1))
    found = sample(objects, np.arange(2000, dtype="i"), num=5, max_objects=2).indices.numpy()
    counts = np.bincount(found.ravel(), minlength=10)
    np.testing.assert_allclose(counts[:4], 2000 * 2 / 4, atol=5 * np.sqrt(500))
    np.testing.assert_allclose(counts[4:], 2000 * 3 / 6, atol=5 * np.sqrt(500))


SIZES = [20, 12, 8]
LOGITS = DRAW.permutation(B * A).reshape(B, A).astype("f") - 60  # no two are equal
EACH = random_boxes(B, A)


def propose(boxes: Any = EACH, logits: Any = LOGITS, **fields: Any) -> Any:
    limits = {"max_per_level": 10, "max_overlap": 0.3, "num": 9} | fields
    return propose_regions(tf.constant(boxes), tf.constant(logits), level_sizes=SIZES, **limits)


def slow_propose(boxes: np.ndarray, logits: np.ndarray) -> list[int]:
    """Returns the indices of an image's proposals."""
    overlaps = box_overlaps(tf.constant(boxes), tf.constant(boxes)).numpy()
    kept: list[int] = []
    for start, size in zip(np.cumsum([0, *SIZES]), SIZES, strict=False):
        level: list[int] = []
        for a in start + np.argsort(-logits[start : start + size])[:10]:
            if all(overlaps[a, other] <= 0.3 for other in level):
                level.append(int(a))
        kept += level
    return sorted(kept, key=lambda a: -logits[a])


def test_proposals_are_the_likeliest_that_overlap_none_of_their_level() -> None:
    found = propose()
    assert found.is_found.numpy().all()
    for i in range(B):
        expected = slow_propose(EACH[i], LOGITS[i])[:9]
        np.testing.assert_array_equal(found.boxes.numpy()[i], EACH[i][expected])


def test_places_without_a_proposal_are_empty() -> None:
    found = propose(num=30)
    for i in range(B):
        expected = slow_propose(EACH[i], LOGITS[i])
        assert found.is_found.numpy()[i].sum() == len(expected) < 28
        assert not found.boxes.numpy()[i, len(expected) :].any()


def test_xla_computes_the_same() -> None:
    def compute() -> tuple[Any, ...]:
        matches = match_regions(*map(tf.constant, (REGIONS, BOXES, LABELS)), **BOUNDS)
        return matches, *sample(), *propose()

    compiled = tf.function(compute, jit_compile=True, autograph=False)
    for one, other in zip(compute(), compiled(), strict=True):
        np.testing.assert_array_equal(one, other)
