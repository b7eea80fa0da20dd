"""Encoded images as an input: from folders, TFRecord files and tfds directories.

    source = ImageFolder.params(folder="flowers", num_classes=5, split="train")
    ImageFileInput.params(source=source, view=RandomView, size=224, batch_size=32)

Axes: B examples of a batch, H height, W width, C channels.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from lingo.config import ranges
from lingo.config.base.types import Operational
from lingo.config.params import ParamError, Params, fields
from lingo.data.example_input import IndexedInput
from lingo.data.files import DataError
from lingo.data.gzip_copy import describe_copies
from lingo.data.images.decode import Channels, Part, PixelBudget, decode_into, part_of
from lingo.data.images.encoded import EncodedImage, EncodedImages, from_document, open_images
from lingo.data.images.header import MAX_BYTES, MAX_PIXELS, BrokenImage, Header, read_header
from lingo.data.images.image_folder import ImageFiles
from lingo.data.images.view import CentralView, View
from lingo.data.index import Index, Progress
from lingo.data.input import Input
from lingo.ops import random

_GROUP = 256  # encoded images that a thread has in memory at once
_GROUP_BYTES = MAX_BYTES  # the most bytes of encoded images in memory at once


class ImageFileInput(IndexedInput):
    """JPEG and PNG images, decoded when they are needed, each once per epoch in a new order.

    An example shows the part of its image that `view` chooses, resized to `size`; `augment` gets
    this part. An image that cannot be decoded is an error that names its file. Opening the data
    reads all files once and makes an index, which later runs use.

    Batches: `images`, uint8 [B, size, size, channels]; `labels`, int32 [B], if they are known.
    """

    source: EncodedImages  # where the images are
    size: int = 224  # H and W, in pixels
    channels: Channels = 3  # 3: colours; 1: grey
    view: View = CentralView  # the part of an image that is seen; RandomView for training
    cache: Operational[bool] = False  # keep decoded images in memory; the view must be fixed
    max_pixels: Operational[int] = MAX_PIXELS  # per image, and for all being decoded at once

    thread_safe = True

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "size", "max_pixels")

    def setup(self) -> None:
        super().setup()
        self.source, self.view = self.p.source.build(), self.p.view.build()
        if self.p.cache and not self.view.is_fixed:
            raise ParamError(
                f"cache=True keeps the parts that are seen, but {type(self.view).__name__} shows"
                " another part in each epoch: use CentralView, for evaluation, or cache=False"
            )
        self._reading = threading.Lock()  # a user's source or view may not be thread-safe
        self._budget = PixelBudget(self.p.max_pixels)
        self._cache = functools.cache(lambda: (np.zeros(self.num_examples(), bool), self._empty()))

    def offers(self) -> dict[str, Any]:
        """Returns the number of classes, and the shape of images that `augment` does not resize."""
        shape = (self.p.size, self.p.size, self.p.channels)
        return {"num_classes": self.source.p.num_classes, "image_shape": shape}

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes by label; of an ImageFolder, the names of its folders."""
        return tuple(self.source.class_names())

    def unlabeled_params(self, path: str) -> Params:
        """Returns the params of an input of other images, each seen as in this evaluation input.

        `path` is an image, a folder of images at any depth, or a glob. Raises ParamError if this
        input changes images at random, as in training.
        """
        check_is_fixed(self, view=self.view)
        source = ImageFiles.params(pattern=path, num_classes=self.source.p.num_classes)
        single = {"shuffle": False, "repeat": False, "max_batches": None, "cache": False}
        return self.p.copy().set(source=source, **single)

    def example_names(self, numbers: np.ndarray) -> list[str]:
        """Returns the file of each image, [B], or the place of its record."""
        places = map(self.index.where, self._order().indices(numbers).tolist())
        return [os.fsencode(place).decode(errors="replace") for place in places]

    def prepare(self, *, progress: Progress | None = None) -> None:
        """Opens the data; raises DataError if it is missing, damaged or has other classes."""
        if "index" not in self.__dict__:
            self.index = open_images(self.source, progress=progress)

    @functools.cached_property
    def index(self) -> Index:
        """The index of the images; opened at first use."""
        return open_images(self.source)

    def num_examples(self) -> int:
        return len(self.index.size)

    def read(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns images and labels by example number, int64 [B]."""
        documents = self._order().indices(numbers)
        if not self.p.cache:
            return self._decode(documents, self._keys(numbers))
        with self._reading:
            is_cached, cached = self._cache()
        if (is_new := ~is_cached[documents]).any():
            new = np.unique(documents[is_new])
            for name, array in self._decode(new, self._keys(new)).items():
                cached[name][new] = array
            is_cached[new] = True
        return {name: array[documents] for name, array in cached.items()}

    def fingerprint(self) -> dict[str, Any]:
        """Returns the source, the number of images, their bytes, and a digest of files and classes.

        The digest is of the files' names and contents, and of the classes in their order.
        """
        index = self.index
        classes = "\n".join(self.source.class_names())
        return {
            "source": self.source.describe(),
            "images": len(index.size),
            "bytes": int(index.size.sum()),
            "digest": hashlib.sha256(f"{index.digest}\n{classes}".encode()).hexdigest(),
            "damaged": index.damage.records,
        }

    def remarks(self) -> list[str]:
        damage = self.index.damage
        left_out = [f"left out {damage}"] if damage.records else []
        num = self.num_examples()
        size = num * self.p.size**2 * self.p.channels / 2**30
        kept = [f"keeps {num:,} decoded images in memory: up to {size:.2g} GiB"]
        return describe_copies(self.index.files) + left_out + (kept if self.p.cache else [])

    def _keys(self, numbers: np.ndarray) -> random.Key:
        """Returns the random keys, one per example, that choose views; numbers: int64 [B]."""
        root = random.fold(random.root_key(self.p.seed), random.text_hash("view"))
        return random.fold(random.fold(root, numbers >> 32), numbers)

    def _empty(self, num: int | None = None) -> dict[str, np.ndarray]:
        """Returns uninitialized arrays for `num` images and labels, by default for all."""
        num, p = self.num_examples() if num is None else num, self.p
        shape = (num, p.size, p.size, p.channels)
        labels = {"labels": np.empty(num, np.int32)} if self.source.has_labels else {}
        return {"images": np.empty(shape, np.uint8), **labels}

    def _decode(self, documents: np.ndarray, keys: random.Key) -> dict[str, np.ndarray]:
        """Returns images and labels of documents, int64 [B]; a key per document chooses its view.

        One thread reads at a time, while other threads decode.
        """
        arrays = self._empty(len(documents))
        for group in _groups(self.index.size[documents]):
            some, own_keys = documents[group], random.Key(*(words[group] for words in keys))
            with self._reading:
                encoded = [from_document(text) for text in self.index.texts(some)]
                parts = self._parts(some, encoded, own_keys)
            if "labels" in arrays:
                arrays["labels"][group] = [image.label for image in encoded]
            self._decode_into(arrays["images"][group], parts, some)
        return arrays

    def _parts(
        self, documents: np.ndarray, encoded: list[EncodedImage], keys: random.Key
    ) -> list[Part]:
        """Returns the part of each document's image that is seen, [B]; `keys` choose the parts."""
        headers = [self._header(*pair) for pair in zip(documents.tolist(), encoded, strict=True)]
        windows = self.view.windows([header.upright_size for header in headers], keys)
        fields = zip(encoded, headers, windows, strict=True)
        return [part_of(image.data, header, window) for image, header, window in fields]

    def _decode_into(self, images: np.ndarray, parts: list[Part], documents: np.ndarray) -> None:
        """Decodes parts of documents' images into an array; images, parts and documents are [B]."""
        try:
            decode_into(images, parts, self._budget)
        except BrokenImage:
            for document, part, image in zip(documents.tolist(), parts, images, strict=True):
                try:
                    decode_into(image[None], [part], self._budget)
                except BrokenImage as error:
                    raise self._error(document, error) from None
            raise

    def _header(self, document: int, image: EncodedImage) -> Header:
        try:
            return read_header(image.data, max_pixels=self.p.max_pixels)
        except BrokenImage as error:
            raise self._error(document, error) from None

    def _error(self, document: int, error: BrokenImage) -> DataError:
        return DataError(
            f"{self.index.where(document)}: the image cannot be decoded: {error}. Replace it, or"
            " remove it."
        )


def central_squares(path: str, input: Input) -> Params:
    """Returns the params of an input of the images at `path`, as `ImageFileInput.unlabeled_params`.

    Of each image, the largest central square is seen, in the shape of the images that `input`
    makes. Raises ParamError if these are no squares, or changed at random.
    """
    check_is_fixed(input)
    offers = input.offers()
    height, width, channels = offers["image_shape"]
    if height != width or channels not in (1, 3):
        raise ParamError(
            f"{path}: images are read as grey or coloured squares, but {type(input).__name__} has"
            f" images of {height} x {width} x {channels}: give arrays in a .npz file"
        )
    augment = {
        name: getattr(input.p, name)
        for name in ("augment", "augment_arguments")
        if name in fields(input.p.cls)
    }
    return ImageFileInput.params(
        source=ImageFiles.params(pattern=path, num_classes=offers["num_classes"]),
        size=height,
        channels=channels,
        view=CentralView.params(side=1.0),
        batch_size=input.p.batch_size,
        shuffle=False,
        repeat=False,
        **augment,
    )


def check_is_fixed(input: Input, *, view: View | None = None) -> None:
    """Raises ParamError if an input shows random parts of images, or augments them for training."""
    is_random = view is not None and not view.is_fixed
    if is_random or (input.p.repeat and getattr(input.p, "augment", None) is not None):
        raise ParamError(
            f"{type(input).__name__} changes images at random, for training: predictions for other"
            " files need an evaluation input, in eval_inputs, which says what is seen of an image"
        )


def _groups(sizes: np.ndarray) -> Iterator[slice]:
    """Yields slices of a batch whose encoded images, of `sizes` bytes, int64 [B], fit in memory."""
    start = num_bytes = 0
    for stop, size in enumerate(sizes.tolist()):
        if stop > start and (stop - start == _GROUP or num_bytes + size > _GROUP_BYTES):
            yield slice(start, stop)
            start, num_bytes = stop, 0
        num_bytes += size
    if start < len(sizes):
        yield slice(start, len(sizes))
