"""MANIFEST.json: the content of a checkpoint, and the digest of each of its files and of itself.

Its own digest is that of its text with zeros in the place of the digest, so the text is verified
before it is parsed.
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

from lingo.checkpoints import schema
from lingo.checkpoints.errors import DamagedCheckpoint, DeletedCheckpoint, NoUsableCheckpoint
from lingo.config.base import regular_file
from lingo.storage.files import sync

FORMAT = 1
MANIFEST = "MANIFEST.json"
MAX_BYTES = 16 << 20  # of a manifest: enough for about a hundred thousand tensors

_STEP = re.compile(r"step_([0-9]{8,10})")
# Those of files are indented more.
_OWN_DIGEST = re.compile(rb'^ "sha256": "([0-9a-f]{64})"', re.MULTILINE)
_ZEROS = b"0" * 64
_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)  # EINVAL is from `open_plain`


def step_name(step: int) -> str:
    """Returns the name of a step's checkpoint."""
    return f"step_{step:08d}"


def step_of(name: str) -> int | None:
    """Returns the step in the name of a checkpoint, or None for another name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and name == step_name(int(match[1])) else None


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns a checkpoint's manifest: `format`, `step`, `metadata`, `tensors`, `files`.

    Raises DamagedCheckpoint if it is missing, not what was written, or breaks the schema,
    DeletedCheckpoint if the checkpoint is not there, and NoUsableCheckpoint if a later version of
    lingo wrote it, or it cannot be read now.
    """
    with explain_damage(path, MANIFEST), open_plain(path / MANIFEST) as file:
        text = file.read(MAX_BYTES + 1)
    try:
        body = parse(text)
        if type(body.get("format")) is not int:
            raise ValueError("it has no format")
        if body["format"] == FORMAT:
            schema.check(body)
    except ValueError as error:
        raise DamagedCheckpoint(path, MANIFEST, str(error)) from error
    if body["format"] != FORMAT:
        raise NoUsableCheckpoint(f"{path} has format {body['format']}; this lingo reads {FORMAT}.")
    if step_of(path.name) is not None and path.name != step_name(body["step"]):
        raise DamagedCheckpoint(path, MANIFEST, f"it is that of step {body['step']}")
    return body


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
    schema.check(body)
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
    """Returns the text of a manifest, with its digest; raises ValueError for what JSON lacks."""
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
    """Turns an OSError inside, for a file of a checkpoint, into one of the checkpoints' errors.

    Only a file that is missing, or is not a regular file, is damage, if the checkpoint is still
    there. Other causes may be temporary: permissions, a disk or a server that does not answer, too
    many open files.
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
    """Opens a regular file of a checkpoint; refuses links, which may lead out of it."""
    return regular_file.open_regular(path, links=False)


def parse(text: bytes) -> dict[str, Any]:
    """Returns the content of a manifest as `render` writes it; raises ValueError for another."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES} bytes")
    if _with_digest(text) != text:
        raise ValueError("its bytes are not what was written")
    try:
        body = json.loads(text.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not a manifest") from error
    if not isinstance(body, dict):
        raise ValueError("it is not a manifest")
    return body


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")
