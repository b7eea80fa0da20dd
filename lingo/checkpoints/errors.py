"""What can be wrong with a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from lingo.config.errors import LingoError


class DamagedCheckpoint(LingoError):
    """A checkpoint does not hold what was written.

    Attributes:
        path: the checkpoint.
        file: the name of what is damaged in it.
        reason: what is wrong with that, in words.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, path: Path, file: str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {file}: {reason}")
        self.path, self.file, self.reason = path, file, reason


class NoUsableCheckpoint(LingoError):
    """There are checkpoints, or there were, and none can be used."""

    exit_code: ClassVar[int] = 3


class CheckpointMismatch(LingoError):
    """A sound checkpoint that belongs to another model."""

    exit_code: ClassVar[int] = 4
