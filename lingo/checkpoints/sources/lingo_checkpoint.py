"""Weights and moving statistics of lingo's own checkpoints, as a `Source`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint, open_sound
from lingo.checkpoints.errors import CheckpointMismatch
from lingo.checkpoints.manifest import MANIFEST
from lingo.checkpoints.sources.source import Tensor

CHECKPOINTS = "checkpoints"
AVERAGE = "slots/ema/"

_WEIGHTS = "weights/"
_STATE = "state/"


class LingoCheckpoint:
    """Weights of a model, or their moving averages, and moving statistics.

    Names are those of the layers' weights, whether or not the run that wrote them stacked layers.
    Optimizer slots are not included.

    Attributes:
        path: directory of the checkpoint.
        what: "lingo checkpoint of step 200".
        tensors: name -> shape and type.
    """

    def __init__(self, checkpoint: Checkpoint, *, averages: bool) -> None:
        """Reads no tensors yet.

        Args:
            checkpoint: a verified checkpoint.
            averages: whether to give the moving averages instead of the weights.

        Raises:
            CheckpointMismatch: if it has no averages.
        """
        kind = AVERAGE if averages else _WEIGHTS
        held = checkpoint.tensors
        if averages and not any(name.startswith(kind) for name in held):
            raise CheckpointMismatch(
                f"{checkpoint.path} holds no averages: optimizer.ema_decay was None."
                " init_from.weights=trained reads the weights themselves."
            )
        self._checkpoint, self.path = checkpoint, checkpoint.path
        self.what = f"lingo checkpoint of step {checkpoint.step}{', averages' * averages}"
        if checkpoint.later_errors:
            steps = ", ".join(error.path.name for error in checkpoint.later_errors)
            self.what += f"; passed over {steps}, damaged"
        self._names = {name.removeprefix(p): name for p in (_STATE, kind) for name in held
                       if name.startswith(p)}  # fmt: skip
        self.tensors: Mapping[str, Tensor] = {
            name: Tensor(*held[full]) for name, full in self._names.items()
        }

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor in the shape and dtype of `tensors[name]`.

        Raises:
            DamagedCheckpoint: if it cannot be read.
        """
        full = self._names[name]
        return self._checkpoint.read([full])[full]

    def files(self, names: Collection[str]) -> list[Path]:
        """Returns the manifest, which has the digests of the other files."""
        del names
        return [self.path / MANIFEST]


def is_checkpoint(path: Path) -> bool:
    """Returns whether a directory is a lingo checkpoint."""
    return (path / MANIFEST).exists()


def is_run(path: Path) -> bool:
    """Returns whether a directory is a run, or its directory of checkpoints."""
    return (path / CHECKPOINTS).is_dir() or bool(store.steps(path))


def find_checkpoint(path: Path, step: int | None) -> Checkpoint:
    """Returns the sound checkpoint at a path, or one of a run.

    Args:
        path: of a checkpoint, a run, or its directory of checkpoints.
        step: of a run's checkpoint; None for the latest sound one.

    Raises:
        NoUsableCheckpoint, DamagedCheckpoint: if there is none.
    """
    if is_checkpoint(path):
        return open_sound(path)
    directory = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
    return store.find(directory, step, of=path)
