"""A run that hangs is killed by a process that watches it, and ends with code 9.

`supervise` forks. The child trains, and its `Watchdog` restarts a timer of `faulthandler`, a C
thread that needs neither the interpreter nor the GIL, at every sign of life. After half of the
allowed time, and again after all of it, the timer writes the stacks of all threads into a file in
memory. The parent forwards signals, and reads that file. Stacks that appear once are no hang,
because both processes may have been suspended meanwhile. If they appear twice, the parent kills the
child and writes hang.txt and STATUS, even if the child waits for a disk and cannot die.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ClassVar, cast

from lingo.config.base.errors import LingoError
from lingo.processes.parent import prepare_die_with_parent
from lingo.processes.signals import STOPPING
from lingo.runtimes.program import Program
from lingo.storage.files import write_text
from lingo.trainer.directory.run_directory import RunDirectory

STACKS = "hang.txt"
SLOW_FACTOR = 20  # timeouts that a save may take: another try on the same disk would be as slow

_TIMEOUT = re.compile(r"^Timeout \(.*\n", re.MULTILINE)  # `faulthandler` writes it before stacks
_POLL_SECONDS = 0.1
_DEATH_SECONDS = 10.0  # how long to wait for a killed process, which may wait for a disk


class Hang(LingoError):
    """The child gave no sign of life in time."""

    exit_code: ClassVar[int] = 9


class Watchdog:
    """Restarts a timer at every sign of life, from the first steps on (`arm`)."""

    def __init__(self, timeout_seconds: float = 0, file: int = -1) -> None:
        """Expects nothing yet. After `arm`, expects a sign of life every `timeout_seconds`.

        0 means no limit. The file gets a line with the present limit in seconds, and the stacks of
        all threads each time that half of the limit has passed.
        """
        self._timeout_seconds, self._file = timeout_seconds, file
        self._is_armed = False

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *exception: object) -> None:
        """Gives the process `SLOW_FACTOR` timeouts for its work after the last step."""
        self.beat(SLOW_FACTOR)
        self._is_armed = False

    def arm(self) -> None:
        """Expects signs of life from now on."""
        self._is_armed = True
        self.beat()

    def beat(self, factor: float = 1) -> None:
        """Gives a sign of life, and expects the next within `factor` timeouts; 0: no limit."""
        if not (self._is_armed and self._timeout_seconds):
            return
        faulthandler.cancel_dump_traceback_later()
        os.lseek(self._file, 0, os.SEEK_SET)
        os.ftruncate(self._file, 0)
        if seconds := factor * self._timeout_seconds:
            os.write(self._file, b"%g\n" % seconds)
            faulthandler.dump_traceback_later(seconds / 2, repeat=True, file=self._file)

    @contextlib.contextmanager
    def expect_within(self, factor: float) -> Iterator[None]:
        """Expects the end of the body within `factor` timeouts; 0: no limit."""
        self.beat(factor)
        try:
            yield
        finally:
            self.beat()

    def extend(self) -> contextlib.AbstractContextManager[None]:
        """Expects the end of the body within `SLOW_FACTOR` timeouts."""
        return self.expect_within(SLOW_FACTOR)

    def pause(self) -> contextlib.AbstractContextManager[None]:
        """Sets no time limit for the body."""
        return self.expect_within(0)


def watch_program(program: Program, watchdog: Watchdog) -> Program:
    """Returns a program whose calls are signs of life; the first `train` arms the watchdog.

    The first call with batches of given shapes compiles, so it has no time limit.
    """
    return cast(Program, _WatchedProgram(program, watchdog))


class _WatchedProgram:
    def __init__(self, program: Program, watchdog: Watchdog) -> None:
        self._program, self._watchdog = program, watchdog
        self._compiled: set[Any] = set()

    def __getattr__(self, name: str) -> Any:
        is_watched = name in ("train", "evaluate", "predict", "decode")
        return functools.partial(self._call, name) if is_watched else getattr(self._program, name)

    def read_sums(self, sums: Any) -> Any:
        """Waits for batches that are not computed yet: TensorFlow queues several on a GPU."""
        with self._watchdog.extend():
            return self._program.read_sums(sums)

    def _call(self, name: str, batch: Any, *decoding: Any, **options: Any) -> Any:
        shapes = tuple((key, array.shape) for key, array in sorted(batch.items()))
        call = (name, *decoding, options.get("weights"), shapes)
        with self._watchdog.expect_within(1 if call in self._compiled else 0):
            result = getattr(self._program, name)(batch, *decoding, **options)
        self._compiled.add(call)
        if name == "train":
            self._watchdog.arm()
        return result


def supervise(work: Callable[[Watchdog], int], run: RunDirectory, *, timeout_seconds: float) -> int:
    """Calls `work` with a watchdog in a child process, and returns its exit code.

    The function returns in both processes; in the child it also raises the errors of `work`. In the
    parent, signals are still forwarded after that. If no sign of life comes in time, the parent
    writes hang.txt and STATUS in the run directory, and raises Hang.
    """
    file = os.memfd_create(STACKS)
    sys.stdout.flush()
    forwarded = (*STOPPING, signal.SIGTSTP)
    # signals that arrive before both processes are ready stay pending until then
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    die_with_parent = prepare_die_with_parent(signal.SIGKILL)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # signals of the terminal reach the child once, from the parent only
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # so that it may write to the terminal
        die_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return work(Watchdog(timeout_seconds, file))
    for number in forwarded:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, functools.partial(_forward, child))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    while (code := _exit_code(child)) is None:
        written = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
        seconds, *stacks = _TIMEOUT.split(written)
        if len(stacks) > 1:
            _kill(child)
            raise Hang(_report(run, stacks[0], seconds.strip()))
        time.sleep(_POLL_SECONDS)
    return code


def _forward(child: int, number: int, frame: FrameType | None) -> None:
    """Forwards a signal to the child; SIGTSTP suspends both processes, and later continues both."""
    del frame
    is_suspension = number == signal.SIGTSTP
    with contextlib.suppress(ProcessLookupError):  # the child has ended meanwhile
        os.kill(child, signal.SIGSTOP if is_suspension else number)
        if is_suspension:
            os.kill(os.getpid(), signal.SIGSTOP)  # returns when this process is continued
            os.kill(child, signal.SIGCONT)


def _exit_code(child: int) -> int | None:
    """Returns the exit code of a child as a shell reports it, or None while it runs."""
    pid, status = os.waitpid(child, os.WNOHANG)
    code = os.waitstatus_to_exitcode(status)
    return (code if code >= 0 else 128 - code) if pid else None


def _kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + _DEATH_SECONDS
    while _exit_code(child) is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _report(run: RunDirectory, stacks: str, seconds: str) -> str:
    """Shows the stacks, writes hang.txt and STATUS, and returns the error text."""
    with contextlib.suppress(OSError):
        sys.stderr.write(stacks)
        sys.stderr.flush()
    step = run.last_step()
    with contextlib.suppress(LingoError), run.lock(mirrored=False):  # a bucket may not answer
        write_text(run.path / STACKS, f"{time.ctime()}\n{stacks}")
        run.set_status("failed", step)
    return (
        f"a hang: nothing happened for {seconds} s. The stacks are above and in"
        f" {run.path / STACKS}; the same command resumes at step {step}."
    )
