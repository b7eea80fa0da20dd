"""Annotations of images in COCO's layout: boxes, classes and masks of a file instances_*.json.

Axes: N images, T boxes of all images.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lingo.data.files import DataError, open_file
from lingo.data.images.encoded import check_classes
from lingo.metrics.mask import polygon_run_lengths, read_segmentation

_SLACK = 1.0  # pixels by which a box may exceed its image; the excess is cut off
_IMAGE = {"id": int, "file_name": str, "height": int, "width": int}
_CATEGORY = {"id": int, "name": str}
_ANNOTATION = {"id": int, "image_id": int, "category_id": int, "bbox": list}

Outline = list[np.ndarray] | np.ndarray
"""A mask as it is read: polygons, float64 [numbers] each, or run lengths, int64 [K]."""


class Annotations(NamedTuple):
    """The images and boxes of a file instances_*.json; the boxes of an image are adjacent."""

    file_names: list[str]  # [N], below the folder of images
    image_ids: np.ndarray  # int64 [N]
    image_sizes: np.ndarray  # int32 [N, 2], height and width in pixels
    starts: np.ndarray  # int64 [N + 1]: image i has the boxes starts[i], ..., starts[i + 1] - 1
    boxes: np.ndarray  # float32 [T, 4]: top, left, bottom, right, in 0..1 of the image
    labels: np.ndarray  # int32 [T], 1..K
    is_crowd: np.ndarray  # bool [T]
    areas: np.ndarray  # float32 [T], pixels of the mask; of the box if the file has no area
    category_ids: list[int]  # [K], the file's category id for each label
    class_names: list[str]  # [K]
    num_empty: int  # boxes that are left out, because they have no area
    outlines: list[Outline]  # [T]; [] without masks

    def without_empty(self) -> Annotations:
        """Returns the images that have a box."""
        has_box = np.diff(self.starts) > 0
        return self._replace(
            file_names=[name for name, kept in zip(self.file_names, has_box, strict=True) if kept],
            image_ids=self.image_ids[has_box],
            image_sizes=self.image_sizes[has_box],
            starts=np.append(self.starts[:-1][has_box], self.starts[-1]),
        )

    def run_lengths(self, box: int, image: int) -> np.ndarray:
        """Returns the run lengths of a box's mask in its image, int64 [K]."""
        outline, (height, width) = self.outlines[box], self.image_sizes[image].tolist()
        if isinstance(outline, list):
            return polygon_run_lengths(outline, (height, width))
        return outline


class _Truth(NamedTuple):
    """A box of an image."""

    box: list[float]  # top, left, bottom, right, in 0..1
    label: int
    is_crowd: bool
    area: float
    outline: Outline  # [] without masks


def read_annotations(path: str, num_classes: int, *, has_masks: bool = False) -> Annotations:
    """Reads a file in COCO's layout; labels 1..K number the categories by ascending id.

    A box that exceeds its image by at most a pixel is cut off at the rim. A box without area is
    left out and counted. With `has_masks`, each box needs a mask.

    Raises:
        DataError: if the file cannot be read, has another layout, or does not have `num_classes`
            categories; if an annotation has an unknown image or category, a box outside of its
            image, or a damaged mask; if two images have the same id.
    """
    content = _read_json(path)
    categories = sorted(_records(content, "categories", _CATEGORY, path), key=lambda c: c["id"])
    ids = [category["id"] for category in categories]
    names = check_classes([category["name"] for category in categories], num_classes, path)
    labels = {number: label for label, number in enumerate(ids, 1)}
    images = _records(content, "images", _IMAGE, path)
    truths: dict[int, list[_Truth]] = {}
    for image in images:
        if image["id"] in truths:
            raise DataError(f"{path} has two images of the id {image['id']}.")
        if min(image["height"], image["width"]) < 1:
            raise DataError(f"{path}: image {image['id']} has no pixels.")
        truths[image["id"]] = []
    sizes = {image["id"]: (image["height"], image["width"]) for image in images}
    num_empty = 0
    for annotation in _records(content, "annotations", _ANNOTATION, path):
        where = f"{path}: annotation {annotation['id']}"
        image_id, category_id = annotation["image_id"], annotation["category_id"]
        if image_id not in truths:
            raise DataError(f"{where} is of image {image_id}, which the file lacks.")
        if category_id not in labels:
            raise DataError(f"{where} is of category {category_id}, which the file lacks.")
        truth = _read_truth(annotation, sizes[image_id], labels[category_id], where)
        if truth is None:
            num_empty += 1
            continue
        if has_masks:
            truth = truth._replace(outline=_read_outline(annotation, sizes[image_id], where))
        truths[image_id].append(truth)
    if not images:
        raise DataError(f"{path} has no images.")
    every = [truth for of_image in truths.values() for truth in of_image]
    return Annotations(
        file_names=[image["file_name"] for image in images],
        image_ids=np.array([*truths], np.int64),
        image_sizes=np.array([*sizes.values()], np.int32),
        starts=np.cumsum([0, *map(len, truths.values())]),
        boxes=np.array([truth.box for truth in every], np.float32).reshape(-1, 4),
        labels=np.array([truth.label for truth in every], np.int32),
        is_crowd=np.array([truth.is_crowd for truth in every], bool),
        areas=np.array([truth.area for truth in every], np.float32),
        category_ids=ids,
        class_names=names,
        num_empty=num_empty,
        outlines=[truth.outline for truth in every] if has_masks else [],
    )


def _read_json(path: str) -> Mapping[str, Any]:
    with open_file(path) as file:
        try:
            content = json.load(file)
        except ValueError as error:  # an error of JSON, or of UTF-8
            raise DataError(f"{path} is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is not an object of JSON with images, annotations and categories.")
    return content


def _records(
    content: Mapping[str, Any], name: str, fields: Mapping[str, type], path: str
) -> list[dict[str, Any]]:
    """Returns the file's list `name`; raises DataError unless each entry has the typed `fields`."""
    records = content.get(name)
    if not isinstance(records, list):
        raise DataError(f"{path} has no list {name!r}: it is not of COCO's layout of instances.")
    for number, record in enumerate(records):
        for field, kind in fields.items():
            value = record.get(field) if isinstance(record, dict) else None
            if not isinstance(value, kind):
                raise DataError(
                    f"{path}: entry {number} of {name!r} has {field}={value!r:.80}, not of type"
                    f" {kind.__name__}."
                )
    return records


def _read_truth(
    annotation: Mapping[str, Any], size: tuple[int, int], label: int, where: str
) -> _Truth | None:
    """Returns an annotation's box in an image of `size`; None if it has no area."""
    left, top, width, height = _read_bbox(annotation, where)
    corners = np.array([[top, left], [top + height, left + width]])
    is_near = (corners >= -_SLACK) & (corners <= np.array(size) + _SLACK)
    if not is_near.all() or min(width, height) < 0:
        raise DataError(
            f"{where} has bbox={annotation['bbox']}, which is not in its image of {size[1]} x"
            f" {size[0]} pixels: x, y, width and height count pixels from the upper left corner."
        )
    inside = (corners.clip(0, size) / size).ravel()
    if not (inside[:2] < inside[2:]).all():
        return None
    area = annotation.get("area", width * height)
    if not isinstance(area, (int, float)):
        raise DataError(f"{where} has area={area!r:.80}, not a number of pixels.")
    return _Truth(inside.tolist(), label, bool(annotation.get("iscrowd", 0)), area, [])


def _read_outline(annotation: Mapping[str, Any], size: tuple[int, int], where: str) -> Outline:
    """Returns an annotation's mask; raises DataError if it is damaged."""
    try:
        return read_segmentation(annotation.get("segmentation"), size)
    except ValueError as error:
        raise DataError(f"{where} {error}.") from None


def _read_bbox(annotation: Mapping[str, Any], where: str) -> list[float]:
    """Returns x, y, width and height; raises DataError if they are not four finite numbers."""
    bbox = annotation["bbox"]
    try:
        box = [float(number) for number in bbox]
    except (TypeError, ValueError):
        box = []
    if len(box) != 4 or not all(map(math.isfinite, box)):
        raise DataError(f"{where} has bbox={bbox!r:.80}, not x, y, width and height.")
    return box
