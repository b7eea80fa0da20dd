"""Opens the source of weights at a path: a lingo checkpoint, or another program's file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from lingo.checkpoints import store
from lingo.checkpoints.bundle import data_file
from lingo.checkpoints.checkpoint import Checkpoint, open_sound
from lingo.checkpoints.errors import CheckpointMismatch
from lingo.checkpoints.manifest import MANIFEST
from lingo.checkpoints.sources.keras_file import SUFFIXES as KERAS_SUFFIXES
from lingo.checkpoints.sources.keras_file import KerasFile
from lingo.checkpoints.sources.safetensors import INDEX_SUFFIX, SUFFIX, Safetensors
from lingo.checkpoints.sources.weight_source import (
    Tensor,
    UnusableSource,
    WeightSource,
    corrupt_source,
    explain_read_errors,
    file_size,
    printable,
    read_small_file,
)
from lingo.config.lazy import tf
from lingo.config.params import ParamError

_CHECKPOINTS = "checkpoints"
SLOTS = "slots/"
_AVERAGE = f"{SLOTS}ema/"
_WEIGHTS = "weights/"
_STATE = "state/"

SUPPORTED = (
    "a run or checkpoint of lingo, a TensorFlow checkpoint (its prefix or directory),"
    " a .safetensors file, its .index.json, a directory of such files, or a .keras or .h5 file of"
    " Keras's"
)

_PICKLE, _ZIP = b"\x80", b"PK\x03\x04"  # the first bytes of such files
_PICKLE_NAME = b"/data.pkl"  # of the first file in a zip file of PyTorch's

INDEX = ".index"
STATE = "checkpoint"

_MAX_STATE_BYTES = 1 << 20
_STATE_PATH = re.compile(rb'^model_checkpoint_path:\s*"([^"\n]*)"', re.MULTILINE)
_DATA = re.compile(r"\.data-\d{5}-of-\d{5}$")
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_ESCAPED = {"..": ".", ".S": "/"}


def find_source(
    path: Path, *, step: int | None, averages: bool, slots: bool = False
) -> WeightSource:
    """Opens the source at a path, one of `SUPPORTED`.

    In a lingo run this is the checkpoint of `step`, by default the latest undamaged one. With
    `averages` the source has moving averages instead of weights; with `slots` it also has the
    optimizer's slots.

    Raises:
        ParamError: if `step` is set and the path is not a lingo run, or `averages` or `slots` is
            set and lingo did not write the source.
        MissingPackage: if the package that reads the source is not installed.
        UnusableSource: if there is no source at the path, or it is damaged.
        NoUsableCheckpoint, DamagedCheckpoint, CheckpointMismatch: for a lingo checkpoint.
    """
    with explain_read_errors(path):
        is_checkpoint = _is_checkpoint(path)
        is_run = not is_checkpoint and _is_run(path)
        is_part = not is_checkpoint and _is_checkpoint(path.parent)
    if is_part:  # else it would open as a TensorFlow checkpoint with names that no model has
        raise UnusableSource(
            f"{path} is a file of a checkpoint of lingo: init_from.path takes its directory,"
            f" {path.parent}."
        )
    if step is not None and not is_run:
        raise ParamError(f"init_from.step={step} is for the directory of a run; {path} is not one")
    if is_run or is_checkpoint:
        return LingoCheckpoint(_find_checkpoint(path, step), averages=averages, slots=slots)
    if slots:
        raise ParamError(
            f"init_from.slots=true is for runs of lingo, and {path} is not one: other programs keep"
            " other slots, or name them otherwise; init_from.slots=false begins them anew"
        )
    if averages:
        raise ParamError(
            f"init_from.weights='ema' is for runs of lingo, and {path} is not one:"
            " init_from.rename says what averages are called elsewhere"
        )
    return _open_foreign(path)


def _open_foreign(path: Path) -> WeightSource:
    """Opens a source that another program wrote."""
    with explain_read_errors(path):
        tensors = _find_safetensors(path)
        exists = path.exists()
    if tensors is not None:
        return Safetensors(tensors)
    if path.suffix in KERAS_SUFFIXES and exists and not path.is_dir():
        return KerasFile(path)
    prefix = prefix_of(path)
    if prefix is not None:
        return TfCheckpoint(prefix)
    if _is_pickle(path):
        raise UnusableSource(
            f"{path} is a pickle, as PyTorch writes it: reading it can run any code, so lingo does"
            " not. Where PyTorch is installed, this converts it: python -c 'import torch;"
            " from safetensors.torch import save_file;"
            f' save_file(torch.load("{path.name}", weights_only=True), "{path.stem}{SUFFIX}")\''
        )
    if exists:
        raise UnusableSource(f"{path} holds no weights that lingo can read: it reads {SUPPORTED}.")
    raise UnusableSource(f"{path} does not exist. init_from.path takes {SUPPORTED}.")


def _is_pickle(path: Path) -> bool:
    """Returns whether a path is a file as `torch.save` writes it."""
    if not path.is_file():
        return False
    with explain_read_errors(path), open(path, "rb") as file:
        start = file.read(1024)
    return start.startswith(_PICKLE) or (start.startswith(_ZIP) and _PICKLE_NAME in start)


def _find_safetensors(path: Path) -> Path | None:
    """Returns the safetensors file or index at a path or in its directory, or None."""
    if not path.is_dir():
        return path if path.name.endswith((SUFFIX, INDEX_SUFFIX)) and path.exists() else None
    for suffix in (INDEX_SUFFIX, SUFFIX):
        files = sorted(path.glob(f"*{suffix}"))
        if len(files) > 1:
            names = ", ".join(file.name for file in files[:10])
            raise UnusableSource(
                f"{path} has {len(files)} {suffix} files: give one of them, {names}."
            )
        if files:
            return files[0]
    return None


# ---- lingo's own --------------------------------------------------------------------------------


class LingoCheckpoint:
    """A lingo checkpoint as a source: weights, or their moving averages, and moving statistics.

    Each tensor belongs to a single layer, even if the run that wrote the checkpoint stacked layers.
    Optimizer slots are included on request, as `slots/<slot>/<weight>`.
    """

    def __init__(self, checkpoint: Checkpoint, *, averages: bool, slots: bool = False) -> None:
        """Lists the tensors of a verified checkpoint, without reading them.

        Raises CheckpointMismatch if `averages` are wanted and the checkpoint has none.
        """
        kind = _AVERAGE if averages else _WEIGHTS
        tensors = checkpoint.tensors
        if averages and not any(name.startswith(kind) for name in tensors):
            raise CheckpointMismatch(
                f"{checkpoint.path} holds no averages: optimizer.ema_decay and average_steps were"
                " None."
                " init_from.weights=trained reads the weights themselves."
            )
        self._checkpoint, self.path = checkpoint, checkpoint.path
        self.what = f"lingo checkpoint of step {checkpoint.step}{', averages' * averages}"
        if checkpoint.later_errors:
            steps = ", ".join(error.path.name for error in checkpoint.later_errors)
            self.what += f"; skipped {steps}, damaged"
        self._names = {
            name.removeprefix(prefix): name
            for prefix in (_STATE, kind)
            for name in tensors
            if name.startswith(prefix)
        }
        if slots:
            self._names |= {name: name for name in tensors if name.startswith(SLOTS)}
        self.tensors: Mapping[str, Tensor] = {
            name: Tensor(*tensors[full]) for name, full in self._names.items()
        }

    def read(self, name: str) -> np.ndarray:
        full = self._names[name]
        return self._checkpoint.read([full])[full]

    def files(self, names: Collection[str]) -> list[Path]:
        del names
        return [self.path / MANIFEST]  # which has the digests of the other files


def _is_checkpoint(path: Path) -> bool:
    """Returns whether a directory is a lingo checkpoint."""
    return (path / MANIFEST).exists()


def _is_run(path: Path) -> bool:
    """Returns whether a directory is a run, or its directory of checkpoints."""
    return (path / _CHECKPOINTS).is_dir() or bool(store.steps(path))


def _find_checkpoint(path: Path, step: int | None) -> Checkpoint:
    """Returns the verified checkpoint at a path, or of `step` (or the latest) in a run's path."""
    if _is_checkpoint(path):
        return open_sound(path)
    directory = path / _CHECKPOINTS if (path / _CHECKPOINTS).is_dir() else path
    return store.find(directory, step, of=path)


# ---- checkpoints of other TensorFlow programs ----------------------------------------------------


class TfCheckpoint:
    """The tensors of a checkpoint, under the names that its program gave to the variables.

    `tf.train.Checkpoint(net=net)` gives names such as `net/dense/kernel`; the suffix and escapes
    that TensorFlow adds are removed. A variable that was saved in slices is one tensor. Strings are
    left out.
    """

    what = "TensorFlow checkpoint"

    def __init__(self, prefix: Path) -> None:
        """Reads the index; raises UnusableSource if it is missing or damaged, or has no data."""
        self.path = prefix
        self._files = [prefix.with_name(prefix.name + INDEX), *_data_files(prefix)]
        for file in self._files:
            file_size(file)
        # Not tf.train.load_checkpoint: it would search a directory that has the prefix's name.
        # Wrong entries with right checksums abort TensorFlow, but only intent can make them. In
        # a test, each of 188 flipped bytes was detected or changed nothing.
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
    """Turns TensorFlow's errors for damaged files into an UnusableSource about `prefix`."""
    try:
        yield
    except (tf.errors.OpError, IndexError, TypeError, ValueError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise corrupt_source(prefix, " ".join(reason.split())) from None


def prefix_of(path: Path) -> Path | None:
    """Returns the prefix of a checkpoint, given the prefix, one of its files, or its directory.

    In a directory, the file `checkpoint` names the latest checkpoint's path. Only the path's last
    part is used, because the directory in it may be on another machine, or wrong. None means that
    there is no such checkpoint.
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
    match = _STATE_PATH.search(read_small_file(state, max_bytes=_MAX_STATE_BYTES))
    if match is None:
        raise corrupt_source(state, "it names no model_checkpoint_path")
    name = match[1].decode(errors="replace").replace("\\", "/").rpartition("/")[2]
    if name not in names:
        text = ", ".join(map(printable, names[-10:])) or "none"
        raise UnusableSource(
            f"{state} names {printable(name)}, which is not in its directory; there: {text}."
        )
    return directory / name


def _variable_name(key: str) -> str:
    """Returns the name of a variable without the suffix and escapes of tf.train.Checkpoint."""
    if not key.endswith(_VALUE):
        return key
    return re.sub(r"\.\.|\.S", lambda match: _ESCAPED[match[0]], key.removesuffix(_VALUE))
