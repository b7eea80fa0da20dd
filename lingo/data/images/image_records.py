"""Encoded images in TFRecord files: in the layout of ImageNet, and of TensorFlow Datasets.

`write_records` writes images in the layout of ImageNet.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image, ImageOps

from lingo.config.base.types import FilePath
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.epoch_order import permutation
from lingo.data.files import DataError, File, Read, refuse_empty
from lingo.data.images import encoded
from lingo.data.images.decode import PixelBudget
from lingo.data.images.header import BrokenImage, explain_errors, open_image, read_header
from lingo.data.index import Index, Progress
from lingo.data.record_source import MatchingFiles
from lingo.data.sources import tfrecord
from lingo.data.sources.tfds import TfdsRecords
from lingo.data.store import store_of
from lingo.storage.files import new_folder

IMAGE, LABEL = "image/encoded", "image/class/label"
"""The features of ImageNet's records: the bytes of an image, and the number of its class."""

CLASSES = "classes.txt"
"""The file with the names of the classes, in the folder of the shards."""

_FIRST_LABEL = 1  # the number of the first class in ImageNet's records
_QUALITY = 95  # quality of a JPEG that is encoded anew
_MOST_PIXELS = 178_956_970  # the most pixels of an image; they take 716 MB in Pillow
_AT_A_TIME = 64  # number of images in memory at once
_THREADS = 2


class ImageRecords(encoded.EncodedImages, MatchingFiles):
    """The image and the label in each record's tf.train.Example, by default as in ImageNet."""

    feature: str = IMAGE  # the name of the feature with the bytes of a JPEG or PNG
    label_feature: str = LABEL  # the name of the feature with the number of the class
    first_label: int = 1  # the number of the first class in the records; its label is 0
    classes: FilePath | None = None  # class names by label, one per line; None: no names

    checksums: ClassVar[bool] = True

    def check(self) -> None:
        super().check()
        if self.p.feature == self.p.label_feature:
            raise ParamError(f"feature and label_feature are both {self.p.feature!r}")

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        refuse_empty(file)
        return tfrecord.records(file, read)

    def text(self, data: bytes, where: str) -> bytes:
        features = tfrecord.parse_example(tfrecord.payload(data, where), where)
        label = tfrecord.one_integer(features, self.p.label_feature, where) - self.p.first_label
        image = tfrecord.one_string(features, self.p.feature, where)
        return self.to_document(encoded.EncodedImage(label, image), where)

    def class_names(self) -> list[str]:
        if self.p.classes is None:
            return []
        path = os.path.expanduser(self.p.classes)
        return encoded.check_classes(encoded.read_classes(path), self.p.num_classes, path)


class TfdsImages(encoded.EncodedImages, TfdsRecords):
    """The images and classes of a data set that TensorFlow Datasets prepared."""

    feature: str | None = None  # the name of the image's feature; None: the only image
    label_feature: str | None = None  # the name of the class's feature; None: the only class

    checksums: ClassVar[bool] = True

    def text(self, data: bytes, where: str) -> bytes:
        features = tfrecord.parse_example(tfrecord.payload(data, where), where)
        label = tfrecord.one_integer(features, self._label_feature, where)
        image = tfrecord.one_string(features, self._feature, where)
        return self.to_document(encoded.EncodedImage(label, image), where)

    def class_names(self) -> list[str]:
        name = self._label_feature
        file = self.path(f"{name}.labels.txt")
        if store_of(file).exists(file):
            return encoded.check_classes(encoded.read_classes(file), self.p.num_classes, file)
        known = int(self.features[name]["classLabel"]["numClasses"])
        if known != self.p.num_classes:
            raise DataError(
                f"{self.path('features.json')}: {name!r} has {known} classes, but num_classes="
                f"{self.p.num_classes}."
            )
        return []

    @functools.cached_property
    def _feature(self) -> str:
        return self.find_feature("feature", _is_image, "an image")

    @functools.cached_property
    def _label_feature(self) -> str:
        return self.find_feature("label_feature", _is_class, "a label")


def _is_image(feature: Mapping[str, Any]) -> bool:
    """Returns whether an entry of features.json is one image per example."""
    return feature.get("pythonClassName", "").endswith(".Image") or "image" in feature


def _is_class(feature: Mapping[str, Any]) -> bool:
    """Returns whether an entry of features.json is one class per example."""
    return "numClasses" in feature.get("classLabel", {})


# ---- writing -------------------------------------------------------------------------------------


def write_records(
    source: encoded.EncodedImages,
    folder: Path,
    *,
    num_shards: int,
    size: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Writes images as shards of TFRecord files into a new folder, shuffled.

    The order is the same each time. Each image is decoded once, so that damage is found now.
    The folder gets the names of the classes, too, and appears only when it is complete.

    Args:
        source: the images.
        folder: the new folder; its name is the first part of the shards' names.
        num_shards: how many files there are.
        size: length of the shorter side, in pixels, to which larger images are shrunk. Shrunk
            images are also turned as their EXIF orientation says. None: images are copied as is.
        progress: called with the number of images written, and the number of all images.

    Returns:
        The number of images.

    Raises:
        DataError: for an image that cannot be decoded.
        ParamError: if the folder exists.
        StorageError: if the folder cannot be written.
    """
    index, names = encoded.open_images(source), source.class_names()
    total, done = len(index.size), 0
    order = permutation(total, seed=0, epoch=0, name="records")
    with new_folder(folder) as partial, ThreadPoolExecutor(_THREADS) as threads:
        (partial / CLASSES).write_text("".join(f"{name}\n" for name in names))
        for shard in range(num_shards):
            documents = order[shard * total // num_shards : (shard + 1) * total // num_shards]
            name = f"{folder.name}-{shard:05d}-of-{num_shards:05d}.tfrecord"
            with open(partial / name, "wb") as file:
                for record in _records(index, documents, names, size, threads):
                    file.write(record)
                    done += 1
                    if progress is not None:
                        progress(done, total)
                file.flush()
                os.fsync(file.fileno())
    return total


def _records(
    index: Index,
    documents: np.ndarray,
    names: list[str],
    size: int | None,
    threads: ThreadPoolExecutor,
) -> Iterator[bytes]:
    """Yields the records of documents, in their order."""
    make = functools.partial(_record, index, names, size, PixelBudget())
    for start in range(0, len(documents), _AT_A_TIME):
        some = documents[start : start + _AT_A_TIME]
        yield from threads.map(make, some.tolist(), index.texts(some))


def _record(
    index: Index,
    names: list[str],
    size: int | None,
    budget: PixelBudget,
    document: int,
    text: bytes,
) -> bytes:
    """Returns the record of a document, which `to_document` made."""
    label, data = encoded.from_document(text)
    try:
        data, form = _shrink(data, size, budget)
    except BrokenImage as error:
        raise DataError(
            f"{index.where(document)}: the image cannot be decoded: {error}. Replace or remove it."
        ) from None
    feature = {
        IMAGE: _strings(data),
        "image/format": _strings(form.encode()),
        "image/filename": _strings(index.files[index.file_id[document]].name.encode()),
        LABEL: tf.train.Feature(int64_list=tf.train.Int64List(value=[label + _FIRST_LABEL])),
    }
    if names:
        feature["image/class/text"] = _strings(names[label].encode())
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    return tfrecord.frame(example.SerializeToString(deterministic=True))


def _strings(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _shrink(data: bytes, size: int | None, budget: PixelBudget) -> tuple[bytes, str]:
    """Returns a pair: the encoded image, its shorter side at most `size`, and "JPEG" or "PNG".

    Raises BrokenImage if it cannot be decoded.
    """
    header = read_header(data, max_pixels=_MOST_PIXELS)
    with explain_errors(), budget.take(header.height * header.width):
        image = open_image(data)
        form = "PNG" if image.format == "PNG" else "JPEG"
        image.load()
        if size is None or min(image.size) <= size:
            return data, form
        image = ImageOps.exif_transpose(image)
        factor = size / min(image.size)
        width, height = (round(side * factor) for side in image.size)
        if image.mode in ("P", "1"):
            image = image.convert("RGBA" if "transparency" in image.info else "RGB")
        shrunk = image.resize((width, height), Image.Resampling.BICUBIC)
        stream = io.BytesIO()
        shrunk.save(stream, form, quality=_QUALITY)
    return stream.getvalue(), form
