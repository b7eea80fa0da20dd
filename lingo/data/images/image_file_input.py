"""Encoded images as an input: from folders, TFRecord files and tfds directories.

    source = ImageFolder.params(folder="flowers", num_classes=5, split="train")
    ImageFileInput.params(source=source, view=RandomView, size=224, batch_size=32)

Axes: B examples of a batch, H height, W width, C channels.
"""

from __future__ import annotations

import functools
import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from lingo.config import ranges
from lingo.data.example_input import IndexedInput
from lingo.data.gzip_copy import describe_copies
from lingo.data.images.decode import BrokenImage, Channels, Part, decode, part_of, read_header
from lingo.data.images.encoded import EncodedImages, from_document, open_images
from lingo.data.images.view import CentralView, View
from lingo.data.index import Index, Progress
from lingo.data.sources.files import DataError
from lingo.ops import random

_GROUP = 32  # images that a thread reads, then decodes
_THREADS = 2  # one reads while what the other one has read is decoded


class ImageFileInput(IndexedInput):
    """JPEG and PNG images, decoded when they are needed, each once per epoch in a new order.

    An example shows the part of its image that `view` chooses, resized to `size`; `augment` gets
    this part. An image that cannot be decoded is an error that names its file. Opening the data
    reads all files once; later runs use the index that is made of them.

    Batches: `images`, uint8 [B, size, size, channels]; `labels`, int32 [B].
    """

    source: EncodedImages  # where the images are
    size: int = 224  # H and W, in pixels
    channels: Channels = 3  # 3: colours; 1: grey
    view: View = CentralView  # the part of an image that is seen; RandomView for training

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "size")

    def setup(self) -> None:
        super().setup()
        self.source, self.view = self.p.source.build(), self.p.view.build()
        self._threads = functools.cache(lambda: ThreadPoolExecutor(_THREADS, "images"))

    def offers(self) -> dict[str, Any]:
        """Returns the number of classes, and the shape of images that `augment` does not resize."""
        shape = (self.p.size, self.p.size, self.p.channels)
        return {"num_classes": self.source.p.num_classes, "image_shape": shape}

    def prepare(self, *, progress: Progress | None = None) -> None:
        """Opens the data; raises DataError if it is missing, damaged or of other classes."""
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
        _ = self.index  # opened here, not by two threads
        starts = range(0, max(len(numbers), 1), _GROUP)
        groups = [numbers[start : start + _GROUP] for start in starts]
        examples = list(self._threads().map(self._read_group, groups))
        return {name: np.concatenate([group[name] for group in examples]) for name in examples[0]}

    def fingerprint(self) -> dict[str, Any]:
        """Returns the source, the number of images, their bytes, and a digest of files and classes.

        The digest is that of the files' names and contents, and of the classes in their order.
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
        return describe_copies(self.index.files) + left_out

    def _keys(self, numbers: np.ndarray) -> random.Key:
        """Returns the random keys of the views of examples, words [B]; numbers: int64 [B]."""
        root = random.fold(random.root_key(self.p.seed), random.text_hash("view"))
        return random.fold(random.fold(root, numbers >> 32), numbers)

    def _read_group(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns images and labels by example number, int64 [some of B]."""
        documents = self._order().indices(numbers).tolist()
        keys = zip(*self._keys(numbers), strict=True)
        read = [self._read_part(d, random.Key(*k)) for d, k in zip(documents, keys, strict=True)]
        return {
            "images": self._decode(documents, [part for part, _ in read]),
            "labels": np.array([label for _, label in read], np.int32),
        }

    def _read_part(self, document: int, key: random.Key) -> tuple[Part, int]:
        """Returns the part of an image that an example shows, not decoded yet, and its label."""
        index = self.index
        label, data = from_document(index.read(document, 0, int(index.size[document])))
        try:
            header = read_header(data)
        except BrokenImage as error:
            raise self._error(document, error) from None
        return part_of(data, header, self.view.window(header.upright_size, key)), label

    def _decode(self, documents: list[int], parts: list[Part]) -> np.ndarray:
        """Returns parts of images, uint8 [B, H, W, C]."""
        form = {"size": self.p.size, "channels": self.p.channels}
        try:
            return decode(parts, **form)
        except BrokenImage:
            for document, part in zip(documents, parts, strict=True):
                try:
                    decode([part], **form)
                except BrokenImage as error:
                    raise self._error(document, error) from None
            raise

    def _error(self, document: int, error: BrokenImage) -> DataError:
        return DataError(
            f"{self.index.where(document)}: the image cannot be decoded: {error}. Replace it, or"
            " remove it."
        )
