"""Boxes of objects in images: areas, overlaps, codes relative to anchors, and detection.

A box is (top, left, bottom, right), as fractions of its image's height and width. For detection,
functions match anchors to objects, select the background anchors that the loss counts, and select
the boxes to return. All shapes are static, so that XLA compiles these functions.

Axes: B batch, N boxes, A anchors, K classes, M candidates of a class, D detections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.ops.shape import size_of, sizes_of

VARIANCES = (0.1, 0.2)
"""Centre offsets and log size ratios in codes are divided by these numbers, so that both have about
unit variance (Liu et al. 2016)."""

_CLAIM = 2.0  # more than any overlap


def box_areas(boxes: tf.Tensor) -> tf.Tensor:
    """Returns the areas [...] of boxes [..., 4] of any float type. An empty box has area 0.

    >>> box_areas(tf.constant([[0.0, 0.0, 0.5, 0.5], [0.5, 0.0, 0.4, 1.0]])).numpy()
    array([0.25, 0.  ], dtype=float32)
    """
    top, left, bottom, right = tf.unstack(boxes, axis=-1)
    return tf.maximum(bottom - top, 0) * tf.maximum(right - left, 0)


def box_overlaps(boxes: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Returns the intersection over union (Jaccard overlap) of each box with each of `others`.

    Args:
        boxes: [..., N, 4], any float type.
        others: [..., A, 4], the same type; leading axes broadcast.

    Returns:
        [..., N, A], 0..1; 0 where both boxes are empty.

    >>> both = tf.constant([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.5, 1.0]])
    >>> box_overlaps(both, both).numpy()
    array([[1. , 0.5],
           [0.5, 1. ]], dtype=float32)
    """
    top, left, bottom, right = tf.unstack(tf.expand_dims(boxes, -2), axis=-1)
    others_in_row = tf.expand_dims(others, -3)
    other_top, other_left, other_bottom, other_right = tf.unstack(others_in_row, axis=-1)
    height = tf.minimum(bottom, other_bottom) - tf.maximum(top, other_top)
    width = tf.minimum(right, other_right) - tf.maximum(left, other_left)
    common = tf.maximum(height, 0) * tf.maximum(width, 0)
    areas = tf.expand_dims(box_areas(boxes), -1) + tf.expand_dims(box_areas(others), -2)
    return tf.math.divide_no_nan(common, areas - common)


def encode_boxes(
    boxes: tf.Tensor, anchors: tf.Tensor, *, variances: tuple[float, float] = VARIANCES
) -> tf.Tensor:
    """Encodes boxes relative to anchors (Girshick et al. 2014, app. C; Liu et al. 2016, eq. 2).

    Args:
        boxes: [..., A, 4], any float type, none of them empty.
        anchors: [..., A, 4] or [A, 4], the same type, the anchor of each box, not empty either.
        variances: divisors of the centre's offset and of the logarithms, which the paper calls
            variances.

    Returns:
        [..., A, 4]: the centre's offset from the anchor's, down and right, in units of the anchor's
        size, divided by 0.1; then the logarithms of the height and width ratios, divided by 0.2.

    >>> anchor, box = [[0.0, 0.0, 0.5, 0.5]], [[0.25, 0.0, 0.75, 0.5]]
    >>> encode_boxes(tf.constant(box), tf.constant(anchor)).numpy().round(3)
    array([[5., 0., 0., 0.]], dtype=float32)
    """
    center, size = _center_and_size(boxes)
    anchor_center, anchor_size = _center_and_size(anchors)
    center_variance, size_variance = variances
    shift = (center - anchor_center) / (anchor_size * center_variance)
    return tf.concat([shift, tf.math.log(size / anchor_size) / size_variance], axis=-1)


def decode_boxes(
    codes: tf.Tensor,
    anchors: tf.Tensor,
    *,
    variances: tuple[float, float] = VARIANCES,
    max_log_ratio: float | None = None,
) -> tf.Tensor:
    """Inverts `encode_boxes`: returns boxes from codes, both [..., A, 4] of any float type.

    Anchors and variances are as in `encode_boxes`. No side of a box is longer than its anchor's
    side times exp(`max_log_ratio`); None: no limit.

    >>> anchors = tf.constant([[0.0, 0.0, 0.5, 0.5]])
    >>> codes = encode_boxes(tf.constant([[0.25, 0.0, 0.5, 1.0]]), anchors)
    >>> decode_boxes(codes, anchors).numpy().round(3)
    array([[0.25, 0.  , 0.5 , 1.  ]], dtype=float32)
    """
    anchor_center, anchor_size = _center_and_size(anchors)
    shift, ratio = tf.split(codes, 2, axis=-1)
    center_variance, size_variance = variances
    center = anchor_center + shift * center_variance * anchor_size
    ratio *= size_variance
    if max_log_ratio is not None:
        ratio = tf.minimum(ratio, max_log_ratio)
    half = 0.5 * anchor_size * tf.exp(ratio)
    return tf.concat([center - half, center + half], axis=-1)


def _center_and_size(boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns centres and sizes, both [..., 2] as (down, right), of boxes [..., 4]."""
    low, high = tf.split(boxes, 2, axis=-1)
    return 0.5 * (low + high), high - low


class AnchorMap(NamedTuple):
    """The anchors at all positions of one feature map. Lengths are in pixels of the image."""

    size: tuple[int, int]  # height and width of the map
    step: tuple[float, float]  # from one position to the next, down and right
    scale: float  # side of the square anchor
    # scale of the next map: a second square's side is the geometric mean of both scales; None: one
    # square only
    next_scale: float | None
    ratios: Sequence[float]  # aspect ratios of oblong anchors: each gives a wide and a tall anchor
    is_limited: bool = True  # whether sides are at most the image's, and centres inside it

    @property
    def num_shapes(self) -> int:
        """The number of anchors per position."""
        return (1 if self.next_scale is None else 2) + 2 * len(self.ratios)


def anchor_boxes(maps: Sequence[AnchorMap], *, image: tuple[int, int]) -> np.ndarray:
    """Returns the anchors of all maps, float32 [A, 4] (Liu et al. 2016, sec. 2.2).

    Anchors are ordered by map, then by position (row by row), then by shape. The shapes are one or
    two squares, then for each ratio r a wide and a tall anchor with sides scale * sqrt(r) and scale
    / sqrt(r). `image` is (height, width) in pixels. With `is_limited`, no anchor is larger than the
    image, and a centre outside of the image moves to its border. Anchors may reach over the border.

    >>> one = AnchorMap(size=(1, 1), step=(4, 4), scale=2, next_scale=8, ratios=[])
    >>> anchor_boxes([one], image=(4, 4))
    array([[0.25, 0.25, 0.75, 0.75],
           [0.  , 0.  , 1.  , 1.  ]], dtype=float32)
    """
    boxes = []
    for grid in maps:
        shapes = [(grid.scale, grid.scale)]
        if grid.next_scale is not None:
            shapes += [(np.sqrt(grid.scale * grid.next_scale),) * 2]
        for root in np.sqrt(grid.ratios):
            wide = (grid.scale / root, grid.scale * root)
            shapes += [wide, wide[::-1]]
        limit = 1.0 if grid.is_limited else np.inf
        halves = np.minimum(np.array(shapes) / image, limit) / 2
        pairs = zip(grid.size, grid.step, strict=True)
        rows, columns = ((np.arange(n) + 0.5) * step for n, step in pairs)
        centers = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1) / image
        centers = np.minimum(centers, limit)[:, :, None]
        low, high = centers - halves, centers + halves
        boxes.append(np.concatenate([low, high], axis=-1).reshape(-1, 4))
    return np.concatenate(boxes).astype(np.float32)


# ---- detection -----------------------------------------------------------------------------------


class Matches(NamedTuple):
    """The object to which each anchor is matched."""

    labels: tf.Tensor  # int32 [B, A]; 0: no object, the background
    boxes: tf.Tensor  # float32 [B, A, 4]; for the background, the anchor itself


def match_anchors(
    boxes: tf.Tensor, labels: tf.Tensor, anchors: tf.Tensor, *, min_overlap: float = 0.5
) -> Matches:
    """Matches each anchor to an object or the background (Liu et al. 2016, sec. 2.2).

    First each object takes the anchor that overlaps it most. Then each remaining anchor takes the
    object that overlaps it most, if the overlap is at least `min_overlap`. An anchor that several
    objects would take gets the object that it overlaps most, whatever the order of objects; in
    MLPerf's reference, it gets the last of these objects.

    Args:
        boxes: float32 [B, N, 4].
        labels: int32 [B, N], 1..K; boxes of label 0 are padding and match nothing.
        anchors: float32 [A, 4].
        min_overlap: least intersection over union, 0..1.

    >>> anchors = tf.constant([[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]])
    >>> match_anchors(anchors[None, :1] + 0.125, tf.constant([[7]]), anchors).labels.numpy()
    array([[7, 0]], dtype=int32)
    """
    overlaps = box_overlaps(boxes, anchors)  # [B, N, A]
    overlaps = tf.where(tf.expand_dims(labels > 0, -1), overlaps, 0.0)
    best = tf.one_hot(tf.argmax(overlaps, axis=2), anchors.shape[0], True, False)
    claims = tf.where(best & (overlaps > 0), overlaps + _CLAIM, overlaps)
    objects = tf.argmax(claims, axis=1)  # [B, A]
    is_matched = tf.reduce_max(claims, axis=1) >= min_overlap
    return Matches(
        tf.where(is_matched, tf.gather(labels, objects, batch_dims=1), 0),
        tf.where(tf.expand_dims(is_matched, -1), tf.gather(boxes, objects, batch_dims=1), anchors),
    )


def hard_negatives(
    losses: tf.Tensor, is_object: tf.Tensor, *, per_object: float = 3.0
) -> tf.Tensor:
    """Selects the background anchors with the largest losses (Liu et al. 2016, sec. 2.2).

    Args:
        losses: float32 [B, A], not negative.
        is_object: bool [B, A], whether an anchor has an object.
        per_object: the number of background anchors per anchor with an object, in each image. If an
            image has fewer, all are selected. Of equal losses, the first is selected.

    Returns:
        bool [B, A].

    >>> losses, is_object = tf.constant([[3.0, 1.0, 2.0]]), tf.constant([[True, False, False]])
    >>> hard_negatives(losses, is_object, per_object=1).numpy()
    array([[False, False,  True]])
    """
    num = tf.reduce_sum(tf.cast(is_object, tf.float32), axis=1, keepdims=True)
    losses = tf.where(is_object, -1.0, losses)
    order = tf.argsort(losses, axis=1, direction="DESCENDING", stable=True)
    rank = tf.cast(tf.argsort(order, axis=1), tf.float32)
    return tf.logical_not(is_object) & (rank < per_object * num)


class Detections(NamedTuple):
    """The objects found in each image, the likeliest first."""

    boxes: tf.Tensor  # float32 [B, D, 4]; zeros after the last object
    labels: tf.Tensor  # int32 [B, D], 1..K; 0 after the last object
    scores: tf.Tensor  # float32 [B, D]; 0 after the last object


def select_detections(
    boxes: tf.Tensor,
    scores: tf.Tensor,
    *,
    min_score: float,
    max_overlap: float,
    max_per_class: int,
    max_detections: int,
) -> Detections:
    """Returns the likeliest boxes that do not overlap likelier boxes of their class.

    Args:
        boxes: float32 [B, A, K, 4], a box for each class, or [B, A, 1, 4], one for all classes.
        scores: float32 [B, A, K] in 0..1, for the classes 1..K.
        min_score: boxes of this score or less are dropped; not negative.
        max_overlap: largest intersection over union of two boxes of a class, 0..1.
        max_per_class: M, the number of each class's likeliest boxes that are considered.
        max_detections: D, the number of boxes per image; less if all classes together have fewer
            candidates.

    >>> boxes = tf.constant([[[[0.0, 0.0, 1.0, 1.0]], [[0.0, 0.0, 1.0, 0.9]]]])
    >>> limits = {"min_score": 0.1, "max_overlap": 0.5, "max_per_class": 2, "max_detections": 2}
    >>> select_detections(boxes, tf.constant([[[0.5], [0.75]]]), **limits).scores.numpy()
    array([[0.75, 0.  ]], dtype=float32)
    """
    num_candidates = min(max_per_class, size_of(scores, 1))
    top, index = tf.math.top_k(tf.transpose(scores, [0, 2, 1]), num_candidates)  # [B, K, M]
    if size_of(boxes, 2) == 1:
        candidates = tf.gather(tf.squeeze(boxes, 2), index, batch_dims=1)
    else:
        candidates = tf.gather(tf.transpose(boxes, [0, 2, 1, 3]), index, batch_dims=2)
    is_kept = suppress(candidates, max_overlap=max_overlap) & (top > min_score)
    _, num_classes, num_each = sizes_of(top)
    size = num_classes * num_each
    flat = tf.reshape(tf.where(is_kept, top, 0.0), [-1, size])
    best, position = tf.math.top_k(flat, min(max_detections, size))
    is_box = best > 0
    best_boxes = tf.gather(tf.reshape(candidates, [-1, size, 4]), position, batch_dims=1)
    return Detections(
        tf.where(tf.expand_dims(is_box, -1), best_boxes, 0.0),
        tf.where(is_box, position // num_each + 1, 0),
        best,
    )


def suppress(boxes: tf.Tensor, *, max_overlap: float) -> tf.Tensor:
    """Returns which boxes greedy non-maximum suppression keeps, bool [..., M].

    A box is dropped if it overlaps an earlier kept box by more than `max_overlap`.

    Args:
        boxes: [..., M, 4], any float type, the likeliest first.
        max_overlap: intersection over union, 0..1.

    >>> boxes = [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.9, 1.0], [0.0, 0.0, 0.4, 1.0]]
    >>> suppress(tf.constant(boxes), max_overlap=0.5).numpy()
    array([ True, False,  True])
    """
    num: Any = boxes.shape[-2]
    places = tf.range(num)

    def drop(i: tf.Tensor, is_kept: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        box = tf.gather(boxes, i[None], axis=-2)
        overlaps = tf.squeeze(box_overlaps(box, boxes), -2)
        is_dropped = tf.gather(is_kept, i[None], axis=-1) & (overlaps > max_overlap)
        return i + 1, is_kept & tf.logical_not(is_dropped & (places > i))

    start = tf.ones(tf.shape(boxes)[:-1], tf.bool)
    start = tf.ensure_shape(start, boxes.shape[:-1])
    _, is_kept = tf.while_loop(
        lambda i, _: i < num, drop, (tf.constant(0), start), maximum_iterations=num
    )
    return is_kept
