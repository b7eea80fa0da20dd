"""The command `lingo`: a process, from its first signal to its exit code.

Signals are heeded before anything that takes time is imported; what a command line asks for is
found out by `dispatch`.
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
"""Exit codes above this say which signal ended the process."""

_INTERRUPTED: list[KeyboardInterrupt] = []
"""What a signal ended, with all it had in hand: to free a library loaded by half may crash."""


def program() -> NoReturn:
    """Runs a verb and ends the process with its exit code.

    The process does not wait for its threads: one of them may read a disk that does not answer.
    What must be finished, verbs finish.
    """
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # it is over: no KeyboardInterrupt in its end
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it is gone, or it is closed
            stream.flush()
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a verb.

    Args:
        argv: the command line without the program's name; that of the process if None.

    Returns:
        The exit code, as `lingo.config.errors` lists them.
    """
    _open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with Signals() as signals, signals.leaving():
            from lingo.cli import dispatch  # it imports most of lingo

            signals.check()
            return dispatch.run(arguments, signals)
    except KeyboardInterrupt as error:
        return _report_stop(error)


def _open_streams() -> None:
    """Opens streams that are closed (`2>&-`) to nowhere, before a file takes their numbers."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _report_stop(error: KeyboardInterrupt) -> int:
    """Says that a signal has ended the program, and returns the exit code."""
    _INTERRUPTED.append(error)
    with contextlib.suppress(OSError):  # whoever read it may be gone, by the same signal
        sys.stdout.flush()
        print(f"lingo: {error}" if str(error) else "lingo: interrupted", file=sys.stderr)
        sys.stderr.flush()
    return SIGNALLED + (error.number if isinstance(error, Stop) else signal.SIGINT)


if __name__ == "__main__":
    program()
