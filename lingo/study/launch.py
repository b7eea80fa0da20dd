"""Trials as processes of this machine."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import TypeAlias

from lingo.processes.parent import dying_with_parent
from lingo.storage.files import writing
from lingo.study.directory import LOG
from lingo.study.trial import Trial

Launch: TypeAlias = Callable[[Trial, int], subprocess.Popen[bytes]]
"""Starts a trial in a slot, 0 <= slot < num_workers, whose last trial has ended."""


def launch_locally(
    trial: Trial, slot: int, *, program: Sequence[str], num_workers: int
) -> subprocess.Popen[bytes]:
    """Starts a trial as a child process, in its share of the processors.

    The child prints into its own log.txt and is in a process group of its own, so that a Ctrl+C at
    the terminal reaches it once, from the sweep. It is told to stop if the sweep dies.

    Args:
        trial: what to run.
        slot: which share of the processors it gets.
        program: what takes the arguments of the trial.
        num_workers: how many trials run at a time.

    Raises:
        StorageError: if its directory or log cannot be written.
    """
    cores = divide_cores(sorted(os.sched_getaffinity(0)), num_workers)[slot]
    die_with_parent = dying_with_parent(signal.SIGTERM)
    with writing(trial.path):
        trial.path.mkdir(exist_ok=True)
    with writing(trial.path / LOG), open(trial.path / LOG, "ab") as log:
        return subprocess.Popen(
            [*program, *trial.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            process_group=0,
            preexec_fn=functools.partial(_set_up_child, cores, die_with_parent),
        )


def divide_cores(cores: Sequence[int], num_workers: int) -> list[Sequence[int]]:
    """Returns the processors of each worker: an equal part, or all where there are too few."""
    if num_workers > len(cores):
        return [cores] * num_workers
    cuts = [worker * len(cores) // num_workers for worker in range(num_workers + 1)]
    return [cores[start:end] for start, end in itertools.pairwise(cuts)]


def _set_up_child(cores: Sequence[int], die_with_parent: Callable[[], None]) -> None:
    """Runs in the child before its program does."""
    os.sched_setaffinity(0, cores)
    die_with_parent()
