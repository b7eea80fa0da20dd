"""Reads the weights of Keras's models from HDF5 files, as `layer/weight`, such as `conv1/kernel`.

model.save_weights("x.weights.h5")     Keras 3: weights are numbered, layers have names
model.save("x.keras")                  a zip file with the same file
model.save("x.h5"), older weights      a group per layer, with its weights by their names
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lingo.checkpoints.sources.weight_source import (
    Tensor,
    UnusableSource,
    corrupt_source,
    explain_read_errors,
    file_size,
    printable,
)
from lingo.config.base.errors import MissingPackage

SUFFIXES = (".h5", ".hdf5", ".keras")

_WEIGHTS = "model.weights.h5"  # in a .keras file
_OLD_ROOT = "model_weights"  # of a whole model in the older format
_VARIABLES = {  # class of a layer, as Keras names its group -> its weights in order
    "conv2d": ("kernel", "bias"),
    "depthwise_conv2d": ("kernel", "bias"),
    "dense": ("kernel", "bias"),
    "batch_normalization": ("gamma", "beta", "moving_mean", "moving_variance"),
    "normalization": ("mean", "variance", "count"),
}
_OLD_NAMES = {"depthwise_kernel": "kernel"}


class KerasFile:
    """The weights of one file; other arrays, such as an optimizer's, are left out."""

    def __init__(self, path: Path) -> None:
        """Lists the weights, without reading them.

        Raises UnusableSource if the file is not one of Keras's, or is damaged.
        """
        self.path, self.what = path, "Keras file"
        file_size(path)
        self.tensors: dict[str, Tensor] = {}
        self._places: dict[str, str] = {}  # weight's name -> its path in the file
        # a zip file cannot be read at any place, so its content stays in memory
        self._content = _unzip(path) if path.suffix == ".keras" else None
        with _open(path, self._content) as file:
            for name, data in _datasets(file):
                if data.external or data.is_virtual:  # its values would come from another file
                    raise corrupt_source(path, f"the values of {printable(name)} are elsewhere")
                self.tensors[name] = Tensor(tuple(data.shape), str(data.dtype))
                self._places[name] = data.name
        if not self.tensors:
            raise UnusableSource(f"{path} holds no weights of layers, as Keras writes them.")

    def read(self, name: str) -> np.ndarray:
        with _open(self.path, self._content) as file:
            return np.asarray(file[self._places[name]][()])

    def files(self, names: Collection[str]) -> list[Path]:
        del names
        return [self.path]


def import_h5py() -> Any:
    """Imports `h5py`, which Keras needs, too; raises MissingPackage if it is not installed."""
    try:
        return importlib.import_module("h5py")
    except ImportError:
        raise MissingPackage(
            "A file of Keras's weights needs a package that is not installed: pip install h5py"
        ) from None


def _unzip(path: Path) -> bytes:
    """Returns the HDF5 file in a .keras file; raises UnusableSource if it cannot be read."""
    try:
        with explain_read_errors(path), zipfile.ZipFile(path) as archive:
            info = archive.getinfo(_WEIGHTS)
            if info.compress_type != zipfile.ZIP_STORED:  # it might be larger than memory
                raise corrupt_source(path, f"its {_WEIGHTS} is compressed")
            return archive.read(info)
    except (zipfile.BadZipFile, EOFError, KeyError, RuntimeError) as error:  # or encrypted
        raise corrupt_source(path, printable(str(error).strip("'\""))) from None


@contextlib.contextmanager
def _open(path: Path, content: bytes | None) -> Iterator[Any]:
    """Opens the HDF5 file at a path, or with the given content.

    Turns errors of `h5py` in the body into an UnusableSource about `path`.
    """
    library = import_h5py()
    try:
        with library.File(path if content is None else io.BytesIO(content), "r") as file:
            yield file
    except UnusableSource:
        raise
    except OSError as error:
        if error.errno is not None:
            reason = os.strerror(error.errno)  # the library's own text is long
            raise UnusableSource(f"{path} cannot be read: {reason}.") from error
        raise corrupt_source(path, printable(str(error))) from None
    except (KeyError, RuntimeError, ValueError) as error:
        raise corrupt_source(path, printable(str(error).strip("'\""))) from None


def _datasets(file: Any) -> Iterator[tuple[str, Any]]:
    """Yields the name and the array of each weight."""
    found: list[tuple[str, Any]] = []
    kind = import_h5py().Dataset

    def collect(name: str, item: Any) -> None:  # soft links and other files are not followed
        if not isinstance(item, kind) or not isinstance(name, str) or item.shape is None:
            return  # a name that is not UTF-8 comes as bytes; an array without a shape is empty
        if weight := _weight_name(name, item):
            found.append((weight, item))

    file.visititems(collect)
    yield from found


def _weight_name(place: str, data: Any) -> str:
    """Returns `layer/weight` for an array's path in a file; "" if it belongs to no layer."""
    parts = place.split("/")
    if parts[0] == "layers" and len(parts) == 4 and parts[2] == "vars":
        names = _VARIABLES.get(re.sub(r"_\d+$", "", parts[1]), ())
        layer, number = str(data.parent.attrs.get("name", parts[1])), parts[3]
        known = number.isdecimal() and int(number) < len(names)
        return f"{layer}/{names[int(number)] if known else number}"
    parts = parts[1:] if parts[0] == _OLD_ROOT else parts
    if parts[0] in ("layers", "optimizer", "optimizer_weights", "top_level_model_weights"):
        return ""
    weight = parts[-1].removesuffix(":0")
    return f"{parts[0]}/{_OLD_NAMES.get(weight, weight)}" if len(parts) > 1 else ""
