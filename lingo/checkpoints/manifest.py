"""MANIFEST.json: the content of a checkpoint, and the digest of each of its files and of itself.

The manifest's own digest is computed with zeros in the place of the digest, so the text is verified
before it is parsed. The digest proves only that a manifest has not changed, but a checkpoint may
come from anywhere. So every type, number and name is checked before it is used; only a bundle's
file names are accepted.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

from lingo.checkpoints.bundle import BUNDLE, DTYPES
from lingo.checkpoints.errors import DamagedCheckpoint, DeletedCheckpoint, NoUsableCheckpoint
from lingo.checkpoints.run_counters import read_counters
from lingo.config.base import regular_file
from lingo.storage.files import sync

FORMAT = 1
MANIFEST = "MANIFEST.json"
MAX_BYTES = 16 << 20  # largest manifest; enough for about a hundred thousand tensors

_STEP = re.compile(r"step_([0-9]{8,10})")
# The manifest's own digest: the digests of files are indented more.
_OWN_DIGEST = re.compile(rb'^ "sha256": "([0-9a-f]{64})"', re.MULTILINE)
_ZEROS = b"0" * 64
_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)  # EINVAL is from `open_plain`

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


def step_name(step: int) -> str:
    """Returns the name of a step's checkpoint."""
    return f"step_{step:08d}"


def step_of(name: str) -> int | None:
    """Returns the step in a checkpoint's name, or None if this is not a checkpoint's name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and name == step_name(int(match[1])) else None


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns a checkpoint's manifest: `format`, `step`, `metadata`, `tensors`, `files`.

    Raises DamagedCheckpoint if the manifest is missing, has changed or breaks the schema,
    DeletedCheckpoint if the checkpoint does not exist, and NoUsableCheckpoint if a later version of
    lingo wrote the manifest, or if it cannot be read now.
    """
    with explain_damage(path, MANIFEST), open_plain(path / MANIFEST) as file:
        text = file.read(MAX_BYTES + 1)
    try:
        body = parse(text)
        if type(body.get("format")) is not int:
            raise ValueError("it has no format")
        if body["format"] == FORMAT:
            check_schema(body)
    except ValueError as error:
        raise DamagedCheckpoint(path, MANIFEST, str(error)) from error
    if body["format"] != FORMAT:
        raise NoUsableCheckpoint(f"{path} has format {body['format']}; this lingo reads {FORMAT}.")
    if step_of(path.name) is not None and path.name != step_name(body["step"]):
        raise DamagedCheckpoint(path, MANIFEST, f"it is the manifest of step {body['step']}")
    return body


def is_whole(path: Path, files: Mapping[str, tuple[int, str]]) -> bool:
    """Returns whether these are all files of a checkpoint, with the bytes that were committed.

    `files` is name -> (size in bytes, SHA-256) of what was read at the checkpoint's path. False if
    its manifest is missing, damaged or not readable.
    """
    try:
        expected = read_manifest(path)["files"]
    except (DamagedCheckpoint, NoUsableCheckpoint):
        return False
    sealed = {name: (entry["size"], entry["sha256"]) for name, entry in expected.items()}
    return MANIFEST in files and sealed == {n: files[n] for n in files if n != MANIFEST}


def write_manifest(
    folder: Path,
    *,
    step: int,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Any],
    files: Mapping[str, Any],
) -> None:
    """Writes the manifest of a checkpoint, and waits until it is on the disk.

    `tensors` is name -> {"shape", "dtype"}, `files` is name -> result of `seal_file`.
    """
    body = {"format": FORMAT, "step": step, "metadata": dict(metadata), "tensors": dict(tensors)}
    body["files"] = dict(files)
    check_schema(body)
    text = render(body)
    if len(text) > MAX_BYTES:
        raise ValueError(f"{len(tensors)} tensors need a manifest of more than {MAX_BYTES} bytes")
    (folder / MANIFEST).write_bytes(text)
    sync(folder / MANIFEST)


def seal_file(path: Path) -> dict[str, Any]:
    """Waits until a file is on the disk, and returns its {"size", "sha256"}."""
    sync(path)
    with open_plain(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def render(body: Mapping[str, Any]) -> bytes:
    """Returns the text of a manifest, digest included.

    Raises ValueError for values that JSON lacks, such as NaN.
    """
    blank = {**body, "sha256": _ZEROS.decode()}
    text = json.dumps(blank, sort_keys=True, indent=1, allow_nan=False)
    return _with_digest(f"{text}\n".encode())


def _with_digest(text: bytes) -> bytes:
    """Returns the text of a manifest with its digest replaced by the correct one."""
    places = list(_OWN_DIGEST.finditer(text))
    if len(places) != 1:
        raise ValueError("it is not a manifest")
    start, end = places[0].span(1)
    digest = hashlib.sha256(text[:start] + _ZEROS + text[end:]).hexdigest().encode()
    return text[:start] + digest + text[end:]


@contextlib.contextmanager
def explain_damage(path: Path, file: str) -> Iterator[None]:
    """Turns an OSError in the body about `file` into one of `lingo.checkpoints.errors`.

    A file that is missing or not a regular file is a DamagedCheckpoint, if the checkpoint itself
    still exists. Other causes may be temporary: permissions, a disk or a server that does not
    answer, too many open files.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOENT and not os.path.lexists(path):
            raise DeletedCheckpoint(path) from error
        reason = error.strerror or str(error)
        if error.errno in _DAMAGE:
            raise DamagedCheckpoint(path, file, reason) from error
        raise unreadable_now(path, file, reason) from error


def unreadable_now(path: Path, file: str, reason: str) -> NoUsableCheckpoint:
    """Returns the error for a file of a checkpoint that may be readable at another time."""
    return NoUsableCheckpoint(
        f"{path} cannot be read now: {file}: {reason}. Nothing was changed: try again."
    )


def open_plain(path: Path) -> BufferedReader:
    """Opens a regular file of a checkpoint; refuses links, which may lead out of the checkpoint."""
    return regular_file.open_regular(path, links=False)


def parse(text: bytes) -> dict[str, Any]:
    """Returns the content of a manifest that `render` wrote; raises ValueError for other texts."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES} bytes")
    if _with_digest(text) != text:
        raise ValueError("its bytes have changed")
    try:
        body = json.loads(text.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not a manifest") from error
    if not isinstance(body, dict):
        raise ValueError("it is not a manifest")
    return body


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")


# ---- schema --------------------------------------------------------------------------------------


def check_schema(body: Mapping[str, Any]) -> None:
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
            raise ValueError(f"{name!r:.100} is not the name of a bundle's file")
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
