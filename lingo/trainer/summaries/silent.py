"""The record of a run for those of its processes that write nothing: the leader writes it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event

from lingo.storage.rows import SilentRows
from lingo.storage.status import State
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.summaries.events import Events


class SilentRun(RunDirectory):
    """A directory that another process writes into.

    It knows no reports: what depends on them, the leader decides.
    """

    def __init__(self, path: str | Path) -> None:
        """Touches nothing, as `RunDirectory`."""
        super().__init__(path)
        self._missed = [SilentRows(rows.path) for rows in (self.metrics, self.vectors)]
        self.metrics, self.vectors = self._missed

    @contextlib.contextmanager
    def locked(self) -> Iterator[RunDirectory]:
        """Leaves the lock to the leader."""
        yield self

    @contextlib.contextmanager
    def taken_over(self) -> Iterator[RunDirectory]:
        """Writes in the place of a leader that is lost; begins with the reports that it missed.

        Raises:
            DirectoryLocked: if it still has the lock, or another process has taken over.
            StorageError: if the reports cannot be written.
        """
        with RunDirectory(self.path).locked() as run:
            for rows in self._missed:
                rows.write_missed()
            yield run

    def check_there(self) -> None:
        pass

    def write(self, texts: Mapping[str, str], *, replaced: Collection[str] = ()) -> None:
        pass

    def set_status(self, state: State, step: int) -> None:
        pass

    def cut(self, step: int) -> None:
        for rows in self._missed:
            rows.cut(step)


class SilentEvents(Events):
    """Event files that another process writes."""

    def cut(self, folder: Path, step: int) -> None:
        pass

    def _append(self, folder: Path, event: Event) -> None:
        pass
