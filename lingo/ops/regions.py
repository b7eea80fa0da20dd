"""Regions of detectors with two stages: matching, sampling and proposals, all with fixed shapes.

The first stage scores anchors and moves them: the likeliest that do not overlap are proposals. The
second stage classifies proposals. Both learn from a sample of regions that is matched with objects
(Ren et al. 2015, sec. 3; Lin et al. 2017a, sec. 4). Random numbers depend on a key for each
example, so a sample is the same on any number of devices.

A box is (top, left, bottom, right), as fractions of its image's height and width.

Axes: B batch, A regions, N objects of an image, S sampled regions, P proposals, L levels of a
pyramid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lingo.config.lazy import tf
from lingo.ops import random
from lingo.ops.boxes import box_overlaps, suppress
from lingo.ops.shape import size_of

BACKGROUND, IGNORED = -1, -2
"""In place of an object's index: the region shows no object; it is neither counted as an object nor
as background."""

_CLAIM = 2.0  # more than any overlap
_LEAST = -1e9  # below any logit of a region


def match_regions(
    regions: tf.Tensor,
    boxes: tf.Tensor,
    labels: tf.Tensor,
    *,
    min_overlap: float,
    max_background: float,
    claims_best: bool,
) -> tf.Tensor:
    """Returns the index of each region's object, `BACKGROUND`, or `IGNORED`; int32 [B, A].

    A region takes the object that it overlaps most, if by at least `min_overlap`. It is background
    if it overlaps every object by less than `max_background`, and is ignored between these bounds.

    Args:
        regions: float32 [B, A, 4], or [A, 4] for the same regions in all images.
        boxes: float32 [B, N, 4].
        labels: int32 [B, N]; boxes of label 0, such as padding or crowds, match nothing.
        min_overlap: least intersection over union of a region and its object, 0..1.
        max_background: intersection over union below which a region is background, 0..1.
        claims_best: whether each object also takes the region that overlaps it most, however
            little, as the anchors of a region proposal network do.

    >>> regions = tf.constant([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.5], [0.5, 0.5, 1.0, 1.0]])
    >>> box, label = tf.constant([[[0.0, 0.0, 1.0, 0.8]]]), tf.constant([[3]])
    >>> bounds = {"min_overlap": 0.7, "max_background": 0.3, "claims_best": False}
    >>> match_regions(regions, box, label, **bounds).numpy()
    array([[ 0, -2, -1]], dtype=int32)
    """
    overlaps = box_overlaps(boxes, regions)  # [B, N, A]
    overlaps = tf.where(tf.expand_dims(labels > 0, -1), overlaps, 0.0)
    claims = overlaps
    if claims_best:
        best = tf.one_hot(tf.argmax(overlaps, axis=2), regions.shape[-2], True, False)
        claims = tf.where(best & (overlaps > 0), overlaps + _CLAIM, overlaps)
    strongest = tf.reduce_max(claims, axis=1)
    none = tf.where(strongest < max_background, BACKGROUND, IGNORED)
    objects = tf.argmax(claims, axis=1, output_type=tf.int32)
    return tf.where((strongest >= min_overlap) & (strongest > 0), objects, none)


class Sample(NamedTuple):
    """A sample of an image's regions: first regions with an object, then background, then none."""

    indices: tf.Tensor  # int32 [B, S], of the regions; any region where `is_counted` is false
    is_object: tf.Tensor  # bool [B, S], whether the region has an object
    is_counted: tf.Tensor  # bool [B, S], whether a region was found for this place


def sample_regions(objects: tf.Tensor, keys: random.Key, *, num: int, max_objects: int) -> Sample:
    """Draws regions of each image, at most `max_objects` with an object, the others background.

    Regions are drawn without replacement. If there are fewer regions with objects, there is more
    background; if there is too little background, places stay empty.

    Args:
        objects: int32 [B, A], as `match_regions` returns it.
        keys: keys of the examples, [B].
        num: S; if there are fewer regions, S may be less.
        max_objects: at most `num`.

    >>> keys = random.fold(random.root_key(0), tf.constant([0]))
    >>> sample = sample_regions(tf.constant([[-1, 5, -2, 7]]), keys, num=3, max_objects=1)
    >>> sample.is_object.numpy(), sample.is_counted.numpy()
    (array([[ True, False, False]]), array([[ True,  True, False]]))
    """
    num_regions = size_of(objects, 1)
    draws = random.uniform(keys, num_regions)
    parts = []
    for wanted, most in ((objects >= 0, max_objects), (objects == BACKGROUND, num)):
        top, index = tf.math.top_k(tf.where(wanted, draws, -1.0), min(most, num_regions))
        parts.append((index, top >= 0))
    indices = tf.concat([index for index, _ in parts], 1)
    found = tf.concat([is_found for _, is_found in parts], 1)
    size = size_of(indices, 1)
    # all places in order, those with a region first
    order = tf.where(found, 2.0 * size, float(size)) - tf.range(float(size))
    _, places = tf.math.top_k(order, min(num, size))
    is_counted = tf.gather(found, places, batch_dims=1)
    return Sample(
        tf.gather(indices, places, batch_dims=1),
        is_counted & (places < parts[0][0].shape[1]),
        is_counted,
    )


class Proposals(NamedTuple):
    """The regions that a first stage proposes, the likeliest first."""

    boxes: tf.Tensor  # float32 [B, P, 4]; zeros after the last one
    is_found: tf.Tensor  # bool [B, P], whether there is a region at this place


def propose_regions(
    boxes: tf.Tensor,
    logits: tf.Tensor,
    *,
    level_sizes: Sequence[int],
    max_per_level: int,
    max_overlap: float,
    num: int,
) -> Proposals:
    """Returns the likeliest boxes that do not overlap likelier boxes of their level.

    Args:
        boxes: float32 [B, A, 4], in the image.
        logits: float32 [B, A].
        level_sizes: the number of boxes of each level, [L]; they add up to A.
        max_per_level: the number of each level's likeliest boxes that are considered.
        max_overlap: largest intersection over union of two proposals of a level, 0..1.
        num: P; if all levels together have fewer considered boxes, P is less.

    >>> boxes = tf.constant([[[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9]]])
    >>> limits = {"max_per_level": 2, "max_overlap": 0.7, "num": 2}
    >>> propose_regions(boxes, tf.zeros([1, 2]), level_sizes=[2], **limits).is_found.numpy()
    array([[ True, False]])
    """
    widest = min(max_per_level, max(level_sizes))
    parts, tops = [], []
    levels = zip(tf.split(boxes, level_sizes, 1), tf.split(logits, level_sizes, 1), strict=True)
    for size, (own, scores) in zip(level_sizes, levels, strict=True):
        top, index = tf.math.top_k(scores, min(max_per_level, size))
        ends = [[0, 0], [0, widest - top.shape[1]]]  # levels of one size share a loop of `suppress`
        parts.append(tf.pad(tf.gather(own, index, batch_dims=1), [*ends, [0, 0]]))
        tops.append(tf.pad(tf.maximum(top, _LEAST / 2), ends, constant_values=_LEAST))
    candidates, scores = tf.stack(parts, 1), tf.stack(tops, 1)  # [B, L, M, 4], [B, L, M]
    is_kept = suppress(candidates, max_overlap=max_overlap)
    size = len(level_sizes) * widest
    flat = tf.reshape(tf.where(is_kept, scores, _LEAST), [-1, size])
    best, place = tf.math.top_k(flat, min(num, size))
    is_found = best > _LEAST
    found = tf.gather(tf.reshape(candidates, [-1, size, 4]), place, batch_dims=1)
    return Proposals(tf.where(tf.expand_dims(is_found, -1), found, 0.0), is_found)
