"""TFRecord: records of bytes, here tf.train.Example with a document in one of its features.

A record is its length (8 bytes, little-endian), the masked CRC-32C of these (4), the payload, and
the masked CRC-32C of the payload (4). The index follows the lengths from record to record; each is
checked against its CRC and against what is left of the file before anything is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import ClassVar

import google_crc32c
from google.protobuf.message import DecodeError

from lingo.config.lazy import tf
from lingo.data.source import DamagedRecord, MatchingFiles, Records
from lingo.data.sources.files import File, Read, refuse_empty

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_FRAME_BYTES = _HEADER.size + _FOOTER.size
_MASK_DELTA = 0xA282EAD8


class TfRecords(Records, MatchingFiles):
    """A string feature of the tf.train.Example in each record of each file."""

    feature: str = "text"  # the name of the feature that holds the text

    checksums: ClassVar[bool] = True

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        refuse_empty(file)
        return records(file, read)

    def text(self, data: bytes, where: str) -> bytes:
        return string_feature(payload(data, where), self.p.feature, where)


def records(file: File, read: Read) -> Iterator[tuple[int, int]]:
    """Yields (first byte, number of bytes) of each record of a TFRecord file, its frame included.

    Raises:
        DamagedRecord: for a header that is damaged, or leads behind the end of the file.
    """
    at = number = 0
    while at < file.size:
        number += 1
        where, left = f"{file.path}, record {number}, byte {at}", file.size - at
        if left < _FRAME_BYTES:
            raise DamagedRecord(f"{where}: the file ends inside the record.")
        header = read(at, at + _HEADER.size)
        length, crc = _HEADER.unpack(header)
        if masked_crc32c(header[:8]) != crc:
            raise DamagedRecord(
                f"{where}: no TFRecord, or damaged: the length's checksum is wrong."
            )
        if length > left - _FRAME_BYTES:
            raise DamagedRecord(
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
        DamagedRecord: if it is.
    """
    data = record[_HEADER.size : -_FOOTER.size]
    if masked_crc32c(data) != _FOOTER.unpack(record[-_FOOTER.size :])[0]:
        raise DamagedRecord(f"{where}: the record is damaged: its checksum is wrong.")
    return data


def frame(data: bytes) -> bytes:
    """Returns the TFRecord of a payload: its length and checksums with it."""
    length = len(data).to_bytes(8, "little")
    header = _HEADER.pack(len(data), masked_crc32c(length))
    return header + data + _FOOTER.pack(masked_crc32c(data))


def masked_crc32c(data: bytes) -> int:
    """Returns the CRC-32C of some bytes as TFRecord stores it: rotated, plus a constant.

    A CRC over data that holds its own CRC says little; masking keeps the two apart.
    """
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def string_feature(data: bytes, name: str, where: str) -> bytes:
    """Returns the one string in a feature of a serialized tf.train.Example.

    Raises:
        DamagedRecord: if there is none, or several; begins with `where`.
    """
    try:
        found = tf.train.Example.FromString(data).features.feature
    except DecodeError as error:
        raise DamagedRecord(f"{where}: no tf.train.Example: {error}.") from None
    if name not in found:
        there = ", ".join(map(repr, sorted(found)[:8])) or "none"
        raise DamagedRecord(f"{where}: there is no feature {name!r}; features: {there}.")
    if not found[name].HasField("bytes_list"):
        raise DamagedRecord(f"{where}: feature {name!r} holds no strings.")
    strings = found[name].bytes_list.value
    if len(strings) != 1:
        raise DamagedRecord(f"{where}: feature {name!r} holds {len(strings)} strings, not one.")
    return strings[0]
