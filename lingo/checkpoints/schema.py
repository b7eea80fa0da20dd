"""The schema of a manifest, which is checked before anything in it is used.

A checkpoint may come from anywhere, and a digest proves only that a manifest is what somebody
wrote. So every type, number and name is checked; file names can only be those of a bundle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lingo.checkpoints.bundle import BUNDLE, DTYPES
from lingo.checkpoints.run_counters import read_counters

MAX_STEP = 2**31 - 1  # a step is an int32
MAX_NAME = 1000  # characters in the name of a tensor
MAX_SIZE = 2**63 - 1  # bytes in a file, elements along an axis

_FIELDS = {"step", "metadata", "tensors", "files"}
_METADATA = {
    "config": str,
    "seed": int,
    "data": dict,
    "versions": dict,
    "numerics": dict,
    "data_position": dict,
    "guard": dict,
    "metrics": dict,
}
_DATA_POSITION = ("step", "examples", "epoch")
_INDEX = f"{BUNDLE}.index"
_DATA = re.compile(rf"{BUNDLE}\.data-[0-9]{{5}}-of-([0-9]{{5}})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_WORDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}


def check(body: Mapping[str, Any]) -> None:
    """Raises ValueError if the content of a manifest, of any JSON types, breaks the schema."""
    if missing := sorted(_FIELDS - body.keys()):
        raise ValueError(f"it has no {missing[0]!r}")
    _check_count("step", body["step"], MAX_STEP)
    _check_metadata(body["step"], _check_type("metadata", body["metadata"], dict))
    for name, entry in _check_type("tensors", body["tensors"], dict).items():
        _check_tensor(name, entry)
    _check_files(_check_type("files", body["files"], dict))


def _check_metadata(step: int, metadata: Mapping[str, Any]) -> None:
    for key in metadata.keys() & _METADATA.keys():
        _check_type(f"metadata.{key}", metadata[key], _METADATA[key])
    if "skipped_steps" in metadata:
        _check_count("metadata.skipped_steps", metadata["skipped_steps"], MAX_STEP)
    if "data_position" in metadata:
        position = metadata["data_position"]
        for key in _DATA_POSITION:
            _check_count(f"metadata.data_position.{key}", position.get(key), MAX_SIZE)
    read_counters(step, metadata)


def _check_tensor(name: str, entry: Any) -> None:
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise ValueError(f"{name[:100]!r} is not the name of a tensor")
    where = f"tensors[{name!r}]"
    _check_type(where, entry, dict)
    for size in _check_type(f"{where}.shape", entry.get("shape"), list):
        _check_count(f"{where}.shape", size, MAX_SIZE)
    if _check_type(f"{where}.dtype", entry.get("dtype"), str) not in DTYPES:
        raise ValueError(f"{where}.dtype is {entry['dtype']!r:.100}, not a type of numbers")


def _check_files(files: Mapping[str, Any]) -> None:
    for name, entry in files.items():
        if name != _INDEX and not _DATA.fullmatch(name):
            raise ValueError(f"{name!r:.100} is not the name of a file in it")
        where = f"files[{name!r}]"
        _check_count(f"{where}.size", _check_type(where, entry, dict).get("size"), MAX_SIZE)
        if not _SHA256.fullmatch(_check_type(f"{where}.sha256", entry.get("sha256"), str)):
            raise ValueError(f"{where}.sha256 is not a digest")
    data = sorted(files.keys() - {_INDEX})
    expected = [f"{BUNDLE}.data-{i:05d}-of-{len(data):05d}" for i in range(len(data))]
    if _INDEX not in files or not data or data != expected:
        raise ValueError("it does not name all files of the bundle")


def _check_count(where: str, value: Any, largest: int) -> None:
    if _check_type(where, value, int) < 0 or value > largest:
        raise ValueError(f"{where} is {_short(value)}, not in 0..{largest}")


def _check_type(where: str, value: Any, kind: type) -> Any:
    if type(value) is not kind:  # True is an int, too
        raise ValueError(f"{where} is {_short(value)}, not {_WORDS[kind]}")
    return value


def _short(value: Any) -> str:
    return "missing" if value is None else f"{type(value).__name__} {value!r:.40}"
