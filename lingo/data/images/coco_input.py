"""Images with boxes in COCO's layout, as an input: a file of JSON, and a folder of images.

    CocoInput.params(annotations="instances_val2017.json", folder="val2017", num_classes=80)

Axes: B examples of a batch, H height, W width, C channels, N boxes of an image, M bins of a mask
along each side, K runs of a mask.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from typing import Any

import numpy as np

from lingo.config import ranges
from lingo.config.base.types import FilePath, Operational
from lingo.config.params import ParamError
from lingo.data.example_input import IndexedInput
from lingo.data.files import DataError, File, open_file
from lingo.data.images.coco_annotations import Annotations, read_annotations
from lingo.data.images.decode import Part, PixelBudget, decode_into, part_of
from lingo.data.images.header import MAX_BYTES, MAX_PIXELS, BrokenImage, read_header
from lingo.data.images.view import Window
from lingo.data.index import Progress
from lingo.data.store import Store, store_of
from lingo.metrics.mask import fill_run_lengths, write_run_lengths
from lingo.ops import random
from lingo.ops.image.box import Box
from lingo.ops.image.boxed_image import (
    clip_boxes,
    crop_boxes,
    flip_boxes,
    is_mirrored,
    jitter_window,
    min_iou_box,
    sample_mask,
    scale_boxes,
)


class CocoInput(IndexedInput):
    """JPEG and PNG images with boxes, as in COCO's instances_*.json, each once per epoch.

    An image, or the part of it that `random_crop` chooses, is resized to H x W without keeping the
    ratio of its sides. With `scale_jitter`, the ratio stays: the image, made as large as fits, is
    scaled by a random factor, then cropped, or padded with zeros below and on the right
    (`lingo.ops.image.scale_jitter`). Boxes are relative to what is shown. Labels are 1, 2, ... in
    the order of the categories' ids (`category_ids`). An image without boxes is an example, too.

    Batches: `images`, uint8 [B, H, W, 3]; `boxes`, float32 [B, N, 4]: top, left, bottom,
    right, in 0..1; `box_labels`, int32 [B, N], 0 for no box; `is_crowd`, bool [B, N]. Three arrays
    refer to the whole image: `areas`, float32 [B, N], the pixels of each object's mask (of its box
    if the file has no area); `image_ids`, int64 [B]; `image_sizes`, int32 [B, 2], height and width.
    With `scale_jitter`, `canvas_sizes`, float32 [B, 2], are height and width of the shown part with
    its padding, in pixels of the file's image.

    With `mask_size`, `masks`, uint8 [B, N, M, M]: the mask of each object inside its box, as it is
    shown, at the centres of the box's bins. With `max_runs`, `mask_counts`, int32 [B, N, K]: COCO's
    run lengths of each object in the whole image, zeros at the end, for average precisions. Files
    have masks as polygons, which need `pip install 'lingo-tf[detection]'`, or as run lengths, in a
    list or a text.
    """

    annotations: FilePath  # a JSON file such as instances_train2017.json
    folder: FilePath  # has the images
    num_classes: int  # opening data with another number of categories is an error
    size: int = 300  # H, in pixels
    width: int | None = None  # W, in pixels; None: `size`
    max_boxes: int = 100  # N; an image with more boxes is an error
    random_crop: bool = False  # for training: crop to a part with objects (see `min_iou_crop`)
    scale_jitter: tuple[float, float] | None = None  # least and largest factor; (1, 1): padded only
    # (height, width) that an image just fits with a factor of 1; None: (H, W). With (800, 1333), an
    # image that is wider than high gets a short side of 800 pixels, a long one of at most 1333
    fit_size: tuple[int, int] | None = None
    flip_rate: float = 0.0  # probability that an image is mirrored
    mask_size: int | None = None  # M, for example 112; None: no masks
    max_runs: int | None = None  # K; a mask with more runs is an error; None: no run lengths
    skips_empty: bool = False  # whether images without a box are left out
    max_pixels: Operational[int] = MAX_PIXELS  # per image, and for all being decoded at once

    thread_safe = True

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "num_classes", "size", "max_boxes", "max_pixels")
        ranges.check_positive(self.p, "width", "fit_size", "mask_size", "max_runs")
        if not 0 <= self.p.flip_rate <= 1:
            raise ParamError(f"flip_rate={self.p.flip_rate} is not in 0..1")
        self._check_jitter()
        for field in ("annotations", "folder"):
            if not getattr(self.p, field):
                raise ParamError(f"{field} is empty: give the path")

    def _check_jitter(self) -> None:
        if (scales := self.p.scale_jitter) is None:
            if self.p.fit_size is not None:
                raise ParamError(
                    f"fit_size={self.p.fit_size} without scale_jitter: an image fills the example;"
                    " set scale_jitter=(1.0, 1.0), or leave fit_size out"
                )
            return
        if not 0 < scales[0] <= scales[1] < math.inf:
            raise ParamError(f"scale_jitter={scales} is not (low, high) with 0 < low <= high")
        if self.p.random_crop:
            raise ParamError(f"random_crop and scale_jitter={scales} are both set: choose one")

    def setup(self) -> None:
        super().setup()
        self._opened = functools.cache(self._open)
        self._budget = PixelBudget(self.p.max_pixels)

    def offers(self) -> dict[str, Any]:
        """Returns the number of classes, not counting "no box", and the shape of images."""
        return {"num_classes": self.p.num_classes, "image_shape": (*self._size, 3)}

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
        path, files = self.p.annotations, self._opened()[1]
        tells_content = store_of(self.p.folder).versions_tell_content
        with open_file(path) as file:
            digest = hashlib.file_digest(file, "sha256")
        for file in files:
            version = f" {file.version}" if tells_content else ""
            digest.update(f"{file.name}\0{file.size}{version}\n".encode())
        return {
            "source": f"{os.path.basename(path)} of COCO's layout",
            "images": len(files),
            "bytes": sum(file.size for file in files),
            "digest": digest.hexdigest(),
        }

    def remarks(self) -> list[str]:
        num = self._annotations.num_empty
        return [f"left out {num} boxes that have no area"] if num else []

    @property
    def _size(self) -> tuple[int, int]:
        """(H, W), in pixels."""
        return self.p.size, self.p.width or self.p.size

    @property
    def _annotations(self) -> Annotations:
        return self._opened()[0]

    def _open(self) -> tuple[Annotations, list[File]]:
        """Returns the annotations, and the file of each image."""
        p = self.p
        has_masks = p.mask_size is not None or p.max_runs is not None
        annotations = read_annotations(p.annotations, p.num_classes, has_masks=has_masks)
        if self.p.skips_empty:
            annotations = annotations.without_empty()
        starts = annotations.starts
        most = int(np.diff(starts).argmax())
        if (num := int(starts[most + 1] - starts[most])) > self.p.max_boxes:
            raise DataError(
                f"{self.p.annotations}: image {annotations.image_ids[most]} has {num} boxes, more"
                f" than max_boxes={self.p.max_boxes}: set it to {num}."
            )
        store = store_of(self.p.folder)
        return annotations, [self._file(store, name) for name in annotations.file_names]

    def _file(self, store: Store, name: str) -> File:
        path = os.path.join(self.p.folder, name)
        try:
            status = store.status(path)
        except DataError as error:
            raise DataError(f"{self.p.annotations} names an image, but {error}") from None
        return File(name, path, status.size, status.version)

    def _empty(self, num: int) -> dict[str, np.ndarray]:
        """Returns the arrays of `num` examples, without boxes; `images` is uninitialized."""
        p = self.p
        arrays = {
            "images": np.empty([num, *self._size, 3], np.uint8),
            "boxes": np.zeros([num, p.max_boxes, 4], np.float32),
            "box_labels": np.zeros([num, p.max_boxes], np.int32),
            "is_crowd": np.zeros([num, p.max_boxes], bool),
            "areas": np.zeros([num, p.max_boxes], np.float32),
        }
        if (bins := p.mask_size) is not None:
            arrays["masks"] = np.zeros([num, p.max_boxes, bins, bins], np.uint8)
        if p.max_runs is not None:
            arrays["mask_counts"] = np.zeros([num, p.max_boxes, p.max_runs], np.int32)
        if p.scale_jitter is not None:
            arrays["canvas_sizes"] = np.zeros([num, 2], np.float32)
        return arrays

    def _write_boxes(self, index: int, key: random.Key, example: dict[str, np.ndarray]) -> Window:
        """Writes an image's boxes into the arrays of an example; returns the window that is seen.

        A box that is not seen gets label 0, and zeros.
        """
        annotations = self._annotations
        own = slice(*annotations.starts[index : index + 2])
        boxes, labels = annotations.boxes[own], annotations.labels[own]
        height, width = annotations.image_sizes[index].tolist()
        box, size, shown = Box(0, 0, height, width), self._size, None
        if self.p.random_crop:
            objects = np.where(annotations.is_crowd[own], 0, labels)
            box = min_iou_box((height, width), boxes, objects, key)
            boxes, labels = crop_boxes(boxes, labels, box, (height, width))
        elif self.p.scale_jitter is not None:
            low, high = self.p.scale_jitter
            fit = self.p.fit_size
            box, shown = jitter_window(
                (height, width), key, target=size, low=low, high=high, fit=fit
            )
            boxes, labels = clip_boxes(boxes, labels, box, (height, width))
            sides = np.array([box.height, box.width])
            example["canvas_sizes"][:] = sides * np.array(size) / np.array(shown)
        mirrored = is_mirrored(key, rate=self.p.flip_rate)
        corners = np.tile([box.row, box.column], 2) + boxes * np.tile([box.height, box.width], 2)
        self._write_masks(index, labels, corners, mirrored, example)
        if shown is not None:
            boxes = scale_boxes(boxes, shown, size)
        if mirrored:
            boxes = flip_boxes(boxes, labels)
        num, is_seen = len(labels), labels > 0
        example["boxes"][:num], example["box_labels"][:num] = boxes, labels
        example["is_crowd"][:num] = annotations.is_crowd[own] & is_seen
        example["areas"][:num] = annotations.areas[own] * is_seen
        return Window(box, mirrored, shown)

    def _write_masks(
        self,
        index: int,
        labels: np.ndarray,
        corners: np.ndarray,
        mirrored: bool,
        example: dict[str, np.ndarray],
    ) -> None:
        """Writes the masks of an image's objects into the arrays of an example.

        Args:
            index: of the image.
            labels: int32 [n], 0 for objects that are not seen.
            corners: float [n, 4], boxes of the seen parts of objects, in pixels of the image.
            mirrored: whether the example is mirrored.
            example: {name: array}.
        """
        annotations = self._annotations
        if not annotations.outlines:
            return
        first = int(annotations.starts[index])
        height, width = annotations.image_sizes[index].tolist()
        for i in np.flatnonzero(labels).tolist():
            counts = annotations.run_lengths(first + i, index)
            if "masks" in example:
                pixels, bins = fill_run_lengths(counts, (height, width)), example["masks"].shape[-1]
                mask = sample_mask(pixels, corners[i], size=bins)
                example["masks"][i] = mask[:, ::-1] if mirrored else mask
            if "mask_counts" in example:
                where = f"{self._path(index)}: an object"
                write_run_lengths(counts, example["mask_counts"][i], where=where)

    def _read_part(self, index: int, window: Window) -> Part:
        """Returns the part of an image that is seen; raises DataError for an unexpected size."""
        with self._opened()[1][index].open_stream() as file:
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
        return self._opened()[1][index].path

    def _error(self, index: int, message: str) -> DataError:
        return DataError(f"{self._path(index)}: the image {message}. Replace it, or remove it.")
