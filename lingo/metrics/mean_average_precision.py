"""COCO's mean average precision of boxes and masks, by pycocotools, from an additive state.

An average precision is not a mean over images: detections of all images are sorted by score. So the
state keeps every box, in the slot of its image, and the numbers are computed once, from all boxes.
They do not depend on how images are split into batches and over devices.

States are sums of float64, so small integers are packed: six levels of a predicted mask, or two run
lengths of a true one, are the digits of one number below 2**53.

Axes: B examples of a batch, N images of a whole pass, M true boxes, D detections of an image, S
bins of a predicted mask along each side, K runs of a true mask.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np

from lingo.config.base.errors import MissingPackage
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.metrics.classification import table_slots
from lingo.metrics.mask import MAX_COUNT, compress_run_lengths, paste_mask, run_lengths

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


class _Digits(NamedTuple):
    """Digits that are packed into one float64."""

    base: int
    num: int


_LEVELS, _RUNS = _Digits(256, 6), _Digits(MAX_COUNT, 2)
_TOP = _LEVELS.base - 1  # the level of probability 1


def detection_table(
    batch: Mapping[str, tf.Tensor], predictions: Mapping[str, tf.Tensor], *, num_examples: int
) -> dict[str, tf.Tensor]:
    """Returns the state of COCO's average precision: every box, in the slot of its image.

    Boxes are (top, left, bottom, right) in 0..1 of the image. A state takes 8 N (6 D + 7 M + 4)
    bytes: 76 MB for 5,000 images of 200 detections and 100 true boxes. If `batch` has `mask_counts`
    and `predictions` have `masks`, the state has both too, and gives the same numbers of masks.
    They take 8 N (D (ceil(S S / 6) + 1) + M ceil(K / 2)) bytes: 1.5 GB for 5,000 images of 100
    detections of 28 x 28 bins, and 100 true masks of 500 runs.

    Args:
        batch: a batch of a single pass, with `weights` and `example_id`, [B]; `boxes`, float
            [B, M, 4]; `box_labels`, int [B, M], 1..K, and 0 for absent boxes; `images`,
            [B, H, W, C]. It may have `is_crowd`, bool [B, M]; `areas`, float [B, M], in pixels, for
            example of masks; `image_ids`, int [B]; `image_sizes`, int [B, 2], height and width in
            pixels, by default the size of `images`; `canvas_sizes`, float [B, 2], height and width
            of images with their padding, below or on the right, if boxes are fractions of these;
            `mask_counts`, int [B, M, K], run lengths below `MAX_COUNT` in images of `image_sizes`,
            zeros at the end.
        predictions: `boxes`, float [B, D, 4]; `box_labels`, int [B, D], 0 for none; `box_scores`,
            float [B, D]. They may have `masks`, [B, D, S, S] in 0..1, inside the boxes, which are
            rounded to 256 levels. `paste_mask` puts them into the image.
        num_examples: N, at least the number of images in the whole pass.

    Returns:
        `detections`, float64 [N, D, 6]: box, label, score; `truths`, float64 [N, M, 7]: box, label,
        crowd, area; `images`, float64 [N, 4]: height, width, id, weight; and `outside`, float64,
        the number of images beyond N. With masks, `masks`, float64 [N, D, ceil(S S / 6) + 1], whose
        last column is S; and `mask_counts`, float64 [N, M, ceil(K / 2)].
    """
    labels, ids = batch["box_labels"], batch["example_id"]
    weights = tf.cast(batch["weights"], tf.float64)
    sizes = batch.get("image_sizes")
    if sizes is None:
        shape = tf.shape(batch["images"])
        sizes = tf.broadcast_to(shape[1:3], [shape[0], 2])
    sizes = tf.cast(sizes, tf.float64)
    boxes, found = batch["boxes"], predictions["boxes"]
    if (canvas := batch.get("canvas_sizes")) is not None:
        scale = tf.tile(tf.cast(canvas, tf.float64) / sizes, [1, 2])[:, None]
        boxes, found = (tf.cast(one, tf.float64) * scale for one in (boxes, found))
    has_masks = "mask_counts" in batch and "masks" in predictions
    areas = _areas(batch, boxes, sizes)
    crowd = batch.get("is_crowd", tf.zeros_like(labels))
    predicted = [found, *(predictions[name] for name in ("box_labels", "box_scores"))]
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

    masks = {"masks": scatter(_pack_masks(predictions["masks"]))} if has_masks else {}
    if has_masks:
        masks["mask_counts"] = scatter(_pack(batch["mask_counts"], _RUNS))
    return {
        "detections": scatter(*predicted),
        "truths": scatter(boxes, labels, crowd, areas),
        "images": scatter(sizes, batch.get("image_ids", ids), weights),
        "outside": tf.reduce_sum(tf.where(is_counted, tf.zeros_like(weights), weights)),
        **masks,
    }


def _areas(batch: Mapping[str, tf.Tensor], boxes: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Returns the areas of true objects in pixels, [B, M].

    They are the batch's `areas`; without these, the areas of masks; without masks, of boxes.
    """
    if "areas" in batch:
        return batch["areas"]
    counts: Any = batch.get("mask_counts")
    if counts is not None:
        return tf.reduce_sum(tf.cast(counts[..., 1::2], tf.float64), -1)
    top, left, bottom, right = tf.unstack(tf.cast(boxes, tf.float64), axis=-1)
    height, width = tf.unstack(sizes[:, None], axis=-1)
    return (bottom - top) * height * (right - left) * width


def _pack_masks(masks: tf.Tensor) -> tf.Tensor:
    """Returns predicted masks, [B, D, S, S], as float64 [B, D, ceil(S S / 6) + 1]."""
    shape: Any = masks.shape
    side = shape[-1]
    levels = tf.round(tf.clip_by_value(tf.cast(masks, tf.float32), 0.0, 1.0) * float(_TOP))
    packed = _pack(tf.reshape(levels, [-1, shape[1], side * side]), _LEVELS)
    return tf.pad(packed, [[0, 0], [0, 0], [0, 1]], constant_values=side)


def _pack(values: tf.Tensor, digits: _Digits) -> tf.Tensor:
    """Packs numbers in 0..base - 1, [B, N, n], into float64 [B, N, ceil(n / digits)]."""
    shape: Any = values.shape
    num = -(-shape[-1] // digits.num)
    rows = tf.pad(tf.cast(values, tf.float64), [[0, 0], [0, 0], [0, num * digits.num - shape[-1]]])
    rows = tf.reshape(rows, [-1, shape[1], num, digits.num])
    return tf.reduce_sum(rows * [float(digits.base**i) for i in range(digits.num)], -1)


def _unpack(packed: np.ndarray, digits: _Digits) -> np.ndarray:
    """Returns the numbers that `_pack` packed, int64 [n], from float64 [ceil(n / digits)]."""
    powers = digits.base ** np.arange(digits.num)
    return (packed.astype(np.int64)[:, None] // powers % digits.base).ravel()


def detection_results(state: Mapping[str, Any]) -> dict[str, float]:
    """Returns COCO's 12 numbers, each in 0..1, from a state that `detection_table` returns.

    A number is -1 if there are no objects for it, for example no large objects, as in COCO. A state
    with masks also gives the 12 numbers of masks, `mask/ap` and so on.

    Raises:
        MissingPackage: without pycocotools.
        ParamError: if the state lacks slots for some images, two images have the same id, or run
            lengths do not fit their image.
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
    true_boxes = _coco_truths(truths, image_ids=ids, image_sizes=sizes)
    boxes = coco_detections(predictions, image_ids=ids, image_sizes=sizes)
    images = [
        {"id": number, "height": int(height), "width": int(width)}
        for number, (height, width) in zip(ids.tolist(), sizes, strict=True)
    ]
    results = _evaluate(images, true_boxes, boxes, kind="bbox")
    if "masks" not in state:
        return results
    counts = np.asarray(state["mask_counts"])[present][truths[..., 4] > 0]
    masks = np.asarray(state["masks"])[present][detections[..., 4] > 0]
    shapes = {image["id"]: (image["height"], image["width"]) for image in images}
    for box, packed in zip(true_boxes, counts, strict=True):
        box.update(segmentation=_true_segmentation(packed, shapes[box["image_id"]]))
    places = detections[..., :4][detections[..., 4] > 0]
    for box, packed, place in zip(boxes, masks, places, strict=True):
        box.update(segmentation=_found_segmentation(packed, place, shapes[box["image_id"]]))
    of_masks = _evaluate(images, true_boxes, boxes, kind="segm")
    return results | {f"mask/{name}": value for name, value in of_masks.items()}


def _true_segmentation(packed: np.ndarray, size: tuple[int, int]) -> dict[str, Any]:
    """Returns a true mask in COCO's layout, from its packed run lengths."""
    counts = np.trim_zeros(_unpack(packed, _RUNS), "b")
    if counts.sum() != size[0] * size[1]:
        raise ParamError(
            f"mask_counts of an object are {counts.sum()} pixels, but image_sizes of its image are"
            f" {size[0]} x {size[1]} = {size[0] * size[1]}"
        )
    return {"size": [*size], "counts": counts.tolist()}


def _found_segmentation(
    packed: np.ndarray, box: np.ndarray, size: tuple[int, int]
) -> dict[str, Any]:
    """Returns a predicted mask in COCO's layout, from its packed levels and its box, [4]."""
    side = int(packed[-1])
    levels = _unpack(packed[:-1], _LEVELS)[: side * side].reshape(side, side)
    counts = run_lengths(paste_mask(levels / _TOP, box, size=size))
    return {"size": [*size], "counts": counts.tolist()}


def coco_detections(
    predictions: Mapping[str, np.ndarray],
    *,
    image_ids: np.ndarray,
    image_sizes: np.ndarray,
    canvas_sizes: np.ndarray | None = None,
    category_ids: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """Returns detections in the layout of COCO's result files, for `json.dump`.

    Args:
        predictions: `boxes`, float [B, D, 4], in 0..1; `box_labels`, int [B, D], 0 for none;
            `box_scores`, float [B, D]; perhaps `masks`, [B, D, S, S] in 0..1, inside the boxes:
            each entry then has a `segmentation`, run lengths as a text.
        image_ids: int [B].
        image_sizes: [B, 2], height and width in pixels.
        canvas_sizes: [B, 2], as in `detection_table`, for padded images; None: there is no padding.
        category_ids: COCO's ids of labels 1..K, [K], as `CocoInput.category_ids`; None: the labels
            themselves.

    >>> one = {"boxes": np.array([[[0, 0.5, 1, 1]]]), "box_labels": np.array([[2]])}
    >>> one["box_scores"] = np.array([[0.75]])
    >>> sizes = np.array([[10, 20]])
    >>> coco_detections(one, image_ids=[7], image_sizes=sizes, category_ids=[1, 90])
    [{'image_id': 7, 'category_id': 90, 'bbox': [10.0, 0.0, 10.0, 10.0], 'score': 0.75}]
    """
    boxes, labels = predictions["boxes"], np.asarray(predictions["box_labels"])
    if canvas_sizes is not None:
        scale = np.tile(np.asarray(canvas_sizes, np.float64) / image_sizes, 2)
        boxes = np.asarray(boxes, np.float64) * scale[:, None]
    image, place = np.nonzero(labels)
    numbers = labels[image, place].tolist()
    if category_ids is not None:
        numbers = [int(category_ids[label - 1]) for label in numbers]
    fields = zip(
        np.asarray(image_ids)[image].tolist(),
        numbers,
        _coco_boxes(boxes, image_sizes)[image, place].tolist(),
        np.asarray(predictions["box_scores"], np.float64)[image, place].tolist(),
        strict=True,
    )
    names = ("image_id", "category_id", "bbox", "score")
    entries: list[dict[str, Any]] = [dict(zip(names, v, strict=True)) for v in fields]
    if "masks" in predictions:
        for entry, i, j in zip(entries, image, place, strict=True):
            height, width = map(int, image_sizes[i])
            pasted = paste_mask(predictions["masks"][i, j], boxes[i, j], size=(height, width))
            text = compress_run_lengths(run_lengths(pasted))
            entry["segmentation"] = {"size": [height, width], "counts": text}
    return entries


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
    images: list[dict[str, int]],
    truths: list[dict[str, Any]],
    detections: list[dict[str, Any]],
    *,
    kind: Literal["bbox", "segm"],
) -> dict[str, float]:
    """Returns COCO's 12 numbers from annotations and detections, of boxes or of masks."""
    coco, cocoeval = import_pycocotools()
    for detection in detections:
        _, _, width, height = detection["bbox"]
        area = width * height if kind == "bbox" else sum(detection["segmentation"]["counts"][1::2])
        detection.update(iscrowd=0, area=area)
    categories = sorted({box["category_id"] for box in truths + detections})

    def index(annotations: list[dict[str, Any]]) -> Any:
        indexed = coco.COCO()
        indexed.dataset = {
            "images": images,
            "categories": [{"id": number} for number in categories],
            # ids from 1, as pycocotools takes 0 for no match
            "annotations": [box | {"id": i} for i, box in enumerate(annotations, 1)],
        }
        indexed.createIndex()
        return indexed

    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress and results
        evaluation = cocoeval.COCOeval(index(truths), index(detections), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return dict(zip(RESULTS, map(float, evaluation.stats), strict=True))
