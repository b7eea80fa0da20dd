"""Checkpoints are written in a thread of their own while training goes on, one at a time.

    with Writer(directory, policy, committed=say) as writer:
        writer.wait()                                    # for the one before: no two in memory
        writer.save(20, tensors, metadata=...)           # returns at once
        writer.check()                                   # raises what went wrong meanwhile
        writer.wait()                                    # returns when it is on the disk

What goes wrong in the thread is raised by the next call, whichever it is. However the block is
left, the checkpoint in hand is finished first; so is it when the interpreter ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from lingo.checkpoints import store
from lingo.processes.processes import ALONE, Processes

_log = logging.getLogger(__name__)


class Policy(NamedTuple):
    """How checkpoints are written, and which stay.

    Attributes:
        asynchronous: whether training goes on while one is written.
        keep: how many of the latest stay.
        keep_every_steps: those of multiples of it stay for ever.
    """

    asynchronous: bool
    keep: int
    keep_every_steps: int | None


class Writer:
    """Writes the checkpoints of a run, one after the other."""

    def __init__(
        self,
        directory: Path,
        policy: Policy,
        *,
        committed: Callable[[int], None],
        processes: Processes = ALONE,
    ) -> None:
        """Starts nothing yet.

        Args:
            directory: of all checkpoints.
            policy: how, and which stay.
            committed: called with the step of a checkpoint once it is on the disk, in the thread.
            processes: which write each of them together, every one with a writer of its own.
        """
        self._directory, self._policy, self._committed = directory, policy, committed
        self._processes = processes
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.shutdown()
        if error is None:
            self.wait()
        elif self._pending is not None and (failure := self._pending.exception()) is not None:
            _log.error("a checkpoint was not written: %s", failure)  # `error` is what ends the run

    def save(
        self,
        step: int,
        tensors: Iterable[tuple[str, Any]],
        *,
        metadata: Mapping[str, Any],
        protected: Collection[int] = (),
    ) -> None:
        """Begins to write a checkpoint; if the policy is not asynchronous, writes it.

        Args:
            step: steps done.
            tensors: as `store.save` takes them; asked for in the thread, so what they are read from
                must not change from now on.
            metadata: what else to record.
            protected: steps whose checkpoints stay, too.

        Raises:
            StorageError, NumericFailure, LostWorker: if the one before could not be written.
        """
        self.wait()
        self._pending = self._thread.submit(self._write, step, tensors, metadata, protected)
        if not self._policy.asynchronous:
            self.wait()

    def check(self) -> None:
        """Raises what went wrong since the last call; does not wait.

        Of several processes all call it at the same steps, and all raise at the same step.
        """
        if self._pending is not None and self._processes.any(self._pending.done()):
            self.wait()

    def wait(self) -> None:
        """Returns when nothing is being written.

        Raises:
            StorageError, NumericFailure, LostWorker: if a checkpoint could not be written.
        """
        if self._pending is not None:
            futures.wait([self._pending])  # an interrupt here forgets nothing
            done, self._pending = self._pending, None
            done.result()

    def _write(
        self,
        step: int,
        tensors: Iterable[tuple[str, Any]],
        metadata: Mapping[str, Any],
        protected: Collection[int],
    ) -> None:
        store.save(
            self._directory,
            step=step,
            tensors=tensors,
            metadata=metadata,
            keep=self._policy.keep,
            keep_every_steps=self._policy.keep_every_steps,
            protected=protected,
            processes=self._processes,
        )
        self._committed(step)
