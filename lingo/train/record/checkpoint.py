"""Checkpoints: a directory per step that is committed whole and never written again.

    step_00000200/
        tensors.index, tensors.data-00000-of-00001    a TensorBundle: SaveV2, RestoreV2
        MANIFEST.json                                 what is in them, and the digest of each file

A checkpoint is written beside its place under a temporary name, with its manifest last, and then
renamed. There is no pointer file: the latest checkpoint is the highest step whose manifest
verifies. Every tensor has the name of one layer's weight (`weights/<name>`, `slots/<slot>/<name>`,
`state/<name>`), so any program that has these weights can read it, however it stacks or splits
them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import shutil
import stat
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lingo.config.params import suggest
from lingo.errors import LingoError
from lingo.lazy import tf
from lingo.train.record.storage import PATH_PART, storage_error, sync, writing

FORMAT = 1
MANIFEST = "MANIFEST.json"

_FIELDS = {"format", "step", "metadata", "tensors", "files"}
_BUNDLE = "tensors"
_STEP = re.compile(r"step_(\d{8,})")
_PART_BYTES = 128 << 20  # tensors gathered in memory before they are written
_STORED_AS = {"float16": "int16", "uint16": "int16", "uint32": "int32", "uint64": "int64"}
"""Types of which RestoreV2 reads no slices, and those of the same size that hold their bits."""


class DamagedCheckpoint(LingoError):
    """A checkpoint does not hold what was written.

    Attributes:
        path: the checkpoint.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, path: Path, file: str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {file}: {reason}")
        self.path = path


class NoUsableCheckpoint(LingoError):
    """There are checkpoints, or there were, and none can be used."""

    exit_code: ClassVar[int] = 3


class CheckpointMismatch(LingoError):
    """A sound checkpoint that belongs to another model."""

    exit_code: ClassVar[int] = 4


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint.

    Attributes:
        path: its directory.
        manifest: what MANIFEST.json says: `format`, `step`, `metadata`, `tensors`, `files`.
        passed_over: later checkpoints that were found damaged when this one was chosen.
    """

    path: Path
    manifest: Mapping[str, Any]
    passed_over: tuple[DamagedCheckpoint, ...] = ()

    @property
    def step(self) -> int:
        """Steps that were done when it was written."""
        return self.manifest["step"]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the writer said about it."""
        return self.manifest["metadata"]

    @property
    def tensors(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name -> (shape, dtype) of every tensor in it."""
        entries = self.manifest["tensors"].items()
        return {name: (tuple(entry["shape"]), entry["dtype"]) for name, entry in entries}

    def verify(self) -> None:
        """Reads every file.

        Raises:
            DamagedCheckpoint: if a file is missing, or a byte is not what was written.
        """
        for name, expected in self.manifest["files"].items():
            path = self.path / name
            try:
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode):
                    raise DamagedCheckpoint(self.path, name, "it is not a plain file")
                if status.st_size != expected["size"]:
                    reason = f"{status.st_size} bytes, {expected['size']} were written"
                    raise DamagedCheckpoint(self.path, name, reason)
                if _digest(path) != expected["sha256"]:
                    raise DamagedCheckpoint(self.path, name, "its bytes are not what was written")
            except OSError as error:
                raise DamagedCheckpoint(self.path, name, error.strerror or str(error)) from error

    def require(self, expected: Mapping[str, tuple[Sequence[int], str]]) -> None:
        """Checks that it holds the tensors of a model, these and no others.

        Args:
            expected: name -> (shape, dtype).

        Raises:
            CheckpointMismatch: with every difference, and names that are near.
        """
        held = self.tensors
        missing, unexpected = expected.keys() - held.keys(), held.keys() - expected.keys()
        lines = [
            f"missing {n}{suggest(n, unexpected)}" for n in sorted(missing, key=_weights_first)
        ]
        lines += [f"unexpected {name}" for name in sorted(unexpected, key=_weights_first)]
        for name in sorted(expected.keys() & held.keys(), key=_weights_first):
            (shape, dtype), (its_shape, its_dtype) = expected[name], held[name]
            if its_shape != tuple(shape):
                lines.append(f"shape {name}: checkpoint {list(its_shape)}, model {list(shape)}")
            if its_dtype != dtype:
                lines.append(f"dtype {name}: checkpoint {its_dtype}, model {dtype}")
        if lines:
            more = [f"... and {len(lines) - 20} more"] if len(lines) > 20 else []
            raise CheckpointMismatch(
                "\n  ".join([f"{self.path} is of another model:", *lines[:20], *more])
            )

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Returns tensors by name, whole; bfloat16 as ml_dtypes' type.

        Raises:
            CheckpointMismatch: for a name that it does not hold.
            DamagedCheckpoint: if a tensor cannot be read.
        """
        names = list(names)
        return dict(zip(names, self._restore(names, [""] * len(names)), strict=True))

    def read_slice(self, name: str, index: Sequence[slice]) -> np.ndarray:
        """Returns part of a tensor without reading the rest.

        Args:
            name: of a tensor in it.
            index: a slice with step 1 for each axis.

        Raises:
            CheckpointMismatch: for a name that it does not hold.
            DamagedCheckpoint: if the tensor cannot be read.
        """
        shape = self._entry(name)["shape"]
        ranges = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
        spans = ":".join(f"{start},{stop - start}" for start, stop in ranges)
        spec = f"{' '.join(map(str, shape))} {spans}" if shape else ""
        return self._restore([name], [spec])[0]

    def _entry(self, name: str) -> Mapping[str, Any]:
        entries = self.manifest["tensors"]
        if name not in entries:
            near = suggest(name, entries)
            raise CheckpointMismatch(f"{self.path} holds no tensor {name!r}.{near}")
        return entries[name]

    def _restore(self, names: list[str], specs: list[str]) -> list[np.ndarray]:
        if not names:
            return []
        dtypes: list[str] = [self._entry(name)["dtype"] for name in names]
        try:
            values = tf.raw_ops.RestoreV2(
                prefix=str(self.path / _BUNDLE),
                tensor_names=names,
                shape_and_slices=specs,
                dtypes=[tf.as_dtype(_STORED_AS.get(dtype, dtype)) for dtype in dtypes],
            )
        except tf.errors.OpError as error:
            raise DamagedCheckpoint(self.path, _BUNDLE, error.message) from error
        return [
            value.numpy().view(dtype) if dtype in _STORED_AS else value.numpy()
            for value, dtype in zip(values, dtypes, strict=True)
        ]


def _weights_first(name: str) -> tuple[bool, str]:
    return not name.startswith("weights/"), name


# ---- finding -----------------------------------------------------------------------------------


def steps(directory: Path) -> list[int]:
    """Returns the committed steps in a directory, lowest first, sound or not."""
    if not directory.is_dir():
        return []
    found = (_STEP.fullmatch(entry.name) for entry in directory.iterdir() if entry.is_dir())
    return sorted(int(match[1]) for match in found if match)


def step_path(directory: Path, step: int) -> Path:
    """Returns where the checkpoint of a step stands."""
    return directory / f"step_{step:08d}"


def open_checkpoint(path: Path) -> Checkpoint:
    """Returns a checkpoint whose manifest is sound; its other files are not read.

    Raises:
        DamagedCheckpoint: if the manifest is missing or not what was written.
        NoUsableCheckpoint: if a later version of lingo wrote it.
    """
    try:
        text = (path / MANIFEST).read_bytes()
        body = json.loads(text)
        body.pop("sha256")
        written = _rendered(body).encode() == text and body.keys() >= _FIELDS
    except OSError as error:
        raise DamagedCheckpoint(path, MANIFEST, error.strerror or str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(path, MANIFEST, "it is no manifest") from error
    if not written:
        raise DamagedCheckpoint(path, MANIFEST, "its bytes are not what was written")
    if body["format"] != FORMAT:
        raise NoUsableCheckpoint(f"{path} has format {body['format']}; this lingo reads {FORMAT}.")
    if _STEP.fullmatch(path.name) and path != step_path(path.parent, body["step"]):
        raise DamagedCheckpoint(path, MANIFEST, f"it is that of step {body['step']}")
    for name in body["files"]:
        if not PATH_PART.fullmatch(name):
            raise DamagedCheckpoint(path, MANIFEST, f"{name!r} is no name of a file in it")
    return Checkpoint(path, body)


def latest(directory: Path) -> Checkpoint | None:
    """Returns the checkpoint of the highest step that verifies, or None if there never was one.

    Nothing is changed; `passed_over` of the result lists damaged checkpoints of higher steps.

    Raises:
        NoUsableCheckpoint: if there are checkpoints and all are damaged.
    """
    damaged: list[DamagedCheckpoint] = []
    for step in reversed(steps(directory)):
        try:
            found = open_checkpoint(step_path(directory, step))
            found.verify()
        except DamagedCheckpoint as error:
            damaged.append(error)
        else:
            return dataclasses.replace(found, passed_over=tuple(damaged))
    aside = sorted(p.name for p in directory.glob("step_*.corrupt-*"))
    if damaged or aside:
        reasons = [
            *map(str, damaged),
            *(f"{directory / name} was damaged before" for name in aside),
        ]
        lines = "\n  ".join([f"no checkpoint in {directory} can be used:", *reasons])
        raise NoUsableCheckpoint(f"{lines}\nMove them away to start from step 0.")
    return None


# ---- writing -----------------------------------------------------------------------------------


def save(
    directory: Path,
    *,
    step: int,
    tensors: Iterable[tuple[str, Any]],
    metadata: Mapping[str, Any],
    keep: int,
    protected: Collection[int] = (),
) -> Path:
    """Writes and commits a checkpoint, then deletes the oldest.

    Args:
        directory: of all checkpoints; made if it is not there.
        step: steps done.
        tensors: (name, array or tensor of any numeric type), one layer's each. They are asked for
            one by one and written part by part.
        metadata: what else to record, of JSON types: hash of the configuration, environment,
            position in the data, seed.
        keep: how many of the latest checkpoints stay, this one included.
        protected: steps whose checkpoints stay, too.

    Returns:
        The committed directory.

    Raises:
        FileExistsError: if the step is committed already: a committed step is never written again.
        StorageError: if it cannot be written; earlier checkpoints stay as they are.
        ValueError: for two tensors of one name, or metadata that JSON cannot hold.
    """
    target = step_path(directory, step)
    if target.exists():
        raise FileExistsError(f"{target} is committed already")
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    folder = directory / f".tmp-{step}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    table: dict[str, dict[str, Any]] = {}
    try:
        folder.mkdir()
        _write_bundle(folder, tensors, table)
        body = {"format": FORMAT, "step": step, "metadata": dict(metadata), "tensors": table}
        body["files"] = {path.name: _sealed(path) for path in sorted(folder.iterdir())}
        (folder / MANIFEST).write_bytes(_rendered(body).encode())
        sync(folder / MANIFEST)
        sync(folder)
        folder.rename(target)
        sync(directory)
    except (OSError, tf.errors.OpError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise storage_error(target, error, needs_bytes=_num_bytes(table)) from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    for old in steps(directory)[:-keep]:
        if old not in protected:
            delete(step_path(directory, old))
    return target


def delete(path: Path) -> None:
    """Deletes a checkpoint: it is no checkpoint any more before its first file goes."""
    trash = path.with_name(f".trash-{path.name}-{uuid.uuid4().hex[:8]}")
    with writing(path):
        path.rename(trash)
        shutil.rmtree(trash)


def set_aside(path: Path) -> Path:
    """Renames a damaged checkpoint to `<name>.corrupt-<n>`, so that its step can be done again."""
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    with writing(path):
        path.rename(aside)
        sync(path.parent)
    return aside


def clear_leftovers(directory: Path) -> None:
    """Deletes what an earlier process left when it was killed; needs the run directory's lock."""
    for pattern in (".tmp-*", ".trash-*"):
        for path in directory.glob(pattern):
            with writing(path):
                shutil.rmtree(path)


def _write_bundle(
    folder: Path, tensors: Iterable[tuple[str, Any]], table: dict[str, dict[str, Any]]
) -> None:
    """Writes tensors as one TensorBundle, and their shapes and types into `table`."""
    prefixes = []
    with tf.device("cpu:0"):
        for part in _parts(tensors, table):
            prefixes.append(str(folder / f"part-{len(prefixes)}"))
            tf.raw_ops.SaveV2(
                prefix=prefixes[-1],
                tensor_names=list(part),
                shape_and_slices=[""] * len(part),
                tensors=list(part.values()),
            )
            del part  # before the next is gathered
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=prefixes,
            destination_prefix=str(folder / _BUNDLE),
            delete_old_dirs=False,
        )


def _parts(
    tensors: Iterable[tuple[str, Any]], table: dict[str, dict[str, Any]]
) -> Iterator[dict[str, tf.Tensor]]:
    """Yields the tensors in parts of at most `_PART_BYTES`, or of one tensor."""
    part: dict[str, tf.Tensor] = {}
    gathered = 0
    for name, value in tensors:
        if name in table:
            raise ValueError(f"two tensors have the name {name!r}")
        tensor = tf.convert_to_tensor(value)
        dtype = tensor.dtype.name
        table[name] = {"shape": tensor.shape.as_list(), "dtype": dtype}
        size = _num_bytes({name: table[name]})
        if part and gathered + size > _PART_BYTES:
            yield part
            part, gathered = {}, 0
        part[name] = tf.bitcast(tensor, _STORED_AS[dtype]) if dtype in _STORED_AS else tensor
        gathered += size
    if part:
        yield part


def _num_bytes(table: Mapping[str, Mapping[str, Any]]) -> int:
    return sum(math.prod(e["shape"]) * tf.as_dtype(e["dtype"]).size for e in table.values())


def _sealed(path: Path) -> dict[str, Any]:
    sync(path)
    return {"size": path.stat().st_size, "sha256": _digest(path)}


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _rendered(body: Mapping[str, Any]) -> str:
    """Returns the text of a manifest; it holds the digest of the rest of itself."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()
    return json.dumps({**body, "sha256": digest}, sort_keys=True, indent=1) + "\n"
