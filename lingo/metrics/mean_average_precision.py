"""COCO's mean average precision of boxes, computed by pycocotools from an additive state.

An average precision is not a mean over images: detections of all images are sorted by score. So the
state keeps every box, in the slot of its image, and the numbers are computed once, from all boxes.
They do not depend on how images are split into batches and over devices.

Axes: B examples of a batch, N images of a whole pass, M true boxes, D detections of an image.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from lingo.config.base.errors import MissingPackage
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.metrics.classification import table_slots

RESULTS = (
    "ap",
    "ap50",
    "ap75",
    "ap_small",
    "ap_medium",
    "ap_large",
    "ar1",
    "ar10",
    "ar100",
    "ar_small",
    "ar_medium",
    "ar_large",
)
"""COCO's 12 numbers, in COCO's order: average precision, then average recall."""


def detection_table(
    batch: Mapping[str, tf.Tensor], predictions: Mapping[str, tf.Tensor], *, num_examples: int
) -> dict[str, tf.Tensor]:
    """Returns the state of COCO's average precision: every box, in the slot of its image.

    Boxes are (top, left, bottom, right) in 0..1 of the image. A state takes 8 N (6 D + 7 M + 4)
    bytes: 76 MB for 5,000 images of 200 detections and 100 true boxes.

    Args:
        batch: a batch of a single pass, with `weights` and `example_id`, [B]; `boxes`, float
            [B, M, 4]; `box_labels`, int [B, M], 1..K, and 0 for absent boxes; `images`,
            [B, H, W, C]. It may have `is_crowd`, bool [B, M]; `areas`, float [B, M], in pixels, for
            example of masks; `image_ids`, int [B]; `image_sizes`, int [B, 2], height and width in
            pixels, by default the size of `images`.
        predictions: `boxes`, float [B, D, 4]; `box_labels`, int [B, D], 0 for none; `box_scores`,
            float [B, D].
        num_examples: N, at least the number of images in the whole pass.

    Returns:
        `detections`, float64 [N, D, 6]: box, label, score; `truths`, float64 [N, M, 7]: box, label,
        crowd, area; `images`, float64 [N, 4]: height, width, id, weight; and `outside`, float64,
        the number of images beyond N.
    """
    boxes, labels, ids = batch["boxes"], batch["box_labels"], batch["example_id"]
    weights = tf.cast(batch["weights"], tf.float64)
    sizes = batch.get("image_sizes")
    if sizes is None:
        shape = tf.shape(batch["images"])
        sizes = tf.broadcast_to(shape[1:3], [shape[0], 2])
    sizes = tf.cast(sizes, tf.float64)
    areas = batch.get("areas")
    if areas is None:
        top, left, bottom, right = tf.unstack(tf.cast(boxes, tf.float64), axis=-1)
        height, width = tf.unstack(sizes[:, None], axis=-1)
        areas = (bottom - top) * height * (right - left) * width
    crowd = batch.get("is_crowd", tf.zeros_like(labels))
    predicted = [predictions[name] for name in ("boxes", "box_labels", "box_scores")]
    is_counted = tf.logical_and(weights > 0, ids < num_examples)
    slots = table_slots(ids, num_examples)

    def scatter(first: tf.Tensor, *columns: tf.Tensor) -> tf.Tensor:
        """Appends columns to the last axis of `first`; puts each example's rows in its slot."""
        parts = [first, *(tf.expand_dims(column, -1) for column in columns)]
        rows = tf.concat([tf.cast(part, tf.float64) for part in parts], -1)
        mask = tf.reshape(is_counted, [-1] + [1] * (len(first.shape) - 1))
        return tf.math.unsorted_segment_sum(
            tf.where(mask, rows, tf.zeros_like(rows)), slots, num_examples
        )

    return {
        "detections": scatter(*predicted),
        "truths": scatter(boxes, labels, crowd, areas),
        "images": scatter(sizes, batch.get("image_ids", ids), weights),
        "outside": tf.reduce_sum(tf.where(is_counted, tf.zeros_like(weights), weights)),
    }


def detection_results(state: Mapping[str, Any]) -> dict[str, float]:
    """Returns COCO's 12 numbers, each in 0..1, from a state that `detection_table` returns.

    A number is -1 if there are no objects for it, for example no large objects, as in COCO.

    Raises:
        MissingPackage: without pycocotools.
        ParamError: if the state lacks slots for some images, or two images have the same id.
    """
    images = np.asarray(state["images"])
    if state["outside"] >= 1:
        raise ParamError(
            f"{state['outside']:.0f} images have no slot: num_examples={len(images)} of"
            " detection_table is below the number of images of a pass"
        )
    present = images[:, 3] >= 1
    sizes, ids = images[present, :2], images[present, 2].astype(np.int64)
    if len(np.unique(ids)) < len(ids):
        raise ParamError(
            "two images of a pass have the same id: COCO counts detections by image id"
        )
    truths = np.asarray(state["truths"])[present]
    detections = np.asarray(state["detections"])[present]
    predictions = {
        "boxes": detections[..., :4],
        "box_labels": detections[..., 4].astype(np.int64),
        "box_scores": detections[..., 5],
    }
    return _evaluate(
        ids.tolist(),
        _coco_truths(truths, image_ids=ids, image_sizes=sizes),
        coco_detections(predictions, image_ids=ids, image_sizes=sizes),
    )


def coco_detections(
    predictions: Mapping[str, np.ndarray],
    *,
    image_ids: np.ndarray,
    image_sizes: np.ndarray,
    category_ids: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """Returns detections in the layout of COCO's result files, for `json.dump`.

    Args:
        predictions: `boxes`, float [B, D, 4], in 0..1; `box_labels`, int [B, D], 0 for none;
            `box_scores`, float [B, D].
        image_ids: int [B].
        image_sizes: [B, 2], height and width in pixels.
        category_ids: COCO's ids of labels 1..K, [K], as `CocoInput.category_ids`; None: the labels
            themselves.

    >>> one = {"boxes": np.array([[[0, 0.5, 1, 1]]]), "box_labels": np.array([[2]])}
    >>> one["box_scores"] = np.array([[0.75]])
    >>> sizes = np.array([[10, 20]])
    >>> coco_detections(one, image_ids=[7], image_sizes=sizes, category_ids=[1, 90])
    [{'image_id': 7, 'category_id': 90, 'bbox': [10.0, 0.0, 10.0, 10.0], 'score': 0.75}]
    """
    labels = np.asarray(predictions["box_labels"])
    image, place = np.nonzero(labels)
    numbers = labels[image, place].tolist()
    if category_ids is not None:
        numbers = [int(category_ids[label - 1]) for label in numbers]
    fields = zip(
        np.asarray(image_ids)[image].tolist(),
        numbers,
        _coco_boxes(predictions["boxes"], image_sizes)[image, place].tolist(),
        np.asarray(predictions["box_scores"], np.float64)[image, place].tolist(),
        strict=True,
    )
    names = ("image_id", "category_id", "bbox", "score")
    return [dict(zip(names, values, strict=True)) for values in fields]


def import_pycocotools() -> tuple[ModuleType, ModuleType]:
    """Imports `pycocotools.coco` and `.cocoeval`; raises MissingPackage without the package."""
    try:
        return (
            importlib.import_module("pycocotools.coco"),
            importlib.import_module("pycocotools.cocoeval"),
        )
    except ImportError:
        raise MissingPackage(
            "COCO's average precision needs a package that is not installed:"
            " pip install 'lingo-tf[detection]'"
        ) from None


def _coco_boxes(boxes: np.ndarray, image_sizes: np.ndarray) -> np.ndarray:
    """Returns boxes [B, N, 4] in 0..1 as COCO's (x, y, width, height) in pixels, float64."""
    boxes, sizes = np.asarray(boxes, np.float64), np.asarray(image_sizes, np.float64)[:, None]
    top_left, bottom_right = boxes[..., :2] * sizes, boxes[..., 2:] * sizes
    return np.concatenate([top_left[..., ::-1], (bottom_right - top_left)[..., ::-1]], -1)


def _coco_truths(
    truths: np.ndarray, *, image_ids: np.ndarray, image_sizes: np.ndarray
) -> list[dict[str, Any]]:
    """Returns true boxes in the layout of COCO's annotations, from a state's `truths`."""
    labels = truths[..., 4].astype(np.int64)
    image, place = np.nonzero(labels)
    fields = zip(
        image_ids[image].tolist(),
        labels[image, place].tolist(),
        _coco_boxes(truths[..., :4], image_sizes)[image, place].tolist(),
        truths[image, place, 5].astype(int).tolist(),
        truths[image, place, 6].tolist(),
        strict=True,
    )
    names = ("image_id", "category_id", "bbox", "iscrowd", "area")
    return [dict(zip(names, values, strict=True)) for values in fields]


def _evaluate(
    image_ids: list[int], truths: list[dict[str, Any]], detections: list[dict[str, Any]]
) -> dict[str, float]:
    """Returns COCO's 12 numbers from annotations and detections."""
    coco, cocoeval = import_pycocotools()
    for detection in detections:
        _, _, width, height = detection["bbox"]
        detection.update(iscrowd=0, area=width * height)
    categories = sorted({box["category_id"] for box in truths + detections})

    def index(annotations: list[dict[str, Any]]) -> Any:
        indexed = coco.COCO()
        indexed.dataset = {
            "images": [{"id": number} for number in image_ids],
            "categories": [{"id": number} for number in categories],
            # ids from 1, as pycocotools takes 0 for no match
            "annotations": [box | {"id": i} for i, box in enumerate(annotations, 1)],
        }
        indexed.createIndex()
        return indexed

    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress and results
        evaluation = cocoeval.COCOeval(index(truths), index(detections), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return dict(zip(RESULTS, map(float, evaluation.stats), strict=True))
