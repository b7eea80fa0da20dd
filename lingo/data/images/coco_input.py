"""Images with boxes in COCO's layout, as an input: a file of JSON, and a folder of images.

    CocoInput.params(annotations="instances_val2017.json", folder="val2017", num_classes=80)

Axes: B examples of a batch, H height, W width, C channels, N boxes of an image.
"""

from __future__ import annotations

import functools
import hashlib
import os
from typing import Any

import numpy as np

from lingo.config import ranges
from lingo.config.base.types import FilePath, Operational
from lingo.config.params import ParamError
from lingo.data.example_input import IndexedInput
from lingo.data.files import DataError, open_file
from lingo.data.images.coco import Annotations, read_annotations
from lingo.data.images.decode import Part, PixelBudget, decode_into, part_of
from lingo.data.images.header import MAX_BYTES, MAX_PIXELS, BrokenImage, read_header
from lingo.data.images.view import Window
from lingo.data.index import Progress
from lingo.ops import random
from lingo.ops.image.box import Box
from lingo.ops.image.boxed_image import crop_boxes, flip_boxes, is_mirrored, min_iou_box


class CocoInput(IndexedInput):
    """JPEG and PNG images with boxes, as in COCO's instances_*.json, each once per epoch.

    An image, or the part of it that `random_crop` chooses, is resized to `size` x `size`, whatever
    the ratio of its sides; boxes are in parts of it. Labels are 1, 2, ... in the order of the
    categories' ids, which `category_ids` has. An image without boxes is an example, too.

    Batches: `images`, uint8 [B, size, size, 3]; `boxes`, float32 [B, N, 4]: top, left, bottom,
    right, in 0..1; `box_labels`, int32 [B, N], 0 for no box; `is_crowd`, bool [B, N]; of the whole
    image, `areas`, float32 [B, N], in pixels, of masks where there are any, `image_ids`, int64 [B],
    and `image_sizes`, int32 [B, 2], height and width.
    """

    annotations: FilePath  # such as instances_train2017.json
    folder: FilePath  # which has the images
    num_classes: int  # opening data with another number of categories is an error
    size: int = 300  # H and W, in pixels
    max_boxes: int = 100  # N; more in an image are an error
    random_crop: bool = False  # for training: a part that has objects, as `min_iou_crop` cuts it
    flip_rate: float = 0.0  # probability that an image is mirrored
    skips_empty: bool = False  # whether images without a box are left out
    max_pixels: Operational[int] = MAX_PIXELS  # of an image, and of all that are decoded at a time

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
        """Returns the number of classes, without that of no box, and the shape of images."""
        shape = (self.p.size, self.p.size, 3)
        return {"num_classes": self.p.num_classes, "image_shape": shape}

    def prepare(self, *, progress: Progress | None = None) -> None:
        """Reads the annotations, and looks for all images; raises DataError if one is missing."""
        del progress
        self._opened()

    @property
    def category_ids(self) -> list[int]:
        """The ids of the labels 1..K in the file, [K]; `coco_detections` takes them."""
        return self._annotations.category_ids

    def num_examples(self) -> int:
        return len(self._annotations.file_names)

    def read(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arrays of examples by number, int64 [B], as the class lists them."""
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
        found = self._annotations
        return batch | {
            "image_ids": found.image_ids[indices],
            "image_sizes": found.image_sizes[indices],
        }

    def fingerprint(self) -> dict[str, Any]:
        """Returns the file, the number of images, their bytes, and a digest.

        The digest is of the content of the file of annotations, and the names and sizes of images.
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
        found = read_annotations(self.p.annotations, self.p.num_classes)
        if self.p.skips_empty:
            found = found.without_empty()
        most = int(np.diff(found.starts).argmax())
        if (num := int(found.starts[most + 1] - found.starts[most])) > self.p.max_boxes:
            raise DataError(
                f"{self.p.annotations}: image {found.image_ids[most]} has {num} boxes, more than"
                f" max_boxes={self.p.max_boxes}: set it to {num}."
            )
        return found, [self._file_size(name) for name in found.file_names]

    def _file_size(self, name: str) -> int:
        path = os.path.join(self.p.folder, name)
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise DataError(
                f"{path}, an image of {self.p.annotations}, cannot be read: {error.strerror}."
            ) from None

    def _empty(self, num: int) -> dict[str, np.ndarray]:
        """Returns the arrays of some examples, without boxes; `images` have not been written."""
        p = self.p
        return {
            "images": np.empty([num, p.size, p.size, 3], np.uint8),
            "boxes": np.zeros([num, p.max_boxes, 4], np.float32),
            "box_labels": np.zeros([num, p.max_boxes], np.int32),
            "is_crowd": np.zeros([num, p.max_boxes], bool),
            "areas": np.zeros([num, p.max_boxes], np.float32),
        }

    def _write_boxes(self, index: int, key: random.Key, example: dict[str, np.ndarray]) -> Window:
        """Writes the boxes of an image into the arrays of an example; returns what is seen of it.

        Boxes that are not seen are absent: label 0, and zeros.
        """
        found = self._annotations
        own = slice(*found.starts[index : index + 2])
        boxes, labels = found.boxes[own], found.labels[own]
        height, width = found.image_sizes[index].tolist()
        box = Box(0, 0, height, width)
        if self.p.random_crop:
            objects = np.where(found.is_crowd[own], 0, labels)
            box = min_iou_box((height, width), boxes, objects, key)
            boxes, labels = crop_boxes(boxes, labels, box, (height, width))
        mirrored = is_mirrored(key, rate=self.p.flip_rate)
        if mirrored:
            boxes = flip_boxes(boxes, labels)
        num, is_seen = len(labels), labels > 0
        example["boxes"][:num], example["box_labels"][:num] = boxes, labels
        example["is_crowd"][:num] = found.is_crowd[own] & is_seen
        example["areas"][:num] = found.areas[own] * is_seen
        return Window(box, mirrored)

    def _read_part(self, index: int, window: Window) -> Part:
        """Returns what is seen of an image; raises DataError if its size is another one."""
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
