"""Reads checkpoints of other TensorFlow programs: tf.train.Checkpoint and tf.train.Saver."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from lingo.checkpoints.bundle import data_file
from lingo.checkpoints.sources.weight_source import (
    Tensor,
    UnusableSource,
    corrupt_source,
    explain_read_errors,
    file_size,
    printable,
    read_small_file,
)
from lingo.config.lazy import tf

INDEX = ".index"
STATE = "checkpoint"

_MAX_STATE_BYTES = 1 << 20
_STATE = re.compile(rb'^model_checkpoint_path:\s*"([^"\n]*)"', re.MULTILINE)
_DATA = re.compile(r"\.data-\d{5}-of-\d{5}$")
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_ESCAPED = {"..": ".", ".S": "/"}


class TfCheckpoint:
    """The tensors of a checkpoint, named as the program that wrote it named its variables.

    `tf.train.Checkpoint(net=net)` gives names such as `net/dense/kernel`, without the suffix and
    the escapes that TensorFlow adds. A variable that was saved in slices is one tensor; strings
    are left out.
    """

    what = "TensorFlow checkpoint"

    def __init__(self, prefix: Path) -> None:
        """Reads the index; raises UnusableSource if it is missing or damaged, or has no data."""
        self.path = prefix
        self._files = [prefix.with_name(prefix.name + INDEX), *_data_files(prefix)]
        for file in self._files:
            file_size(file)
        # Not tf.train.load_checkpoint: if a directory has the prefix's name, it would search that.
        # Wrong entries under right checksums, which only intent can make, abort TensorFlow; each of
        # 188 flipped bytes was detected, or changed nothing.
        with _tensorflow_errors(prefix):
            self._reader = tf.compat.v1.train.NewCheckpointReader(str(prefix))
            shapes = self._reader.get_variable_to_shape_map()
            dtypes = self._reader.get_variable_to_dtype_map()
        keys = [key for key in sorted(shapes) if dtypes[key] != tf.string]
        self._keys = {_variable_name(key): key for key in keys}
        self.tensors: Mapping[str, Tensor] = {
            name: Tensor(tuple(shapes[key]), dtypes[key].name) for name, key in self._keys.items()
        }

    def read(self, name: str) -> np.ndarray:
        with _tensorflow_errors(self.path):
            return self._reader.get_tensor(self._keys[name])

    def files(self, names: Collection[str]) -> list[Path]:
        del names
        return self._files


def _data_files(prefix: Path) -> list[Path]:
    """Returns the data files that exist; if none does, the path of the missing one."""
    with explain_read_errors(prefix.parent):
        siblings = sorted(prefix.parent.iterdir())
    files = [f for f in siblings if _DATA.search(f.name) and _DATA.sub("", f.name) == prefix.name]
    return files or [prefix.with_name(data_file(0, 1, prefix=prefix.name))]


@contextlib.contextmanager
def _tensorflow_errors(prefix: Path) -> Iterator[None]:
    """Turns what TensorFlow raises for damaged files into an UnusableSource about `prefix`."""
    try:
        yield
    except (tf.errors.OpError, IndexError, TypeError, ValueError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise corrupt_source(prefix, " ".join(reason.split())) from None


def prefix_of(path: Path) -> Path | None:
    """Returns the prefix of a checkpoint, given the prefix, one of its files, or its directory.

    In a directory, the file `checkpoint` names the latest one. Only the last part of that name is
    used, because its directory may be that of another machine, or any other. None means that there
    is no such checkpoint.
    """
    with explain_read_errors(path):
        if path.is_dir():
            return _prefix_in(path)
        name = _DATA.sub("", path.name.removesuffix(INDEX))
        return path.with_name(name) if path.with_name(name + INDEX).exists() else None


def _prefix_in(directory: Path) -> Path | None:
    names = sorted(p.name.removesuffix(INDEX) for p in directory.glob(f"*{INDEX}"))
    state = directory / STATE
    if not state.is_file():
        if len(names) > 1:
            text = ", ".join(map(printable, names[:10]))
            raise UnusableSource(
                f"{directory} has {len(names)} checkpoints and no file {STATE!r} that says which is"
                f" the latest: give one of them, {text}, with the directory before it."
            )
        return directory / names[0] if names else None
    match = _STATE.search(read_small_file(state, max_bytes=_MAX_STATE_BYTES))
    if match is None:
        raise corrupt_source(state, "it names no model_checkpoint_path")
    name = match[1].decode(errors="replace").replace("\\", "/").rpartition("/")[2]
    if name not in names:
        text = ", ".join(map(printable, names[-10:])) or "none"
        raise UnusableSource(
            f"{state} names {printable(name)}, which is not in its directory. There: {text}."
        )
    return directory / name


def _variable_name(key: str) -> str:
    """Returns the name of a variable without the suffix and escapes of tf.train.Checkpoint."""
    if not key.endswith(_VALUE):
        return key
    return re.sub(r"\.\.|\.S", lambda match: _ESCAPED[match[0]], key.removesuffix(_VALUE))
