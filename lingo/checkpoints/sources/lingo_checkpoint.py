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
        """Reads no tensors of a verified checkpoint yet.

        Raises:
            CheckpointMismatch: if moving averages are wanted, and it has none.
        """
        kind = AVERAGE if averages else _WEIGHTS
        tensors = checkpoint.tensors
        if averages and not any(name.startswith(kind) for name in tensors):
            raise CheckpointMismatch(
                f"{checkpoint.path} holds no averages: optimizer.ema_decay was None."
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
        self.tensors: Mapping[str, Tensor] = {
            name: Tensor(*tensors[full]) for name, full in self._names.items()
        }

    def read(self, name: str) -> np.ndarray:
        full = self._names[name]
        return self._checkpoint.read([full])[full]

    def files(self, names: Collection[str]) -> list[Path]:
        del names
        return [self.path / MANIFEST]  # which has the digests of the other files


def is_checkpoint(path: Path) -> bool:
    """Returns whether a directory is a lingo checkpoint."""
    return (path / MANIFEST).exists()


def is_run(path: Path) -> bool:
    """Returns whether a directory is a run, or its directory of checkpoints."""
    return (path / CHECKPOINTS).is_dir() or bool(store.steps(path))


def find_checkpoint(path: Path, step: int | None) -> Checkpoint:
    """Returns the sound checkpoint at a path, or one of the run there: None for the latest."""
    if is_checkpoint(path):
        return open_sound(path)
    directory = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
    return store.find(directory, step, of=path)
