"""TFRecord: records of bytes, here tf.train.Example with a document in one of its features.

A record is its length (8 bytes, little-endian), the masked CRC-32C of these (4), the payload, and
the masked CRC-32C of the payload (4). The index follows the lengths from record to record; each is
checked against its CRC and against what is left of the file before anything is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import ClassVar, Literal

from google.protobuf.message import DecodeError

from lingo.data.source import DataError, File, MatchingFiles, Read, refuse_gzip
from lingo.data.sources.checksum import masked_crc32c
from lingo.lazy import tf

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_FRAME_BYTES = _HEADER.size + _FOOTER.size


class TfRecords(MatchingFiles):
    """A string feature of the tf.train.Example in each record of each file."""

    feature: str = "text"  # the name of the feature that holds the text
    split_by: Literal["file", "document"] = "document"  # what is hashed: a file's name, or a text

    decodes: ClassVar[bool] = True
    unit: ClassVar[str] = "record"

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        return records(file, read)

    def text(self, data: bytes, where: str) -> bytes:
        return string_feature(payload(data, where), self.p.feature, where)


def records(file: File, read: Read) -> Iterator[tuple[int, int]]:
    """Yields (first byte, number of bytes) of each record of a TFRecord file, its frame included.

    Raises:
        DataError: for a header that is damaged, or leads behind the end of the file.
    """
    refuse_gzip(file, read)
    at = number = 0
    while at < file.size:
        number += 1
        where, left = f"{file.path}, record {number}, byte {at}", file.size - at
        if left < _FRAME_BYTES:
            raise DataError(f"{where}: the file ends inside the record.")
        header = read(at, at + _HEADER.size)
        length, crc = _HEADER.unpack(header)
        if masked_crc32c(header[:8]) != crc:
            raise DataError(f"{where}: no TFRecord, or damaged: the length's checksum is wrong.")
        if length > left - _FRAME_BYTES:
            raise DataError(
                f"{where}: the record has {length} bytes, but the file only"
                f" {left - _FRAME_BYTES} more: it is cut short."
            )
        yield at, length + _FRAME_BYTES
        at += length + _FRAME_BYTES


def payload(record: bytes, where: str) -> bytes:
    """Returns what a record holds.

    Args:
        record: with its frame.
        where: begins the message if it is damaged.

    Raises:
        DataError: if it is.
    """
    data = record[_HEADER.size : -_FOOTER.size]
    if masked_crc32c(data) != _FOOTER.unpack(record[-_FOOTER.size :])[0]:
        raise DataError(f"{where}: the record is damaged: its checksum is wrong.")
    return data


def string_feature(data: bytes, name: str, where: str) -> bytes:
    """Returns the one string in a feature of a serialized tf.train.Example.

    Raises:
        DataError: if there is none, or several; begins with `where`.
    """
    try:
        found = tf.train.Example.FromString(data).features.feature
    except DecodeError as error:
        raise DataError(f"{where}: no tf.train.Example: {error}.") from None
    if name not in found:
        there = ", ".join(map(repr, sorted(found)[:8])) or "none"
        raise DataError(f"{where}: there is no feature {name!r}; features: {there}.")
    if not found[name].HasField("bytes_list"):
        raise DataError(f"{where}: feature {name!r} holds no strings.")
    strings = found[name].bytes_list.value
    if len(strings) != 1:
        raise DataError(f"{where}: feature {name!r} holds {len(strings)} strings, not one.")
    return strings[0]
