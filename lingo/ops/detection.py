"""Detection: which anchors are which objects, which others the loss counts, and what is found.

All shapes are static, so that XLA compiles these functions; box codes are those of `ops/boxes.py`.

Axes: B batch, N true boxes, A anchors, K classes, M candidates of a class, D detections.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lingo.config.lazy import tf
from lingo.ops.boxes import box_overlaps

_CLAIM = 2.0  # more than any overlap


class Matches(NamedTuple):
    """The object of each anchor."""

    labels: tf.Tensor  # int32 [B, A]; 0: no object, the background
    boxes: tf.Tensor  # float32 [B, A, 4]; of the background: the anchor itself


def match_anchors(
    boxes: tf.Tensor, labels: tf.Tensor, anchors: tf.Tensor, *, min_overlap: float = 0.5
) -> Matches:
    """Returns the object of each anchor (Liu et al. 2016, sec. 2.2).

    First each object takes the anchor that overlaps it most, then each anchor that is left takes
    the object that overlaps it most, if by at least `min_overlap`. An anchor that is the best one
    of several objects takes the one that it overlaps most, whatever their order; in MLPerf's
    reference it takes the last one.

    Args:
        boxes: float32 [B, N, 4].
        labels: int32 [B, N], 1..K; 0 for boxes that are absent, and so match nothing.
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
    """Returns the anchors without an object whose loss is largest (Liu et al. 2016, sec. 2.2).

    Args:
        losses: float32 [B, A], not negative.
        is_object: bool [B, A], whether an anchor has an object.
        per_object: how many negatives there are for each of these, in each image; not more than
            there are. Of equal losses the first counts.

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
    """What is found in each image, the likeliest first."""

    boxes: tf.Tensor  # float32 [B, D, 4]; zeros where there is nothing more
    labels: tf.Tensor  # int32 [B, D], 1..K; 0 where there is nothing more
    scores: tf.Tensor  # float32 [B, D], likewise


def select_detections(
    boxes: tf.Tensor,
    scores: tf.Tensor,
    *,
    min_score: float,
    max_overlap: float,
    max_per_class: int,
    max_detections: int,
) -> Detections:
    """Returns the likeliest boxes that do not overlap likelier ones of their class.

    Args:
        boxes: float32 [B, A, 4].
        scores: float32 [B, A, K], of the classes 1..K, 0..1.
        min_score: boxes of this score and less are nothing; not negative.
        max_overlap: largest intersection over union of two boxes of a class, 0..1.
        max_per_class: of each class, so many of the likeliest boxes are looked at: M.
        max_detections: D; fewer if all classes have not so many candidates.

    >>> boxes = tf.constant([[[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9]]])
    >>> limits = {"min_score": 0.1, "max_overlap": 0.5, "max_per_class": 2, "max_detections": 2}
    >>> select_detections(boxes, tf.constant([[[0.5], [0.75]]]), **limits).scores.numpy()
    array([[0.75, 0.  ]], dtype=float32)
    """
    sizes: Any = scores.shape
    _, num_anchors, num_classes = sizes
    top, index = tf.math.top_k(tf.transpose(scores, [0, 2, 1]), min(max_per_class, num_anchors))
    candidates = tf.gather(boxes, index, batch_dims=1)  # [B, K, M, 4]
    is_kept = suppress(candidates, max_overlap=max_overlap) & (top > min_score)
    num_each = top.shape[2]
    size = num_classes * num_each
    flat = tf.reshape(tf.where(is_kept, top, 0.0), [-1, size])
    best, where = tf.math.top_k(flat, min(max_detections, size))
    is_box = best > 0
    best_boxes = tf.gather(tf.reshape(candidates, [-1, size, 4]), where, batch_dims=1)
    return Detections(
        tf.where(tf.expand_dims(is_box, -1), best_boxes, 0.0),
        tf.where(is_box, where // num_each + 1, 0),
        best,
    )


def suppress(boxes: tf.Tensor, *, max_overlap: float) -> tf.Tensor:
    """Returns which boxes greedy non-maximum suppression keeps, bool [..., M].

    A box is kept unless it overlaps an earlier one, which is kept, by more than `max_overlap`.

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
