"""The supervisor is a process that kills its child when the child hangs.

`supervise` forks. The child works; its `hang.Watchdog` restarts a timer at every sign of life. When
half of the allowed time has passed, and again when all has, the timer writes the stacks into a file
in memory, whoever holds the GIL. The parent forwards signals, ends with the child's exit code, and
reads that file: if it has the stacks twice, the child hangs. It then kills the child, writes
hang.txt and STATUS, and ends with code 9, also if the child waits for a disk and cannot die.
Stacks that are there only once are not a hang: both processes may have been suspended meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import ClassVar

from lingo.config.errors import LingoError
from lingo.processes.parent import prepare_die_with_parent
from lingo.processes.signals import STOPPING
from lingo.storage.files import write_text
from lingo.trainer.directory.resume import last_step
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.guard.hang import Watchdog

STACKS = "hang.txt"

_TIMEOUT = re.compile(r"^Timeout \(.*\n", re.MULTILINE)
"""The line that `faulthandler` writes before stacks."""
_POLL_SECONDS = 0.1
_DEATH_SECONDS = 10.0  # how long to wait for a killed process, which may wait for a disk


class Hang(LingoError):
    """The child gave no sign of life in time."""

    exit_code: ClassVar[int] = 9


def supervise(work: Callable[[Watchdog], int], run: RunDirectory, *, timeout_seconds: float) -> int:
    """Calls `work` in a child process, and returns its exit code.

    This returns in the child, too, or raises what `work` raises. The parent keeps forwarding
    signals after it returns: it has nothing else to do.

    Args:
        work: is called with the watchdog to which it must give signs of life.
        run: the run directory, for hang.txt and STATUS after a hang.
        timeout_seconds: the time from one sign of life to the next; `SLOW_FACTOR` times as long
            inside `Watchdog.extend`.

    Raises:
        Hang: in the parent, if no sign of life came in time.
    """
    file = os.memfd_create(STACKS)
    sys.stdout.flush()
    passed_on = (*STOPPING, signal.SIGTSTP)
    # signals that arrive before both processes are ready stay pending until then
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    die_with_parent = prepare_die_with_parent(signal.SIGKILL)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # signals of the terminal then reach it once, from the parent only
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it may still write to the terminal
        die_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return work(Watchdog(timeout_seconds, file))
    for number in passed_on:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, functools.partial(_pass_on, child))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return _watch(child, file, run)


def _pass_on(child: int, number: int, frame: FrameType | None) -> None:
    """Forwards a signal to the child; for SIGTSTP suspends both, and later continues both."""
    del frame
    is_suspension = number == signal.SIGTSTP
    with contextlib.suppress(ProcessLookupError):  # the child has ended meanwhile
        os.kill(child, signal.SIGSTOP if is_suspension else number)
        if is_suspension:
            os.kill(os.getpid(), signal.SIGSTOP)  # returns when it is continued
            os.kill(child, signal.SIGCONT)


def _watch(child: int, file: int, run: RunDirectory) -> int:
    """Returns the exit code of a child; raises Hang once the file has the stacks twice."""
    while (code := _exit_code(child)) is None:
        written = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
        seconds, *stacks = _TIMEOUT.split(written)
        if len(stacks) > 1:
            _kill(child)
            raise Hang(_report(run, stacks[0], seconds.strip()))
        time.sleep(_POLL_SECONDS)
    return code


def _exit_code(child: int) -> int | None:
    """Returns the exit code of a child as a shell reports it, or None while it runs."""
    pid, status = os.waitpid(child, os.WNOHANG)
    code = os.waitstatus_to_exitcode(status)
    return (code if code >= 0 else 128 - code) if pid else None


def _kill(child: int) -> None:
    """Kills a child, and waits up to `_DEATH_SECONDS` for its end."""
    os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + _DEATH_SECONDS
    while _exit_code(child) is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _report(run: RunDirectory, stacks: str, seconds: str) -> str:
    """Shows the stacks, writes hang.txt and STATUS, and returns the error text."""
    with contextlib.suppress(OSError):
        sys.stderr.write(stacks)
        sys.stderr.flush()
    step = last_step(run)
    with contextlib.suppress(LingoError), run.locked():
        write_text(run.path / STACKS, f"{time.ctime()}\n{stacks}")
        run.set_status("failed", step)
    return (
        f"a hang: nothing happened for {seconds} s. Where it stood is above and in"
        f" {run.path / STACKS}; the same command goes on at step {step}."
    )
