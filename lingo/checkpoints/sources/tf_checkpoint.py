"""Tensors in the checkpoints of other TensorFlow programs: tf.train.Checkpoint and Saver."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from lingo.checkpoints.sources.source import (
    Tensor,
    UnusableSource,
    damaged,
    read_plain,
    reading,
    shown,
)
from lingo.checkpoints.sources.tensor_bundle import INDEX, TensorBundle

STATE = "checkpoint"

_MAX_STATE_BYTES = 1 << 20
_STATE = re.compile(rb'^model_checkpoint_path:\s*"([^"\n]*)"', re.MULTILINE)
_DATA = re.compile(r"\.data-\d{5}-of-\d{5}$")
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_ESCAPED = {"..": ".", ".S": "/"}


class TfCheckpoint:
    """The tensors of a checkpoint, named as the program that wrote it named its variables.

    Of `tf.train.Checkpoint(net=net)` these are `net/dense/kernel`: what TensorFlow adds to such a
    name is left out here, and what it escapes is not.

    Attributes:
        path: prefix of the files.
        what: "TensorFlow checkpoint".
        tensors: all that are numbers.
    """

    what = "TensorFlow checkpoint"

    def __init__(self, prefix: Path) -> None:
        """Reads the index.

        Raises:
            UnusableSource: if it is missing or damaged, or a file of data is missing.
        """
        self.path, self._bundle = prefix, TensorBundle(prefix)
        held = self._bundle.tensors
        self._keys = {_plain(key): key for key in held if held[key].dtype != "string"}
        self.tensors: Mapping[str, Tensor] = {name: held[k] for name, k in self._keys.items()}

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor, as `TensorBundle.read` does."""
        return self._bundle.read(self._keys[name])

    def files(self, names: Collection[str]) -> list[Path]:
        """Returns all of the checkpoint's files."""
        del names
        return self._bundle.files


def prefix_of(path: Path) -> Path | None:
    """Returns the prefix that is meant by a prefix, one of its files, or a directory of them.

    In a directory, `checkpoint` says which is the latest; only the name counts that it gives: a
    path in it may be that of another machine, or lead anywhere.

    Returns:
        The prefix, or None if nothing of the kind is there.

    Raises:
        UnusableSource: if there are several in a directory, or the one that is meant is not there.
    """
    with reading(path):
        if path.is_dir():
            return _prefix_in(path)
        meant = _DATA.sub("", path.name.removesuffix(INDEX))
        prefix = path.with_name(meant)
        return prefix if path.with_name(meant + INDEX).exists() else None


def _prefix_in(directory: Path) -> Path | None:
    there = sorted(p.name.removesuffix(INDEX) for p in directory.glob(f"*{INDEX}"))
    state = directory / STATE
    if not state.is_file():
        if len(there) > 1:
            listed = ", ".join(map(shown, there[:10]))
            raise UnusableSource(
                f"{directory} has {len(there)} checkpoints and no file {STATE!r} that says which is"
                f" the latest: give one of them, {listed}, with the directory before it."
            )
        return directory / there[0] if there else None
    match = _STATE.search(read_plain(state, max_bytes=_MAX_STATE_BYTES))
    if match is None:
        raise damaged(state, "it names no model_checkpoint_path")
    name = match[1].decode(errors="replace").replace("\\", "/").rpartition("/")[2]
    if name not in there:
        listed = ", ".join(map(shown, there[-10:])) or "none"
        raise UnusableSource(
            f"{state} names {shown(name)}, which is not in its directory. There: {listed}."
        )
    return directory / name


def _plain(key: str) -> str:
    """Returns the name of a variable without what tf.train.Checkpoint makes of it."""
    if not key.endswith(_VALUE):
        return key
    return re.sub(r"\.\.|\.S", lambda match: _ESCAPED[match[0]], key.removesuffix(_VALUE))
