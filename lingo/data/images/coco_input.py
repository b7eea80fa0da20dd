"""Images with boxes in COCO's layout, as an input: a file of JSON, and a folder of images.

    CocoInput.params(annotations="instances_val2017.json", folder="val2017", num_classes=80)

Axes: B examples of a batch, H height, W width, C channels, N boxes of an image; in annotations,
N images, T boxes of all images.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.base.types import FilePath, Operational
from lingo.config.params import ParamError
from lingo.data.example_input import IndexedInput
from lingo.data.files import DataError, open_file
from lingo.data.images.decode import Part, PixelBudget, decode_into, part_of
from lingo.data.images.encoded import check_classes
from lingo.data.images.header import MAX_BYTES, MAX_PIXELS, BrokenImage, read_header
from lingo.data.images.view import Window
from lingo.data.index import Progress
from lingo.ops import random
from lingo.ops.image.box import Box
from lingo.ops.image.boxed_image import crop_boxes, flip_boxes, is_mirrored, min_iou_box

_SLACK = 1.0  # pixels by which a box may exceed its image; the excess is cut off
_IMAGE = {"id": int, "file_name": str, "height": int, "width": int}
_CATEGORY = {"id": int, "name": str}
_ANNOTATION = {"id": int, "image_id": int, "category_id": int, "bbox": list}


class CocoInput(IndexedInput):
    """JPEG and PNG images with boxes, as in COCO's instances_*.json, each once per epoch.

    An image, or the part of it that `random_crop` chooses, is resized to `size` x `size` without
    keeping the ratio of its sides. Boxes are relative to what is shown. Labels are 1, 2, ... in the
    order of the categories' ids (`category_ids`). An image without boxes is an example, too.

    Batches: `images`, uint8 [B, size, size, 3]; `boxes`, float32 [B, N, 4]: top, left, bottom,
    right, in 0..1; `box_labels`, int32 [B, N], 0 for no box; `is_crowd`, bool [B, N]. Three arrays
    refer to the whole image: `areas`, float32 [B, N], the pixels of each object's mask (of its box
    if the file has no area); `image_ids`, int64 [B]; `image_sizes`, int32 [B, 2], height and width.
    """

    annotations: FilePath  # a JSON file such as instances_train2017.json
    folder: FilePath  # has the images
    num_classes: int  # opening data with another number of categories is an error
    size: int = 300  # H and W, in pixels
    max_boxes: int = 100  # N; an image with more boxes is an error
    random_crop: bool = False  # for training: crop to a part with objects (see `min_iou_crop`)
    flip_rate: float = 0.0  # probability that an image is mirrored
    skips_empty: bool = False  # whether images without a box are left out
    max_pixels: Operational[int] = MAX_PIXELS  # per image, and for all being decoded at once

    thread_safe = True

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "num_classes", "size", "max_boxes", "max_pixels")
        if not 0 <= self.p.flip_rate <= 1:
            raise ParamError(f"flip_rate={self.p.flip_rate} is not in 0..1")
        for field in ("annotations", "folder"):
            if not getattr(self.p, field):
                raise ParamError(f"{field} is empty: give the path")

    def setup(self) -> None:
        super().setup()
        self._opened = functools.cache(self._open)
        self._budget = PixelBudget(self.p.max_pixels)

    def offers(self) -> dict[str, Any]:
        """Returns the number of classes, not counting "no box", and the shape of images."""
        shape = (self.p.size, self.p.size, 3)
        return {"num_classes": self.p.num_classes, "image_shape": shape}

    def prepare(self, *, progress: Progress | None = None) -> None:
        """Reads the annotations, and looks for all images; raises DataError if any is missing."""
        del progress
        self._opened()

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the file's categories for labels 1..K, [K]."""
        return tuple(self._annotations.class_names)

    @property
    def category_ids(self) -> list[int]:
        """The file's category id of each label 1..K, [K], for `coco_detections`."""
        return self._annotations.category_ids

    def num_examples(self) -> int:
        return len(self._annotations.file_names)

    def read(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arrays that `CocoInput` lists, for examples with these numbers, int64 [B]."""
        root = random.fold(random.root_key(self.p.seed), random.text_hash("view"))
        keys = zip(*random.fold(random.fold(root, numbers >> 32), numbers), strict=True)
        indices = self._order().indices(numbers).tolist()
        batch, parts = self._empty(len(indices)), []
        for row, (index, words) in enumerate(zip(indices, keys, strict=True)):
            example = {name: array[row] for name, array in batch.items()}
            window = self._write_boxes(index, random.Key(*words), example)
            parts.append(self._read_part(index, window))
        try:
            decode_into(batch["images"], parts, self._budget)
        except BrokenImage:
            for index, part, image in zip(indices, parts, batch["images"], strict=True):
                try:
                    decode_into(image[None], [part], self._budget)
                except BrokenImage as error:
                    raise self._error(index, f"cannot be decoded: {error}") from None
            raise
        annotations = self._annotations
        return batch | {
            "image_ids": annotations.image_ids[indices],
            "image_sizes": annotations.image_sizes[indices],
        }

    def fingerprint(self) -> dict[str, Any]:
        """Returns the file, the number of images, their bytes, and a digest.

        The digest is of the annotations' content, and of the images' names and sizes.
        """
        path, sizes = self.p.annotations, self._opened()[1]
        with open_file(path) as file:
            digest = hashlib.file_digest(file, "sha256")
        for name, size in zip(self._annotations.file_names, sizes, strict=True):
            digest.update(f"{name}\0{size}\n".encode())
        return {
            "source": f"{os.path.basename(path)} of COCO's layout",
            "images": len(sizes),
            "bytes": sum(sizes),
            "digest": digest.hexdigest(),
        }

    def remarks(self) -> list[str]:
        num = self._annotations.num_empty
        return [f"left out {num} boxes that have no area"] if num else []

    @property
    def _annotations(self) -> Annotations:
        return self._opened()[0]

    def _open(self) -> tuple[Annotations, list[int]]:
        """Returns the annotations, and the size of each image's file, in bytes."""
        annotations = read_annotations(self.p.annotations, self.p.num_classes)
        if self.p.skips_empty:
            annotations = annotations.without_empty()
        starts = annotations.starts
        most = int(np.diff(starts).argmax())
        if (num := int(starts[most + 1] - starts[most])) > self.p.max_boxes:
            raise DataError(
                f"{self.p.annotations}: image {annotations.image_ids[most]} has {num} boxes, more"
                f" than max_boxes={self.p.max_boxes}: set it to {num}."
            )
        return annotations, [self._file_size(name) for name in annotations.file_names]

    def _file_size(self, name: str) -> int:
        path = os.path.join(self.p.folder, name)
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise DataError(
                f"{path}, an image of {self.p.annotations}, cannot be read: {error.strerror}."
            ) from None

    def _empty(self, num: int) -> dict[str, np.ndarray]:
        """Returns the arrays of `num` examples, without boxes; `images` is uninitialized."""
        p = self.p
        return {
            "images": np.empty([num, p.size, p.size, 3], np.uint8),
            "boxes": np.zeros([num, p.max_boxes, 4], np.float32),
            "box_labels": np.zeros([num, p.max_boxes], np.int32),
            "is_crowd": np.zeros([num, p.max_boxes], bool),
            "areas": np.zeros([num, p.max_boxes], np.float32),
        }

    def _write_boxes(self, index: int, key: random.Key, example: dict[str, np.ndarray]) -> Window:
        """Writes an image's boxes into the arrays of an example; returns the window that is seen.

        A box that is not seen gets label 0, and zeros.
        """
        annotations = self._annotations
        own = slice(*annotations.starts[index : index + 2])
        boxes, labels = annotations.boxes[own], annotations.labels[own]
        height, width = annotations.image_sizes[index].tolist()
        box = Box(0, 0, height, width)
        if self.p.random_crop:
            objects = np.where(annotations.is_crowd[own], 0, labels)
            box = min_iou_box((height, width), boxes, objects, key)
            boxes, labels = crop_boxes(boxes, labels, box, (height, width))
        mirrored = is_mirrored(key, rate=self.p.flip_rate)
        if mirrored:
            boxes = flip_boxes(boxes, labels)
        num, is_seen = len(labels), labels > 0
        example["boxes"][:num], example["box_labels"][:num] = boxes, labels
        example["is_crowd"][:num] = annotations.is_crowd[own] & is_seen
        example["areas"][:num] = annotations.areas[own] * is_seen
        return Window(box, mirrored)

    def _read_part(self, index: int, window: Window) -> Part:
        """Returns the part of an image that is seen; raises DataError for an unexpected size."""
        with open_file(self._path(index)) as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise self._error(index, f"has more than {MAX_BYTES:,} bytes")
        try:
            header = read_header(data, max_pixels=self.p.max_pixels)
        except BrokenImage as error:
            raise self._error(index, f"cannot be decoded: {error}") from None
        height, width = self._annotations.image_sizes[index].tolist()
        if header.upright_size != (height, width):
            raise self._error(
                index,
                f"has {header.upright_size[1]} x {header.upright_size[0]} pixels, but"
                f" {width} x {height} in {self.p.annotations}",
            )
        return part_of(data, header, window)

    def _path(self, index: int) -> str:
        return os.path.join(self.p.folder, self._annotations.file_names[index])

    def _error(self, index: int, message: str) -> DataError:
        return DataError(f"{self._path(index)}: the image {message}. Replace it, or remove it.")


# ---- annotations ---------------------------------------------------------------------------------


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

    def without_empty(self) -> Annotations:
        """Returns the images that have a box."""
        has_box = np.diff(self.starts) > 0
        return self._replace(
            file_names=[name for name, kept in zip(self.file_names, has_box, strict=True) if kept],
            image_ids=self.image_ids[has_box],
            image_sizes=self.image_sizes[has_box],
            starts=np.append(self.starts[:-1][has_box], self.starts[-1]),
        )


class _Truth(NamedTuple):
    """A box of an image."""

    box: list[float]  # top, left, bottom, right, in 0..1
    label: int
    is_crowd: bool
    area: float


def read_annotations(path: str, num_classes: int) -> Annotations:
    """Reads a file in COCO's layout; labels 1..K number the categories by ascending id.

    A box that exceeds its image by at most a pixel is cut off at the rim. A box without area is
    left out and counted.

    Raises:
        DataError: if the file cannot be read, has another layout, or does not have `num_classes`
            categories; if an annotation has an unknown image or category, or a box outside of its
            image; if two images have the same id.
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
        else:
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
    return _Truth(inside.tolist(), label, bool(annotation.get("iscrowd", 0)), area)


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
