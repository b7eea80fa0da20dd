"""Writes images as TFRecord files, in the layout of ImageNet."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from lingo.config.lazy import tf
from lingo.data.epoch_order import permutation
from lingo.data.files import DataError
from lingo.data.images.decode import PixelBudget
from lingo.data.images.encoded import EncodedImages, from_document, open_images
from lingo.data.images.header import BrokenImage, explain_errors, open_image, read_header
from lingo.data.images.image_records import IMAGE, LABEL
from lingo.data.index import Index, Progress
from lingo.data.sources.tfrecord import frame
from lingo.storage.files import new_folder

CLASSES = "classes.txt"
"""The file with the names of the classes, beside the shards."""

_FIRST_LABEL = 1  # as ImageNet's
_QUALITY = 95  # of a JPEG that is encoded anew
_MOST_PIXELS = 178_956_970  # of an image: 716 MB in Pillow
_AT_A_TIME = 64  # images in memory
_THREADS = 2


def write_records(
    source: EncodedImages,
    folder: Path,
    *,
    num_shards: int,
    size: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Writes images as shards of TFRecord files into a new folder, shuffled.

    The order is the same each time. Each image is decoded once, so that a damaged one is found now.
    The folder gets the names of the classes, too, and appears only when it is complete.

    Args:
        source: the images.
        folder: the new folder; its name is the first part of the shards' names.
        num_shards: how many files there are.
        size: length of the shorter side, in pixels, to which larger images are shrunk; these are
            turned as their EXIF orientation says. None: images are copied as they are.
        progress: called with the number of images written, and of all.

    Returns:
        The number of images.

    Raises:
        DataError: for an image that cannot be decoded.
        ParamError: if the folder exists.
        StorageError: if it cannot be written.
    """
    index, names = open_images(source), source.class_names()
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
    label, data = from_document(text)
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
    return frame(example.SerializeToString(deterministic=True))


def _strings(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _shrink(data: bytes, size: int | None, budget: PixelBudget) -> tuple[bytes, str]:
    """Returns an image whose shorter side is `size` at most, and its format, JPEG or PNG.

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
