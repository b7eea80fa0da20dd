"""A process that watches another one, and ends it when nothing happens in it any more.

`supervised` forks. The child does the work. The parent passes signals on, looks at the child's
counter (`hang`), and ends with the child's exit code. If the counter stands still for too long, the
child writes the stacks of all its threads, in a signal handler that needs neither Python nor its
lock, and is killed: a thread that watches from inside would wait for that lock, too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import ClassVar

from lingo.config.errors import LingoError
from lingo.processes.parent import prepare_die_with_parent
from lingo.processes.signals import STOPPING
from lingo.storage.files import write_text
from lingo.trainer.directory.resume import last_step
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.guard.hang import COUNTER, SLOW_FACTOR, Watchdog

STACKS = "hang.txt"

_POLL_SECONDS = 0.1
_DEATH_SECONDS = 10.0  # for the end of what is killed: it may wait for a disk
_DUMP = signal.SIGRTMAX  # nobody else sends this one
_PASSED_ON = (*STOPPING, signal.SIGTSTP)


class Hang(LingoError):
    """Nothing happened any more."""

    exit_code: ClassVar[int] = 9


def supervised(
    work: Callable[[Watchdog], int], run: RunDirectory, *, timeout_seconds: float
) -> int:
    """Does some work in a child of this process, and returns its exit code.

    In the child this returns, too, or raises what the work raises.

    Args:
        work: gets the watchdog that it must keep quiet.
        run: where the stacks are written, and STATUS, after a hang.
        timeout_seconds: how long the watchdog may stand still; where it is slow, `SLOW_FACTOR`
            times as long.

    Raises:
        Hang: in the parent, if it stood still.
    """
    counter, stacks = mmap.mmap(-1, COUNTER.size), os.memfd_create(STACKS)
    sys.stdout.flush()
    sys.stderr.flush()
    # what comes while neither is ready waits until it can be passed on
    known = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    die_with_parent = prepare_die_with_parent(signal.SIGKILL)
    child = os.fork()
    if child == 0:
        _settle(die_with_parent, stacks)
        signal.pthread_sigmask(signal.SIG_SETMASK, known)
        return work(Watchdog(counter))
    with _passing_on(child):
        signal.pthread_sigmask(signal.SIG_SETMASK, known)
        code = _watch(child, counter, timeout_seconds)
        if code is None:
            _end(child)
    if code is None:
        raise Hang(_report(run, stacks, _limit(_count(counter), timeout_seconds)))
    return code if code >= 0 else 128 - code


def _settle(die_with_parent: Callable[[], None], stacks: int) -> None:
    """Prepares the child: it does not outlive the parent, and dies with its stacks if told to.

    What is typed at a terminal reaches it through the parent only, and so once.
    """
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it may go on writing there
    die_with_parent()
    faulthandler.register(_DUMP, file=stacks, all_threads=True, chain=True)


@contextlib.contextmanager
def _passing_on(child: int) -> Iterator[None]:
    """Sends the child what is sent to this process, unless that is ignored, and stops with it."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(child, number)

    def suspend(number: int, frame: FrameType | None) -> None:
        pass_on(signal.SIGSTOP, frame)
        os.kill(os.getpid(), signal.SIGSTOP)  # returns when it is continued
        pass_on(signal.SIGCONT, frame)

    handlers = {**dict.fromkeys(STOPPING, pass_on), signal.SIGTSTP: suspend}
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(child: int, counter: mmap.mmap, timeout_seconds: float) -> int | None:
    """Returns the child's exit code, or None if its counter stands still for too long.

    Time is counted in pauses of this process: when the terminal or the machine is suspended, both
    processes are.
    """
    last, quiet_seconds = 0, 0.0
    while quiet_seconds < _limit(last, timeout_seconds):
        if (code := _ended(child)) is not None:
            return code
        time.sleep(_POLL_SECONDS)
        count = _count(counter)
        quiet_seconds = quiet_seconds + _POLL_SECONDS if count and count == last else 0.0
        last = count
    return None


def _count(counter: mmap.mmap) -> int:
    return COUNTER.unpack_from(counter)[0]


def _limit(count: int, timeout_seconds: float) -> float:
    """Returns how many seconds a counter may stand at a count."""
    return timeout_seconds * (SLOW_FACTOR if count < 0 else 1)


def _ended(child: int) -> int | None:
    pid, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def _end(child: int) -> None:
    """Makes the child write its stacks and die of it, or else kills it."""
    for numbers in ((_DUMP, signal.SIGCONT), (signal.SIGKILL,)):
        for number in numbers:
            os.kill(child, number)
        deadline = time.monotonic() + _DEATH_SECONDS
        while time.monotonic() < deadline:
            if _ended(child) is not None:
                return
            time.sleep(_POLL_SECONDS)


def _report(run: RunDirectory, stacks: int, quiet_seconds: float) -> str:
    """Shows and keeps the stacks, writes STATUS, and returns what happened."""
    size = os.fstat(stacks).st_size
    text = os.pread(stacks, size, 0).decode(errors="replace") or "It could not write its stacks.\n"
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()
    step = last_step(run)
    with contextlib.suppress(LingoError), run.locked():
        write_text(run.path / STACKS, f"{time.ctime()}\n{text}")
        run.set_status("failed", step)
    return (
        f"a hang: nothing happened for {quiet_seconds:g} s. Where it stood is above and in"
        f" {run.path / STACKS}; the same command goes on at step {step}."
    )
