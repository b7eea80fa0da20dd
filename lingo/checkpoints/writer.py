"""Writes checkpoints one at a time, in a thread of its own while training continues.

    with Writer(directory, asynchronous=True, on_commit=report) as writer:
        writer.wait()                                    # so that only one state is in memory
        writer.save(20, tensors, metadata=..., retention=...)  # returns at once
        writer.check()                                   # raises errors of the thread
        writer.wait()                                    # returns when all is on the disk

An error in the thread is raised by the next call. However the block is left, and even if the
interpreter exits, the checkpoint in progress is finished first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lingo.checkpoints import store
from lingo.checkpoints.store import KEEP_ALL, Retention
from lingo.processes.processes import ALONE, Processes
from lingo.storage.bucket.parts import Parts

_log = logging.getLogger(__name__)


class Writer:
    """Writes the checkpoints of a run, one after the other."""

    def __init__(
        self,
        directory: Path,
        *,
        asynchronous: bool,
        on_commit: Callable[[int], None],
        processes: Processes = ALONE,
        parts: Parts | None = None,
    ) -> None:
        """Writes nothing yet. Processes that write checkpoints together have a Writer each.

        `parts` is as for `commit`.
        `asynchronous` says whether training continues while a checkpoint is written. As soon as
        a checkpoint is on the disk, the thread calls `on_commit` with its step.
        """
        self._directory, self._asynchronous = directory, asynchronous
        self._on_commit, self._processes, self._parts = on_commit, processes, parts
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._thread.shutdown()
        if error is None:
            self.wait()
        elif self._pending is not None and (failure := self._pending.exception()) is not None:
            _log.error("a checkpoint was not written: %s", failure)  # `error` ends the run

    def save(
        self,
        step: int,
        tensors: Iterable[tuple[str, Any]],
        *,
        metadata: Mapping[str, Any],
        retention: Retention = KEEP_ALL,
    ) -> None:
        """Starts to write a checkpoint; if not `asynchronous`, waits until it is written.

        Arguments are as for `store.save`. The thread iterates over `tensors`, so the data that they
        are read from must not change from now on. Raises the error of the previous checkpoint.
        """
        self.wait()
        self._pending = self._thread.submit(
            self._write, step, tensors=tensors, metadata=metadata, retention=retention
        )
        if not self._asynchronous:
            self.wait()

    def check(self) -> None:
        """Raises an error of the thread, without waiting for a checkpoint in progress.

        All processes must call this at the same steps; an error is raised in all at the same step.
        """
        if self._pending is not None and self._processes.any(self._pending.done()):
            self.wait()

    def wait(self) -> None:
        """Waits until no checkpoint is in progress; raises the error of a failed one."""
        if self._pending is not None:
            futures.wait([self._pending])  # after an interrupt here the save is still pending
            future, self._pending = self._pending, None
            future.result()

    def _write(self, step: int, **content: Any) -> None:
        store.save(
            self._directory,
            step=step,
            processes=self._processes,
            parts=self._parts,
            **content,
        )
        self._on_commit(step)
