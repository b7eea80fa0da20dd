"""Trials as processes of this machine."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from lingo.processes.parent import dying_with_parent
from lingo.storage.files import writing
from lingo.study.trial import LOG, Trial


class Process(Protocol):
    """A trial at work."""

    def poll(self) -> int | None:
        """Returns the exit code, the negative number of a signal that killed it, or None."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Sends a signal, if it has not ended."""
        ...


Launch: TypeAlias = Callable[[Trial, int], Process]
"""Starts a trial in a slot: of `num_workers` slots, one whose last trial has ended."""


class Local:
    """Starts trials as child processes, each in its share of the processors.

    A child prints into its own log.txt and is in a process group of its own, so that a Ctrl+C at
    the terminal reaches it once, from the sweep. It is told to stop if the sweep dies.
    """

    def __init__(self, program: Sequence[str], *, num_workers: int) -> None:
        """Starts nothing yet.

        Args:
            program: what the arguments of a trial are given to.
            num_workers: how many trials run at a time.
        """
        self._program, self._num_workers = tuple(program), num_workers

    def __call__(self, trial: Trial, slot: int) -> Process:
        """Starts a trial.

        Raises:
            StorageError: if its directory or log cannot be written.
        """
        cores = share(sorted(os.sched_getaffinity(0)), slot, self._num_workers)
        die_with_parent = dying_with_parent(signal.SIGTERM)
        with writing(trial.path):
            trial.path.mkdir(exist_ok=True)
        with writing(trial.path / LOG), open(trial.path / LOG, "ab") as log:
            return subprocess.Popen(
                [*self._program, *trial.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                process_group=0,
                preexec_fn=functools.partial(_settle, cores, die_with_parent),
            )


def share(cores: Sequence[int], slot: int, num_workers: int) -> Sequence[int]:
    """Returns the processors of a slot: an equal part, or all where there are too few."""
    if num_workers > len(cores):
        return cores
    cut = [slot * len(cores) // num_workers for slot in (slot, slot + 1)]
    return cores[cut[0] : cut[1]]


def _settle(cores: Sequence[int], die_with_parent: Callable[[], None]) -> None:
    """Runs in the child before its program does."""
    os.sched_setaffinity(0, cores)
    die_with_parent()
