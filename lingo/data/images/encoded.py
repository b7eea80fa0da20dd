"""Sources of encoded images: JPEG or PNG, each with the label of its class.

A document of such a source is a label, then the bytes of the image. So images use the same index,
split, fingerprint and treatment of damaged records as texts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from lingo.config import ranges
from lingo.data.files import DataError, Read, blocks, open_file
from lingo.data.images.header import MAX_BYTES
from lingo.data.index import Index, Progress, open_index
from lingo.data.record_source import CorruptRecord, DecodedRecords

_LABEL = struct.Struct("<i")
_FIRST_BYTES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")  # how JPEG and PNG files begin
_CLASSES_BYTES = 1 << 26  # the largest size of a file of class names


class EncodedImage(NamedTuple):
    """An image and its class."""

    label: int  # in 0..num_classes - 1
    data: bytes  # JPEG or PNG


class EncodedImages(DecodedRecords, interface=True):
    """Encoded images with one class each.

    A subclass defines where the files are (`places`), and a `document` or `text` that returns
    `to_document` of an image and its label. An image's bytes decide its split, so that equal images
    are in the same split.
    """

    num_classes: int  # opening data with another number of classes is an error

    unit: ClassVar[str] = "image"
    longest_bytes: ClassVar[int] = MAX_BYTES
    has_labels: ClassVar[bool] = True  # whether labels are known; else all are 0

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "num_classes")

    def class_names(self) -> list[str]:
        """Returns the names of the classes by label, [num_classes]; [] if the data has none.

        Raises DataError if the names cannot be read, or there are not `num_classes` names.
        """
        raise NotImplementedError(f"{type(self).__name__} has no class_names")

    def identity(self, read: Read, size: int) -> Iterable[bytes]:
        return blocks(read, _LABEL.size, size)

    def to_document(self, image: EncodedImage, where: str) -> bytes:
        """Packs an image and its label into a document; raises CorruptRecord if either is wrong."""
        label, data = image
        if not 0 <= label < self.p.num_classes:
            raise CorruptRecord(
                f"{where}: its label, counted from 0, is {label}, but with num_classes="
                f"{self.p.num_classes} labels are 0 to {self.p.num_classes - 1}."
            )
        if not data.startswith(_FIRST_BYTES):
            raise CorruptRecord(
                f"{where}: neither JPEG nor PNG: it begins with {data[:8]!r}. Remove it, or convert"
                " it."
            )
        return _LABEL.pack(label) + data


def from_document(document: bytes) -> EncodedImage:
    """Returns the image of a document that `to_document` made."""
    return EncodedImage(_LABEL.unpack_from(document)[0], document[_LABEL.size :])


def open_images(source: EncodedImages, *, progress: Progress | None = None) -> Index:
    """Returns the index of a source; raises DataError as `open_index` and `class_names` do."""
    source.class_names()
    return open_index(source, progress=progress)


def check_classes(names: Sequence[str], num_classes: int, where: str) -> list[str]:
    """Returns class names; raises DataError unless they are `num_classes` different names."""
    if len(names) != num_classes:
        raise DataError(
            f"{where} has {len(names)} classes, but num_classes={num_classes}: set it to"
            f" {len(names)}, or give the data that was meant."
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{where} has the class {twice[0]!r} twice.")
    return list(names)


def read_classes(path: str) -> list[str]:
    """Returns the class names in a file, one per line; raises DataError if it is not text."""
    with open_file(path) as file:
        content = file.read(_CLASSES_BYTES)
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8: {error.reason}.") from None
    return [name for line in lines if (name := line.strip())]
