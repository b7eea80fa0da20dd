"""The command `lingo`: the process, its signals and its exit code.

Signals are handled before anything slow is imported; `dispatch` reads the command line and runs
the verb.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from lingo.processes.signals import Signals, Stop

SIGNALLED = 128
"""This plus the number of a signal is the exit code of a process that the signal ended."""

_INTERRUPTED: list[KeyboardInterrupt] = []
"""Errors of signals; they keep all frames alive, as freeing a partly loaded library may crash."""


def program() -> NoReturn:
    """Runs a verb and ends the process with its exit code.

    The process does not wait for its threads, one of which may read a disk that does not answer.
    Verbs must finish their own work.
    """
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no KeyboardInterrupt from here on
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it is closed
            stream.flush()
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a verb.

    Args:
        argv: the command line without the program's name; None for that of the process.

    Returns:
        The exit code; see `lingo.config.errors`.
    """
    _open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with Signals() as signals, signals.stop_at_once():
            from lingo.cli import dispatch  # it imports most of lingo

            signals.check()
            return dispatch.run(arguments, signals)
    except KeyboardInterrupt as error:
        return _report_stop(error)


def _open_streams() -> None:
    """Opens closed streams (`2>&-`) to /dev/null, before a file gets their descriptors."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _report_stop(error: KeyboardInterrupt) -> int:
    """Prints which signal has ended the program, and returns the exit code."""
    _INTERRUPTED.append(error)
    with contextlib.suppress(OSError):  # the same signal may have ended its reader
        sys.stdout.flush()
        print(f"lingo: {error}" if str(error) else "lingo: interrupted", file=sys.stderr)
        sys.stderr.flush()
    return SIGNALLED + (error.number if isinstance(error, Stop) else signal.SIGINT)


if __name__ == "__main__":
    program()
