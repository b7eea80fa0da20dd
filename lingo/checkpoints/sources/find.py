"""Finds out which kind of source a path is, and opens it."""

from __future__ import annotations

from pathlib import Path

from lingo.checkpoints.sources import lingo_checkpoint, tf_checkpoint
from lingo.checkpoints.sources.lingo_checkpoint import LingoCheckpoint
from lingo.checkpoints.sources.safetensors import INDEX_SUFFIX, SUFFIX, Safetensors
from lingo.checkpoints.sources.source import Source, UnusableSource, explain_read_errors
from lingo.checkpoints.sources.tf_checkpoint import TfCheckpoint
from lingo.config.params import ParamError

SUPPORTED = (
    "a run or checkpoint of lingo, a TensorFlow checkpoint (its prefix or directory),"
    " a .safetensors file, its .index.json, or a directory of such files"
)


def find_source(path: Path, *, step: int | None, averages: bool) -> Source:
    """Opens the source at a path.

    Args:
        path: of one of `SUPPORTED`.
        step: of a run's checkpoint; None for the latest sound one.
        averages: whether to read the moving averages of a lingo run.

    Raises:
        ParamError: if `step` or `averages` is set for a source that has none.
        MissingPackage: if the package that reads the source is not installed.
        UnusableSource: if there is no source at the path, or it is damaged.
        NoUsableCheckpoint, DamagedCheckpoint, CheckpointMismatch: for a lingo checkpoint.
    """
    with explain_read_errors(path):
        is_checkpoint = lingo_checkpoint.is_checkpoint(path)
        is_run = not is_checkpoint and lingo_checkpoint.is_run(path)
        is_part = not is_checkpoint and lingo_checkpoint.is_checkpoint(path.parent)
    if is_part:  # it would open as a TensorFlow checkpoint with names that no model has
        raise UnusableSource(
            f"{path} is a file of a checkpoint of lingo: init_from.path takes its directory,"
            f" {path.parent}."
        )
    if step is not None and not is_run:
        raise ParamError(f"init_from.step={step} is for the directory of a run; {path} is not one")
    if is_run or is_checkpoint:
        return LingoCheckpoint(lingo_checkpoint.find_checkpoint(path, step), averages=averages)
    if averages:
        raise ParamError(
            f"init_from.weights='ema' is for runs of lingo, and {path} is not one:"
            " init_from.rename says what averages are called elsewhere"
        )
    return _open_foreign(path)


def _open_foreign(path: Path) -> Source:
    """Opens a source that another program wrote."""
    with explain_read_errors(path):
        tensors = _find_safetensors(path)
        exists = path.exists()
    if tensors is not None:
        return Safetensors(tensors)
    prefix = tf_checkpoint.prefix_of(path)
    if prefix is not None:
        return TfCheckpoint(prefix)
    if exists:
        raise UnusableSource(f"{path} holds nothing that weights are read from: {SUPPORTED}.")
    raise UnusableSource(f"{path} does not exist. init_from.path takes {SUPPORTED}.")


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
