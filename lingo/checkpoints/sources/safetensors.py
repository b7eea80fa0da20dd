"""Tensors in `.safetensors` files: a header in JSON, then the numbers, nothing that runs.

    8 bytes    N, the length of the header: unsigned, little-endian
    N bytes    {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...}
    the rest   the tensors, row-major, little-endian, one after the other

A large model has several such files and `model.safetensors.index.json`, which says which tensor
stands in which. A header is believed only as far as it agrees with the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from lingo.checkpoints.sources.source import (
    Source,
    Tensor,
    damaged,
    plain_size,
    read_plain,
    reading,
    shown,
)
from lingo.config.params import suggest

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"

_MAX_HEADER_BYTES = 16 << 20  # a hundred thousand tensors; the format itself allows six times that
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_MAX_AXES = 32


class _Type(NamedTuple):
    """A type of the format: its name here, its bytes, and how NumPy reads it."""

    name: str
    num_bytes: int
    stored: str = ""


_TYPES = {
    "F64": _Type("float64", 8, "<f8"),
    "F32": _Type("float32", 4, "<f4"),
    "F16": _Type("float16", 2, "<f2"),
    "BF16": _Type("bfloat16", 2, "<u2"),
    **{f"I{8 * n}": _Type(f"int{8 * n}", n, f"<i{n}") for n in (1, 2, 4, 8)},
    **{f"U{8 * n}": _Type(f"uint{8 * n}", n, f"<u{n}") for n in (1, 2, 4, 8)},
    "BOOL": _Type("bool", 1, "?"),
}


class _Place(NamedTuple):
    """A tensor and where its bytes are, counted from the end of the header."""

    dtype: str  # as the format names it
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """The tensors of one file.

    Attributes:
        path: the file.
        what: "safetensors".
        tensors: all of them; a type that is not known here keeps the format's name.
    """

    what = "safetensors"

    def __init__(self, path: Path) -> None:
        """Reads the header.

        Raises:
            UnusableSource: if it is not what the format says.
        """
        self.path = path
        header, self._start, num_bytes = _header(path)
        self._places = {name: _place(path, name, entry) for name, entry in header.items()}
        _check_places(path, self._places, num_bytes)
        self.tensors: Mapping[str, Tensor] = {
            name: Tensor(p.shape, _TYPES[p.dtype].name if p.dtype in _TYPES else p.dtype)
            for name, p in self._places.items()
        }

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor in its type, bfloat16 as float32, which holds the same numbers.

        Args:
            name: of a tensor of a type that NumPy has, or bfloat16.

        Raises:
            UnusableSource: if its bytes are not there any more.
        """
        place = self._places[name]
        size = place.end - place.begin
        with reading(self.path), open(self.path, "rb") as file:
            file.seek(self._start + place.begin)
            data = file.read(size)
        if len(data) < size:
            raise damaged(self.path, f"{shown(name)} ends after {len(data):,} of {size:,} bytes")
        values = np.frombuffer(data, _TYPES[place.dtype].stored).reshape(place.shape)
        if place.dtype == "BF16":  # the upper half of a float32
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values

    def files(self, names: Collection[str]) -> list[Path]:
        """Returns the file."""
        del names
        return [self.path]


class SafetensorsShards:
    """The tensors of several files, found by an index.

    Attributes:
        path: the index.
        what: "safetensors in 3 files".
        tensors: those that the index names.
    """

    def __init__(self, path: Path) -> None:
        """Reads the index and the header of each file in it.

        Raises:
            UnusableSource: if one is missing or damaged, or if they do not agree.
        """
        self.path = path
        names = _weight_map(path)
        shards = {file: SafetensorsFile(path.parent / file) for file in sorted({*names.values()})}
        self.what = f"safetensors in {len(shards)} files"
        self._shards: dict[str, SafetensorsFile] = {}
        for name, file in names.items():
            held = shards[file].tensors
            if name not in held:
                near = suggest(shown(name), map(shown, list(held)[:1000]))
                raise damaged(path, f"{file} has no {shown(name)}{near.removesuffix('?')}")
            self._shards[name] = shards[file]
        self.tensors: Mapping[str, Tensor] = {
            name: shard.tensors[name] for name, shard in self._shards.items()
        }

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor, as `SafetensorsFile.read` does."""
        return self._shards[name].read(name)

    def files(self, names: Collection[str]) -> list[Path]:
        """Returns the index and the files of some tensors."""
        return [self.path, *sorted({self._shards[name].path for name in names})]


def open_safetensors(path: Path) -> Source:
    """Returns the tensors of a `.safetensors` file, or of all files that an index names."""
    return SafetensorsShards(path) if path.name.endswith(".json") else SafetensorsFile(path)


# ---- the header ----------------------------------------------------------------------------------


def _header(path: Path) -> tuple[dict[str, Any], int, int]:
    """Returns the header without its metadata, where the tensors begin, and their bytes."""
    size = plain_size(path)
    with reading(path), open(path, "rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
            says = f"{size:,} bytes, too few for a header" + (
                f" of {length:,}" if size >= _LENGTH_BYTES else ""
            )
            raise damaged(path, f"it has {says}")
        if length > _MAX_HEADER_BYTES:
            raise damaged(path, f"its header has {length:,} bytes; {_MAX_HEADER_BYTES:,} are read")
        text = file.read(length)
    header = _object(path, text, "header")
    header.pop(_METADATA, None)
    start = _LENGTH_BYTES + length
    return header, start, size - start


def _object(path: Path, text: bytes, what: str) -> dict[str, Any]:
    """Returns a JSON object in which no key comes twice."""
    try:
        body = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"its {what} is no JSON: {shown(str(error))}") from None
    if not isinstance(body, dict):
        raise damaged(path, f"its {what} is no JSON object")
    return body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{shown(name)} comes twice")
        found[name] = value
    return found


def _place(path: Path, name: str, entry: Any) -> _Place:
    """Reads what a header says of one tensor."""
    where = shown(name)
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        raise damaged(path, f"{where} has no dtype")
    shape, offsets, dtype = entry.get("shape"), entry.get("data_offsets"), entry["dtype"]
    if not _are_counts(shape) or len(shape) > _MAX_AXES:
        raise damaged(path, f"{where} has no shape")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise damaged(path, f"{where} has no data_offsets")
    place = _Place(dtype, tuple(shape), *offsets)
    if dtype in _TYPES:
        needs = math.prod(shape) * _TYPES[dtype].num_bytes
        if place.end - place.begin != needs:
            given = f"{place.end - place.begin:,} bytes"
            raise damaged(path, f"{where}, {shown(dtype)} {shape}, has {given}, not {needs:,}")
    return place


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    """Returns whether a value of JSON is a list of whole numbers from 0."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _check_places(path: Path, places: Mapping[str, _Place], num_bytes: int) -> None:
    """Raises UnusableSource if tensors overlap, leave room between them, or pass the file's end."""
    end, last = 0, "the header"
    for name, place in sorted(places.items(), key=_by_place):
        if place.begin != end:
            how = "begins before the end of" if place.begin < end else "leaves room behind"
            raise damaged(path, f"{shown(name)} {how} {last}")
        end, last = place.end, shown(name)
    if end != num_bytes:
        raise damaged(path, f"its tensors take {end:,} bytes, and it has {num_bytes:,} for them")


def _by_place(entry: tuple[str, _Place]) -> tuple[int, int]:
    return entry[1].begin, entry[1].end


def _weight_map(path: Path) -> dict[str, str]:
    """Returns tensor -> name of its file, in the directory of the index."""
    body = _object(path, read_plain(path, max_bytes=_MAX_HEADER_BYTES), "content")
    found = body.get("weight_map")
    if not isinstance(found, dict) or not found:
        raise damaged(path, "it has no weight_map")
    _check_files(path, found.values())
    return found


def _check_files(path: Path, names: Iterable[Any]) -> None:
    """Raises UnusableSource for a name that is no safetensors file in the index's directory."""
    for name in {name if isinstance(name, str) else repr(name) for name in names}:
        inside = name == Path(name).name and name.isprintable() and not name.startswith(".")
        if not (inside and name.endswith(SUFFIX)):
            raise damaged(path, f"{shown(name)} is no name of a {SUFFIX} file beside it")
