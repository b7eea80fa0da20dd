"""NumPy arrays as an input, from a `.npz` file or from a function of the user's.

    ArrayInput.params(file="digits.npz", batch_size=32)
    ArrayInput.params(function=load_digits, arguments={"split": "train"}, batch_size=32)

Axes: N examples per epoch, B examples per batch.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lingo.config.base.types import FilePath, Function
from lingo.config.node.label import label
from lingo.config.params import ParamError, Params
from lingo.data import example_input
from lingo.data.files import DataError, open_file
from lingo.data.index import Progress
from lingo.data.input import describe_kind
from lingo.storage.examples import ARCHIVE_ERRORS, read_archive
from lingo.storage.files import open_atomic


class ArrayInput(example_input.IndexedInput):
    """Arrays in memory, {name: [N, ...]}; example i has entry i of each array.

    They come from a `.npz` file, as `np.savez` writes it, or from a function in the user's file.
    Examples come in a new order each epoch.
    """

    file: FilePath | None = None  # a .npz file; None: `function` returns the arrays
    function: Function | None = None  # returns {name: array [N, ...]}; None: `file` has the arrays
    arguments: dict[str, Any] = {}  # the function's keyword arguments

    def check(self) -> None:
        super().check()
        p = self.p
        if (p.file is None) == (p.function is None):
            given = "both" if p.file else "neither"
            raise ParamError(f"the arrays need either file or function; {given} is set")
        if p.arguments and p.function is None:
            raise ParamError(f"arguments={dict(p.arguments)!r:.80} need a function, which is None")

    def setup(self) -> None:
        super().setup()
        self._arrays = functools.cache(self._load)

    def prepare(self, *, progress: Progress | None = None) -> None:
        """Reads the file or calls the function; raises DataError or ParamError if that fails."""
        del progress
        self._arrays()

    def num_examples(self) -> int:
        return len(next(iter(self._arrays().values())))

    def read_indices(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        return {name: array[indices] for name, array in self._arrays().items()}

    def fingerprint(self) -> dict[str, Any]:
        """Returns what identifies the data: source, number of examples, bytes, and digest."""
        digest, arrays = hashlib.sha256(), self._arrays()
        for name, array in sorted(arrays.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(example_input.array_bytes(array))
        return {
            "source": self._where(),
            "examples": self.num_examples(),
            "bytes": sum(array.nbytes for array in arrays.values()),
            "digest": digest.hexdigest(),
        }

    def remarks(self) -> list[str]:
        """Returns a remark per array with non-finite values; it names the first such example."""
        found = []
        for name, array in self._arrays().items():
            if array.dtype.kind == "f":
                is_finite = np.isfinite(array).reshape(len(array), -1).all(axis=1)
                if not is_finite.all():
                    found.append(
                        f"{name!r} has values that are not finite in {np.sum(~is_finite):,} of"
                        f" {len(array):,} examples, first in example {np.argmin(is_finite):,}"
                    )
        return found

    def _where(self) -> str:
        return label(self.p.function) if self.p.function is not None else self.p.file

    def _load(self) -> dict[str, np.ndarray]:
        """Returns the arrays of the file or function."""
        where = self._where()
        if self.p.function is None:
            named: Any = _read_npz(self.p.file)
        else:
            named = example_input.call_function(self.p.function, self.p.arguments)
        if not isinstance(named, Mapping):
            raise ParamError(
                f"{where} returned {describe_kind(named)}, not a dict: {{name: array [N, ...]}}"
            )
        arrays = example_input.to_arrays(named, where)
        if scalars := [name for name, array in arrays.items() if not array.ndim]:
            raise ParamError(f"{where}: {scalars[0]!r} is a single value, not an array [N, ...]")
        sizes = {name: len(array) for name, array in arrays.items()}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name!r} {size}" for name, size in sizes.items())
            raise ParamError(f"{where}: all arrays need equally many entries, but have {listed}")
        if not all(sizes.values()):
            raise DataError(f"{where} holds no examples.")
        return dict(example_input.check_names(where, arrays))


def write_arrays(file: str | os.PathLike[str], arrays: Mapping[str, Any], **fields: Any) -> Params:
    """Writes arrays {name: [N, ...]} into a `.npz` file; returns params of its ArrayInput.

    Once the arrays of a program or notebook are in a file, any process can resume a run on them.
    `fields` are further fields of the ArrayInput. Raises ParamError unless the file's name ends in
    `.npz`, and StorageError if the file cannot be written.
    """
    if os.path.splitext(path := os.fspath(file))[1] != ".npz":
        raise ParamError(f"{path!r} does not end in .npz")
    converted = example_input.check_names(path, example_input.to_arrays(arrays, path))
    own = {name: _storable(array, name) for name, array in converted.items()}
    with open_atomic(Path(path)) as stream:
        np.savez(stream, allow_pickle=False, **own)  # pyright: ignore[reportArgumentType]
    return ArrayInput.params(file=path, **fields)


def _storable(array: np.ndarray, name: str) -> np.ndarray:
    """Returns an array that `np.savez` stores without pickle, with texts as NumPy's bytes type."""
    if array.dtype != object:
        return array
    stored = np.array(array.tolist(), bytes).reshape(array.shape)
    if (stored.astype(object) != array).any():
        raise ParamError(f"{name!r} has a text that ends in a zero byte, which NumPy does not keep")
    return stored


def _read_npz(file: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a `.npz` file; raises DataError if the content is wrong."""
    with open_file(file) as stream:
        try:
            return read_archive(stream)
        except ARCHIVE_ERRORS as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise DataError(
                f"{file} is not a file of arrays, as np.savez writes it: {reason}."
            ) from error
