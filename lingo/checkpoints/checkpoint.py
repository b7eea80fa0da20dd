"""A committed checkpoint: its content, its verification, and reading its tensors.

    step_00000200/
        tensors.index, tensors.data-00000-of-00001    a TensorBundle
        MANIFEST.json                                 their content, and the digest of each file

Every tensor has the name of one layer's weight (`weights/<name>`, `slots/<slot>/<name>`,
`state/<name>`), so any program that has these weights can read it, however it stacks or shards
them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lingo.checkpoints.bundle import BUNDLE, restore, slice_spec
from lingo.checkpoints.difference import difference
from lingo.checkpoints.errors import CheckpointMismatch, DamagedCheckpoint, DeletedCheckpoint
from lingo.checkpoints.manifest import explain_damage, open_plain, read_manifest, unreadable_now
from lingo.config.base.errors import LingoError
from lingo.config.lazy import tf
from lingo.config.params import suggest
from lingo.data.array_spec import ArraySpec
from lingo.storage.shards import box, box_shape

_OTHER_MODEL = "Nothing was read. `init_from` begins another run with the weights that they share."
_GROUP_ELEMENTS = 32 << 20  # elements of the tensors that are read at a time for their digests


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint."""

    path: Path  # its directory
    # Content of MANIFEST.json: `format`, `step`, `metadata`, `tensors`, `files`.
    manifest: Mapping[str, Any]
    # Errors of later checkpoints that were damaged when this one was chosen.
    later_errors: tuple[DamagedCheckpoint, ...] = ()

    @property
    def step(self) -> int:
        """The number of steps done when it was written."""
        return self.manifest["step"]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata that were saved with it."""
        return self.manifest["metadata"]

    @property
    def tensors(self) -> dict[str, ArraySpec]:
        """Name -> (shape, dtype) of every tensor in it."""
        entries = self.manifest["tensors"].items()
        return {name: (tuple(entry["shape"]), entry["dtype"]) for name, entry in entries}

    @property
    def num_bytes(self) -> int:
        """The size of its files without the manifest."""
        return sum(entry["size"] for entry in self.manifest["files"].values())

    def verify(self, *, content: bool = True) -> None:
        """Checks that every file exists and has the size and, for `content`, the digest recorded.

        Raises DamagedCheckpoint for the first that differs, DeletedCheckpoint if it was deleted
        meanwhile, NoUsableCheckpoint if a file is not readable now.
        """
        for name, expected in self.manifest["files"].items():
            with explain_damage(self.path, name), open_plain(self.path / name) as file:
                size = os.fstat(file.fileno()).st_size
                if size != expected["size"]:
                    reason = f"{size} bytes, {expected['size']} were written"
                    raise DamagedCheckpoint(self.path, name, reason)
                sha256 = hashlib.file_digest(file, "sha256").hexdigest() if content else None
            if content and sha256 != expected["sha256"]:
                raise DamagedCheckpoint(self.path, name, "its bytes are not what was written")

    def require(self, expected: Mapping[str, tuple[Sequence[int], str]]) -> None:
        """Checks that it holds exactly the tensors of a model: name -> (shape, dtype).

        Otherwise raises CheckpointMismatch, which lists differences and similar names.
        """
        model = {name: (tuple(shape), dtype) for name, (shape, dtype) in expected.items()}
        if lines := difference(model=model, checkpoint=self.tensors):
            text = "\n  ".join([f"{self.path} is of another model:", *lines])
            raise CheckpointMismatch(f"{text}\n{_OTHER_MODEL}")

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads whole tensors, in the shape and dtype of each (bfloat16 is that of `ml_dtypes`).

        Raises CheckpointMismatch for a name that it does not hold, DamagedCheckpoint if a tensor is
        not what was written, DeletedCheckpoint if the checkpoint was deleted since it was opened,
        and NoUsableCheckpoint if it cannot be read now.
        """
        names = list(names)
        return dict(zip(names, self._restore(names, [""] * len(names)), strict=True))

    def read_slices(self, names: Sequence[str], index: Sequence[slice]) -> list[np.ndarray]:
        """Reads the same slice, with step 1, of several tensors, and not the rest.

        Arrays have the shape of the slice and the dtype of each tensor. Raises as `read` does.
        """
        entries = [self._entry(name) for name in names]
        cuts = [box(index, entry["shape"]) for entry in entries]
        if all(math.prod(box_shape(cut)) for cut in cuts):
            specs = [slice_spec(e["shape"], cut) for e, cut in zip(entries, cuts, strict=True)]
            return self._restore(list(names), specs)
        return [  # RestoreV2 refuses empty slices
            whole[tuple(index)] for whole in self._restore(list(names), [""] * len(names))
        ]

    def digests(self) -> Iterator[tuple[str, str]]:
        """Yields (name, digest) of every tensor."""
        for names in self._groups():
            for name, value in self.read(names).items():
                yield name, digest(value)

    def _groups(self) -> Iterator[list[str]]:
        """Yields lists of names of tensors that are read together."""
        names, num_elements = [], 0
        for name, (shape, _) in self.tensors.items():
            size = math.prod(shape)
            if names and num_elements + size > _GROUP_ELEMENTS:
                yield names
                names, num_elements = [], 0
            names.append(name)
            num_elements += size
        yield names

    def _entry(self, name: str) -> Mapping[str, Any]:
        entries = self.manifest["tensors"]
        if name not in entries:
            near = suggest(name, entries)
            raise CheckpointMismatch(f"{self.path} holds no tensor {name!r}.{near}")
        return entries[name]

    def _restore(self, names: list[str], specs: list[str]) -> list[np.ndarray]:
        dtypes: list[str] = [self._entry(name)["dtype"] for name in names]
        try:
            values = restore(self.path, names, specs, dtypes)
        except tf.errors.OpError as error:
            raise self._read_error(error) from error
        for name, spec, value in zip(names, specs, values, strict=True):
            if not spec and list(value.shape) != self._entry(name)["shape"]:
                reason = f"{name} has shape {list(value.shape)}, not that in its manifest"
                raise DamagedCheckpoint(self.path, BUNDLE, reason)
        return values

    def _read_error(self, error: tf.errors.OpError) -> LingoError:
        """Returns the error for tensors that TensorFlow cannot read, without its words."""
        if not os.path.lexists(self.path):
            return DeletedCheckpoint(self.path)
        if isinstance(error, tf.errors.ResourceExhaustedError):
            return unreadable_now(self.path, BUNDLE, "there is no memory for it")
        if isinstance(error, (tf.errors.PermissionDeniedError, tf.errors.UnknownError)):
            return unreadable_now(self.path, BUNDLE, "the disk or its permissions prevent it")
        return DamagedCheckpoint(self.path, BUNDLE, "no tensors can be read from its bytes")


def open_checkpoint(path: Path) -> Checkpoint:
    """Returns a checkpoint whose manifest is sound, without checking its other files.

    Raises as `read_manifest` does.
    """
    with explain_damage(path, path.name):
        is_link = path.is_symlink()
    if is_link:
        raise DamagedCheckpoint(path, path.name, "it is a link to elsewhere")
    return Checkpoint(path, read_manifest(path))


def open_sound(path: Path) -> Checkpoint:
    """Returns a checkpoint after verifying every byte of it; errors as for `open_checkpoint`."""
    checkpoint = open_checkpoint(path)
    checkpoint.verify()
    return checkpoint


def digest(value: np.ndarray) -> str:
    """Returns the SHA-256 of a tensor of any shape, independent of how it was stored or split.

    It is that of a line such as `float32[3, 4]` and the elements, little-endian, in C order.
    """
    line = f"{value.dtype.name}{list(value.shape)}\n".encode()
    elements = np.asarray(value, value.dtype.newbyteorder("<"), order="C")
    return hashlib.sha256(line + elements.tobytes()).hexdigest()
