"""TensorBundles, the files of TensorFlow's checkpoints, read without TensorFlow's reader.

    theirs.index                    name -> type, shape, and where in which file the bytes are
    theirs.data-00000-of-00002      the bytes of some tensors, those of the others in the next

A variable that a partitioner split has an entry that lists its slices, and one for each slice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lingo.checkpoints.sources.source import (
    Tensor,
    damaged,
    plain_size,
    read_plain,
    reading,
    shown,
)
from lingo.checkpoints.sources.table import Malformed, entries, fields
from lingo.config.lazy import tf
from lingo.data.sources.tfrecord import masked_crc32c

INDEX = ".index"

_MAX_INDEX_BYTES = 256 << 20  # a million names
_MAX_SHARDS = 99_999  # as many as names of files have digits for
_HEADER = b""  # its key comes first
_WHOLE = -1  # the length of a slice that has all of an axis

Extent = tuple[int, int]  # first index, and how many


class _Entry(NamedTuple):
    """What the index records of a tensor, or of a slice of one."""

    shape: tuple[int, ...]
    dtype: str
    shard: int
    offset: int
    size: int
    checksum: int
    slices: tuple[tuple[Extent, ...], ...]


class TensorBundle:
    """Named tensors in a file or several.

    Attributes:
        path: prefix of the files.
        tensors: every tensor by the name that it was saved under, also texts.
        files: the index, and the files that hold something.
    """

    def __init__(self, prefix: Path) -> None:
        """Reads the index.

        Raises:
            UnusableSource: if a file is missing, or a byte of the index is not what was written.
        """
        self.path = prefix
        path = prefix.with_name(prefix.name + INDEX)
        data = read_plain(path, max_bytes=_MAX_INDEX_BYTES)
        try:
            table = dict(entries(data))
            self._num_shards = _num_shards(table.pop(_HEADER, None))
            self._entries = {key: _entry(value) for key, value in table.items()}
            names = {key.decode(): key for key in table if not key.startswith(b"\0")}
        except ValueError as error:
            said = error if isinstance(error, Malformed) else "it is no index of a TensorBundle"
            raise damaged(path, str(said)) from None
        self._keys = names
        self.tensors: Mapping[str, Tensor] = {
            name: Tensor(self._entries[key].shape, self._entries[key].dtype)
            for name, key in names.items()
        }
        shards = {entry.shard for entry in self._entries.values() if entry.size}
        self.files = [path, *(self._shard(shard) for shard in sorted(shards))]
        for file in self.files:
            plain_size(file)

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor of a float type, bfloat16 as float32, which holds the same numbers.

        Raises:
            UnusableSource: if its bytes are missing, or not what was written.
        """
        key = self._keys[name]
        entry = self._entries[key]
        if not entry.slices:
            return self._read(name, entry, entry.shape)
        whole = np.empty(entry.shape, _stored(entry.dtype)[1])
        for extents in entry.slices:
            index = tuple(
                slice(start, size if length == _WHOLE else start + length)
                for (start, length), size in zip(extents, entry.shape, strict=True)
            )
            part = self._entries.get(_slice_key(key, extents))
            if part is None or part.dtype != entry.dtype or part.slices:
                raise damaged(self.files[0], f"a slice of {shown(name)} is missing")
            whole[index] = self._read(name, part, whole[index].shape)
        return whole

    def _read(self, name: str, entry: _Entry, shape: tuple[int, ...]) -> np.ndarray:
        """Returns what one entry says where it is."""
        stored, _ = _stored(entry.dtype)
        path = self._shard(entry.shard)
        if entry.size != math.prod(shape) * np.dtype(stored).itemsize or entry.shape != shape:
            raise damaged(self.files[0], f"{shown(name)} has a size that is not that of its shape")
        with reading(path), open(path, "rb") as file:
            file.seek(entry.offset)
            data = file.read(entry.size)
        if len(data) < entry.size:
            raise damaged(path, f"{shown(name)} ends after {len(data):,} of {entry.size:,} bytes")
        if masked_crc32c(data) != entry.checksum:
            raise damaged(path, f"the bytes of {shown(name)} are not what was written")
        values = np.frombuffer(data, stored).reshape(shape)
        if entry.dtype == "bfloat16":  # the upper half of a float32
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values

    def _shard(self, number: int) -> Path:
        name = f"{self.path.name}.data-{number:05d}-of-{self._num_shards:05d}"
        return self.path.with_name(name)


def _stored(dtype: str) -> tuple[str, str]:
    """Returns how a float type is stored, and what it is read as."""
    if dtype == "bfloat16":
        return "<u2", "float32"
    return np.dtype(dtype).newbyteorder("<").str, dtype


def _num_shards(header: bytes | None) -> int:
    """Returns in how many files the tensors are: of a BundleHeaderProto."""
    if header is None:
        raise Malformed("it has no header")
    found = dict(fields(header))
    number = found.get(1, 0)
    if not isinstance(number, int) or number > _MAX_SHARDS:
        raise Malformed(f"it names {number!r} files")
    if found.get(2, 0):
        raise Malformed("its numbers are big-endian, which are not read")
    return number


def _entry(message: bytes) -> _Entry:
    """Reads a BundleEntryProto."""
    numbers, slices = {1: 0, 3: 0, 4: 0, 5: 0, 6: 0}, []
    shape: tuple[int, ...] = ()
    for field, value in fields(message):
        if field in numbers and isinstance(value, int):
            numbers[field] = value
        elif field == 2 and isinstance(value, bytes):
            shape = tuple(_number(dim, 1, 0) for dim in _messages(value, 2))
        elif field == 7 and isinstance(value, bytes):
            slices.append(_extents(value))
    dtype, shard, offset, size, checksum = numbers.values()
    if max(*shape, offset, size, 0) >= 2**63 or shard >= _MAX_SHARDS or len(shape) > 32:
        raise Malformed("an entry has a number that is none of its kind")
    if any(not _is_inside(extents, shape) for extents in slices):
        raise Malformed("a slice is not inside its tensor")
    return _Entry(shape, _dtype(dtype), shard, offset, size, checksum, tuple(slices))


def _dtype(number: int) -> str:
    try:
        return tf.as_dtype(number).name
    except TypeError:
        raise Malformed(f"{number} is the number of no type") from None


def _extents(message: bytes) -> tuple[Extent, ...]:
    """Reads a TensorSliceProto."""
    return tuple((_number(e, 1, 0), _number(e, 2, _WHOLE)) for e in _messages(message, 1))


def _is_inside(extents: tuple[Extent, ...], shape: tuple[int, ...]) -> bool:
    return len(extents) == len(shape) and all(
        (start == 0 if length == _WHOLE else start + length <= size)
        for (start, length), size in zip(extents, shape, strict=True)
    )


def _messages(message: bytes, number: int) -> list[bytes]:
    return [v for field, v in fields(message) if field == number and isinstance(v, bytes)]


def _number(message: bytes, number: int, default: int) -> int:
    found = [v for field, v in fields(message) if field == number and isinstance(v, int)]
    return found[-1] if found else default


def _slice_key(name: bytes, extents: tuple[Extent, ...]) -> bytes:
    """Returns the key of a slice: numbers and texts so written that keys sort as they do."""
    text = name.replace(b"\0", b"\0\xff") + b"\0\1"
    signed = b"".join(_signed(n) for extent in extents for n in extent)
    return b"\0" + text + bytes([1, len(extents)]) + signed


def _signed(value: int) -> bytes:
    """Returns a number of as many bytes as it begins with ones, or with zeros if it is negative."""
    size = (~value if value < 0 else value).bit_length() // 7 + 1
    ones = ((1 << size) - 1) << 7 * size
    return (value % (1 << 8 * size) ^ ones).to_bytes(size, "big")
