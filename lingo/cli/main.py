"""Runs the command `lingo VERB --flags`: handles signals and errors, and sets the exit code.

Results go to stdout. Errors go to stderr, in one to three lines. Signals are handled before
anything slow is imported. A verb's module is imported when the verb is called, so that verbs that
only read parameters start at once.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import itertools
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from lingo.config import lazy
from lingo.config.base.errors import LingoError, ParamError, suggest
from lingo.config.printable import escape_controls
from lingo.processes.signals import Signals, Stop

if TYPE_CHECKING:
    from lingo.cli.command import Verb

VERBS = (
    "list",
    "show",
    "describe",
    "why",
    "diff",
    "check",
    "plan",
    "golden",
    "import",
    "export",
    "train",
    "runs",
    "copy",
    "eval",
    "predict",
    "decode",
    "chat",
    "serve",
    "checkpoint",
    "sweep",
    "benchmark",
    "launch",
    "tokenizer",
    "records",
    "completion",
)
MAX_ERROR_LINES = 3
MAX_LINE_CHARACTERS = 1000
MAX_UNEXPECTED_CHARACTERS = 400

USAGE = 2
UNEXPECTED = 1
NO_ROOM = 10

_PLACE = "lingo.cli.verbs"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

_HELP_FLAGS = {"h", "help", "helpshort", "helpfull"}
_HELP = {f"{dashes}{flag}" for flag in _HELP_FLAGS for dashes in ("-", "--")} | {"help"}
_INTRODUCTION = """\
Declares, inspects and trains experiments.

    lingo list
    lingo show --exp=lm.source.tiny
    lingo train --exp=lm.source.tiny --logdir=runs/tiny --set=optimizer.learning_rate=1e-3
"""


SIGNALLED = 128
"""The exit code of a process that a signal ended is this number plus the signal's number."""

_INTERRUPTED: list[KeyboardInterrupt] = []
"""The errors that signals raised, kept because they keep all stack frames alive.

Otherwise a partly loaded library could be freed, which may crash.
"""


def program() -> NoReturn:
    """Runs a verb and ends the process.

    It waits for no thread, since a thread may be reading a disk that does not answer.
    """
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no KeyboardInterrupt from here on
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the stream is closed, or has no reader
            stream.flush()
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a verb; returns the exit code. `argv` has the arguments without the program's name."""
    _open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with Signals() as signals, signals.stop_at_once():
            return _run(arguments, signals)
    except KeyboardInterrupt as error:
        return _report_stop(error)


def _open_streams() -> None:
    """Connects closed streams (`2>&-`) to /dev/null, so that no file gets their descriptors."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _report_stop(error: KeyboardInterrupt) -> int:
    """Prints which signal has ended the program, and returns the exit code."""
    _INTERRUPTED.append(error)
    with contextlib.suppress(OSError):  # the signal may have ended the reader of stdout, too
        sys.stdout.flush()
        print(f"lingo: {error}" if str(error) else "lingo: interrupted", file=sys.stderr)
        sys.stderr.flush()
    return SIGNALLED + (error.number if isinstance(error, Stop) else signal.SIGINT)


def _run(arguments: list[str], signals: Signals) -> int:
    """Runs a verb; any error except a signal becomes a message on stderr and an exit code."""
    name = arguments[0] if arguments and arguments[0] in VERBS else ""
    try:
        with lazy.quiet():  # also if a user's file imports TensorFlow
            code = _run_verb(arguments)
        sys.stdout.flush()  # raises errors of writing here, not when Python exits
        return code
    except BrokenPipeError:  # as in `lingo list | head -1`: further output is discarded
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, SystemExit) as error:  # noqa: BLE001  # every error ends here, as a message and an exit code
        signals.check()  # a signal in a compiled module may show only as a failed import
        if _has_flag(arguments, {"traceback", "traceback=true"}):
            traceback.print_exc()
        return _report_error(error, name)


def _run_verb(arguments: list[str]) -> int:
    from lingo.cli import buckets, command  # slow

    if not arguments or arguments[0] in _HELP:
        print(_overview(), end="")
        return 0
    name, *rest = arguments
    if name.startswith("-"):
        raise ParamError(f"the verb comes first: lingo VERB {name}\nVerbs: {', '.join(VERBS)}.")
    if name not in VERBS:
        near = suggest(name, VERBS)
        raise ParamError(f"there is no verb {name!r}.{near}\nVerbs: {', '.join(VERBS)}.")
    verb = import_verb(name)
    if _has_flag(rest, _HELP_FLAGS):
        print(command.help_text(name, verb), end="")
        return 0
    options = command.read(name, verb, rest)
    buckets.bring_down(name, options)
    return verb.run(options)


def _has_flag(arguments: list[str], flags: set[str]) -> bool:
    """Returns whether the arguments have one of the flags, before a `--` if there is one."""
    own = itertools.takewhile(lambda argument: argument != "--", arguments)
    return not flags.isdisjoint(a.lstrip("-") for a in own if a.startswith("-"))


def import_verb(name: str) -> Verb:
    """Imports and returns the module of a verb."""
    verb: Any = importlib.import_module(f"{_PLACE}.{name}")
    return verb


def _overview() -> str:
    """Returns the text of `lingo --help`."""
    width = max(map(len, VERBS))
    summaries = [(name, (import_verb(name).__doc__ or "").splitlines()[0]) for name in VERBS]
    verbs = "\n".join(f"  {name:{width}}  {summary}" for name, summary in summaries)
    return (
        f"usage: lingo VERB [--flags]\n\n{_INTRODUCTION}\nverbs:\n{verbs}\n\n"
        "`lingo VERB --help` shows a verb's flags and examples.\n"
    )


def _report_error(error: BaseException, name: str) -> int:
    from lingo.config.roots.user_line import error_prefix, first_line  # slow

    by = error_prefix(error)
    line = _cut(first_line(error), MAX_UNEXPECTED_CHARACTERS)
    text, code = _describe(error, line, is_users=bool(by))
    where = f"lingo {name}".rstrip()
    with contextlib.suppress(OSError):  # the exit code remains
        lines = [_cut(escape_controls(line)) for line in f"{where}: {by}{text}".splitlines()]
        print("\n".join(lines), file=sys.stderr, flush=True)
    return code


def _describe(error: BaseException, line: str, *, is_users: bool) -> tuple[str, int]:
    """Returns an error's text and exit code.

    `line` is its type and first line; `is_users` says that a user's code raised it.
    """
    if isinstance(error, LingoError):
        text = str(error)
        lines = text.splitlines()
        if isinstance(error, ParamError) and len(lines) > MAX_ERROR_LINES:
            rest = f"... ({len(lines)} lines in all)"
            text = "\n".join([*lines[: MAX_ERROR_LINES - 1], rest])
        return text, error.exit_code
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        file = f" {error.filename}" if error.filename else ""  # a stream has no name
        return f"cannot write{file}: {error.strerror}", NO_ROOM
    if isinstance(error, FileNotFoundError) and error.filename is None:
        # only os.getcwd() raises this without a file name
        return "the working directory is gone: change into one that is there.", USAGE
    if isinstance(error, MemoryError):
        detail = f": {error}" if str(error) else ""
        return f"out of memory{detail} (--traceback shows where)", UNEXPECTED
    by_lingo = "" if is_users else "unexpected "
    return f"{by_lingo}{line} (--traceback shows where)", UNEXPECTED


def _cut(line: str, limit: int = MAX_LINE_CHARACTERS) -> str:
    """Returns a line, with the middle replaced by "..." if it is longer than `limit`."""
    if len(line) <= limit:
        return line
    half = limit // 2
    return f"{line[:half]} ... {line[-half:]}"


if __name__ == "__main__":
    program()
