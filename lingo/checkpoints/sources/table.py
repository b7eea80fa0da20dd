"""The sorted table of names and values that is the index of a TensorBundle.

    block, block, ..., block of block handles, footer      each block ends in its type and checksum

TensorFlow's own reader stops at a damaged block and reports what it saw before, as if that were
all; what it finds in a sound one it believes. Here every checksum and every size is looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from lingo.data.sources.tfrecord import masked_crc32c

_FOOTER_BYTES = 48
_MAGIC = 0xDB4775248B80FB57
_TRAILER = struct.Struct("<BI")  # type, 0 for what is not compressed, and masked checksum
_COUNT = struct.Struct("<I")


class Malformed(ValueError):
    """Bytes that are not what their format says."""


class _Handle(NamedTuple):
    """Where a block is."""

    offset: int
    size: int


def entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a table, in order.

    Raises:
        Malformed: where a byte is not what was written, or the table is none.
    """
    footer = data[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise Malformed("it does not end as an index of a TensorBundle does")
    nothing, position = _handle(footer, 0)
    _block(data, nothing)  # what it holds means nothing, but damage does
    index, _ = _handle(footer, position)
    for _, value in _entries_in(_block(data, index)):
        yield from _entries_in(_block(data, _handle(value, 0)[0]))


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of each field of a protocol buffer.

    A value is an int where the format has a varint or a fixed number, else bytes.

    Raises:
        Malformed: if the message is none.
    """
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        match tag & 7:
            case 0:
                value, position = _varint(message, position)
            case 2:
                size, position = _varint(message, position)
                value, position = _taken(message, position, size)
            case 1 | 5 as wire:
                raw, position = _taken(message, position, 8 if wire == 1 else 4)
                value = int.from_bytes(raw, "little")
            case _:
                raise Malformed("a field in it is of no known kind")
        yield tag >> 3, value


def _block(data: bytes, handle: _Handle) -> bytes:
    """Returns the content of a block whose checksum is right."""
    end = handle.offset + handle.size
    if end + _TRAILER.size > len(data) - _FOOTER_BYTES or handle.size < _COUNT.size:
        raise Malformed(f"it has no block of bytes {handle.offset:,} to {end:,}")
    kind, checksum = _TRAILER.unpack_from(data, end)
    if masked_crc32c(data[handle.offset : end + 1]) != checksum:
        raise Malformed(f"bytes {handle.offset:,} to {end:,} are not what was written")
    if kind:
        raise Malformed(f"the block at byte {handle.offset:,} is compressed, which is not read")
    return data[handle.offset : end]


def _entries_in(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a block; each key begins as the one before."""
    (num_restarts,) = _COUNT.unpack_from(block, len(block) - _COUNT.size)
    end, position, key = len(block) - _COUNT.size * (num_restarts + 1), 0, b""
    if end < 0:
        raise Malformed("a block is shorter than it says")
    while position < end:
        shared, position = _varint(block, position)
        rest, position = _varint(block, position)
        length, position = _varint(block, position)
        ending, position = _taken(block, position, rest)
        key = key[:shared] + ending
        value, position = _taken(block, position, length)
        yield key, value


def _handle(data: bytes, position: int) -> tuple[_Handle, int]:
    offset, position = _varint(data, position)
    size, position = _varint(data, position)
    return _Handle(offset, size), position


def _taken(data: bytes, position: int, size: int) -> tuple[bytes, int]:
    """Returns some bytes, and where they end."""
    end = position + size
    if end > len(data):
        raise Malformed("it ends in the middle of an entry")
    return data[position:end], end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns a number in groups of seven bits, least first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte, position = _taken(data, position, 1)
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value % 2**64, position
    raise Malformed("a number in it has no end")
