"""Reads `.safetensors` files with the library `safetensors` (an extra of lingo).

A large model has several such files and `model.safetensors.index.json`, which maps each tensor to
its file.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from lingo.checkpoints.sources.weight_source import (
    Tensor,
    corrupt_source,
    explain_read_errors,
    file_size,
    printable,
    read_small_file,
)
from lingo.config.base.errors import MissingPackage
from lingo.config.params import suggest
from lingo.storage.examples import MAX_AXES

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"

_MAX_INDEX_BYTES = 16 << 20  # enough for a hundred thousand tensors
_MAX_TENSORS = 200_000  # in a file

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "BOOL": "bool",
}
"""NumPy's names of the format's types. A type that is not here keeps the format's name."""


class Safetensors:
    """The tensors of one file, or of several files that an index names."""

    def __init__(self, path: Path) -> None:
        """Reads the index, if `path` is an index, and the header of each file.

        Raises MissingPackage if `safetensors` is not installed, and UnusableSource if a file is
        missing or damaged, or if index and files disagree.
        """
        self.path = path
        if path.name.endswith(".json"):
            weight_map = _read_weight_map(path)
            files = {name: _File(path.parent / name) for name in sorted({*weight_map.values()})}
            self.what = f"safetensors in {len(files)} files"
            self._files = {name: files[file] for name, file in weight_map.items()}
        else:
            file = _File(path)
            self.what = "safetensors"
            self._files = dict.fromkeys(file.tensors, file)
        for name, file in self._files.items():
            if name not in file.tensors:
                names = map(printable, list(file.tensors)[:1000])
                hint = suggest(printable(name), names).removesuffix("?")
                raise corrupt_source(path, f"{file.path.name} has no {printable(name)}{hint}")
        self.tensors: Mapping[str, Tensor] = {
            name: file.tensors[name] for name, file in self._files.items()
        }

    def read(self, name: str) -> np.ndarray:
        return self._files[name].read(name)

    def files(self, names: Collection[str]) -> list[Path]:
        return [self.path, *sorted({self._files[name].path for name in names} - {self.path})]


class _File:
    """The tensors of one file."""

    def __init__(self, path: Path) -> None:
        self.path, self._size = path, file_size(path)
        library = import_safetensors()
        self.tensors: dict[str, Tensor] = {}
        with _library_errors(path, library):
            self._file = library.safe_open(path, framework="numpy")
            names = self._file.offset_keys()
            if len(names) > _MAX_TENSORS:
                what = f"it has {len(names):,} tensors, more than {_MAX_TENSORS:,}"
                raise corrupt_source(path, what)
            for name in names:
                header = self._file.get_slice(name)
                dtype, shape = str(header.get_dtype()), tuple(header.get_shape())
                if len(shape) > MAX_AXES:
                    what = f"{printable(name)} has {len(shape):,} axes, more than {MAX_AXES}"
                    raise corrupt_source(path, what)
                self.tensors[name] = Tensor(shape, _DTYPES.get(dtype, dtype))

    def read(self, name: str) -> np.ndarray:
        size = file_size(self.path)
        if size != self._size:  # reading a memory map beyond its file crashes
            raise corrupt_source(self.path, f"it had {self._size:,} bytes, and now has {size:,}")
        return self._file.get_tensor(name)


def import_safetensors() -> ModuleType:
    """Imports `safetensors`; raises MissingPackage if it is not installed."""
    try:
        importlib.import_module("ml_dtypes")  # registers bfloat16 with NumPy
        return importlib.import_module("safetensors")
    except ImportError:
        raise MissingPackage(
            "A .safetensors file needs a package that is not installed:"
            " pip install 'lingo-tf[safetensors]'"
        ) from None


@contextlib.contextmanager
def _library_errors(path: Path, library: ModuleType) -> Iterator[None]:
    """Turns errors of `safetensors` in the body into an UnusableSource about `path`."""
    try:
        with explain_read_errors(path):
            yield
    except library.SafetensorError as error:
        raise corrupt_source(path, printable(str(error))) from None


def _read_weight_map(path: Path) -> dict[str, str]:
    """Returns the file name of each tensor; the files are in the directory of the index."""
    try:
        index = json.loads(read_small_file(path, max_bytes=_MAX_INDEX_BYTES))
    except (ValueError, RecursionError) as error:
        raise corrupt_source(path, f"its content is not JSON: {printable(str(error))}") from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise corrupt_source(path, "it has no weight_map")
    for name in weight_map.values():
        if not _is_file_name(name):
            text = printable(str(name))
            raise corrupt_source(path, f"{text} is not the name of a {SUFFIX} file next to it")
    return weight_map


def _is_file_name(name: Any) -> bool:
    """Returns whether a JSON value names a safetensors file and cannot leave its directory."""
    return (
        isinstance(name, str)
        and name == Path(name).name
        and name.isprintable()
        and not name.startswith(".")
        and name.endswith(SUFFIX)
    )
