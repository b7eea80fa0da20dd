"""TFRecord: records of bytes, here tf.train.Example with a document in one of its features.

A record is its length (8 bytes, little-endian), the length's masked CRC-32C (4 bytes), the payload,
and the payload's masked CRC-32C (4 bytes). Indexing follows the lengths from record to record; each
length is checked against its CRC and the rest of the file before the payload is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import google_crc32c
import numpy as np
from google.protobuf.message import DecodeError

from lingo.config.lazy import tf
from lingo.data.files import File, Read, refuse_empty
from lingo.data.record_source import CorruptRecord, DecodedRecords, MatchingFiles

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_FRAME_BYTES = _HEADER.size + _FOOTER.size
_MASK_DELTA = 0xA282EAD8


class TfRecords(DecodedRecords, MatchingFiles):
    """A string feature of the tf.train.Example in each record of each file.

    Lengths and checksums are checked: a corrupt or truncated file is an error, never a shorter
    epoch.
    """

    feature: str = "text"  # the name of the feature that holds the text

    checksums: ClassVar[bool] = True

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        refuse_empty(file)
        return records(file, read)

    def text(self, data: bytes, where: str) -> bytes:
        features = parse_example(payload(data, where), where)
        return one_string(features, self.p.feature, where)


def records(file: File, read: Read) -> Iterator[tuple[int, int]]:
    """Yields (first byte, number of bytes) of each record of a TFRecord file, its frame included.

    Raises CorruptRecord if a header is damaged, or a record exceeds the file.
    """
    at = number = 0
    while at < file.size:
        number += 1
        where, left = f"{file.path}, record {number}, byte {at}", file.size - at
        if left < _FRAME_BYTES:
            raise CorruptRecord(f"{where}: the file ends inside the record.")
        header = read(at, at + _HEADER.size)
        length, crc = _HEADER.unpack(header)
        if masked_crc32c(header[:8]) != crc:
            raise CorruptRecord(
                f"{where}: not a TFRecord, or damaged: the length's checksum is wrong."
            )
        if length > left - _FRAME_BYTES:
            raise CorruptRecord(
                f"{where}: the record has {length} bytes, but the file only"
                f" {left - _FRAME_BYTES} more: it is cut short."
            )
        yield at, length + _FRAME_BYTES
        at += length + _FRAME_BYTES


def payload(record: bytes, where: str) -> bytes:
    """Returns the payload of a record; raises CorruptRecord if its checksum is wrong."""
    data = record[_HEADER.size : -_FOOTER.size]
    if masked_crc32c(data) != _FOOTER.unpack(record[-_FOOTER.size :])[0]:
        raise CorruptRecord(f"{where}: the record is damaged: its checksum is wrong.")
    return data


def frame(data: bytes) -> bytes:
    """Returns a payload as a TFRecord, with its length and checksums."""
    length = len(data).to_bytes(8, "little")
    header = _HEADER.pack(len(data), masked_crc32c(length))
    return header + data + _FOOTER.pack(masked_crc32c(data))


def masked_crc32c(data: bytes) -> int:
    """Returns the CRC-32C of some bytes as TFRecord stores it: rotated, plus a constant."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def parse_example(data: bytes, where: str) -> Mapping[str, Any]:
    """Returns the features of a tf.train.Example by name; raises CorruptRecord for other data."""
    try:
        return tf.train.Example.FromString(data).features.feature
    except DecodeError as error:
        raise CorruptRecord(f"{where}: not a tf.train.Example: {error}.") from None


def one_string(features: Mapping[str, Any], name: str, where: str) -> bytes:
    """Returns the one string of a feature; raises CorruptRecord unless it has exactly one."""
    strings = _feature(features, name, where).bytes_list.value
    if len(strings) != 1:
        raise CorruptRecord(f"{where}: feature {name!r} has {len(strings)} strings, not one.")
    return strings[0]


def one_integer(features: Mapping[str, Any], name: str, where: str) -> int:
    """Returns the one integer of a feature; raises CorruptRecord unless it has exactly one."""
    integers = _feature(features, name, where).int64_list.value
    if len(integers) != 1:
        raise CorruptRecord(f"{where}: feature {name!r} has {len(integers)} integers, not one.")
    return integers[0]


def integers(features: Mapping[str, Any], name: str, where: str) -> np.ndarray:
    """Returns a feature's integers, int64 [any number]; raises CorruptRecord if it is missing."""
    return np.array(_feature(features, name, where).int64_list.value, np.int64)


def floats(features: Mapping[str, Any], name: str, where: str) -> np.ndarray:
    """Returns a feature's floats, float32 [any number]; raises CorruptRecord if it is missing."""
    return np.array(_feature(features, name, where).float_list.value, np.float32)


def _feature(features: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in features:
        names = ", ".join(map(repr, sorted(features)[:8])) or "none"
        raise CorruptRecord(f"{where}: there is no feature {name!r}; features: {names}.")
    return features[name]
