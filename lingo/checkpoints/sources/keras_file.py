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
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
_OTHERS = {"optimizer", "seed_generator"}  # that are in layers
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
    """Yields the name and the array of each weight.

    The name of a layer inside of another one does not say where it is, so a network has the same
    names inside of a `Sequential` as alone. Only weights that would share a name have their path.
    """
    found: list[tuple[_Place, Any]] = []
    kind = import_h5py().Dataset

    def collect(path: str, item: Any) -> None:  # soft links and other files are not followed
        if not isinstance(item, kind) or not isinstance(path, str) or item.shape is None:
            return  # a path that is not UTF-8 comes as bytes; an array without a shape is empty
        if place := _place(path, item):
            found.append((place, item))

    file.visititems(collect)
    count = Counter(place.name for place, _ in found)
    yield from (
        (place.name if count[place.name] == 1 else place.path, item) for place, item in found
    )


class _Place(NamedTuple):
    """Where a file has a weight."""

    name: str  # layer/weight
    path: str  # the layers around it, too


def _place(path: str, data: Any) -> _Place | None:
    """Returns the place of an array with a path in a file; None if it belongs to no layer."""
    parts = path.split("/")
    if parts[0] == "layers":
        return _place_of_variable(parts, data)
    parts = parts[1:] if parts[0] == _OLD_ROOT else parts
    if parts[0] in ("optimizer", "optimizer_weights", "top_level_model_weights") or len(parts) < 2:
        return None
    *layers, weight = parts
    weight = weight.removesuffix(":0")
    weight = _OLD_NAMES.get(weight, weight)
    while layers[0] in layers[1:]:  # a group repeats its layer's name: dense/model/dense/kernel
        layers = layers[layers.index(layers[0], 1) :]
    return _Place(f"{layers[-1]}/{weight}", "/".join([*layers, weight]))


def _place_of_variable(parts: list[str], data: Any) -> _Place | None:
    """Returns the place of an array that Keras 3 keeps by number, in a layer's group `vars`."""
    layers, number = [part for part in parts[:-2] if part != "layers"], parts[-1]
    if parts[-2:-1] != ["vars"] or not layers or not _OTHERS.isdisjoint(layers):
        return None
    names = _VARIABLES.get(re.sub(r"_\d+$", "", layers[-1]), ())
    known = number.isdecimal() and int(number) < len(names)
    weight = names[int(number)] if known else number
    name = str(data.parent.attrs.get("name", layers[-1]))
    return _Place(f"{name}/{weight}", "/".join([*layers, weight]))
