"""The errors of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from lingo.config.base.errors import LingoError


class DamagedCheckpoint(LingoError):
    """A checkpoint is damaged: a file is missing or has changed since it was written.

    Attributes:
        path: the checkpoint.
        file: name of the damaged file in it.
        reason: what is wrong with the file.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, path: Path, file: str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {file}: {reason}")
        self.path, self.file, self.reason = path, file, reason


class NoUsableCheckpoint(LingoError):
    """No checkpoint can be used, although some exist or existed, or one was requested."""

    exit_code: ClassVar[int] = 3


class DeletedCheckpoint(NoUsableCheckpoint):
    """A checkpoint was deleted while it was read: a run deletes its old checkpoints."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} was deleted while it was read: try again, with a later one.")


class CheckpointMismatch(LingoError):
    """A checkpoint is undamaged but belongs to another model."""

    exit_code: ClassVar[int] = 4
