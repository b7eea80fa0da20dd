"""Runs the verb of a command line, `lingo VERB --flags`, and turns errors into exit codes.

Results go to stdout, errors to stderr, in one to three lines. A verb's code is imported when it is
called, so that verbs that only read parameters start at once.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import traceback
from typing import cast

from lingo.cli import command
from lingo.cli.command import UsageError, Verb
from lingo.config import lazy
from lingo.config.errors import LingoError
from lingo.config.node.error import ParamError, suggest
from lingo.config.printable import escape_controls
from lingo.processes.signals import Signals

VERBS = (
    "list",
    "show",
    "describe",
    "why",
    "diff",
    "check",
    "golden",
    "train",
    "eval",
    "decode",
    "checkpoint",
    "sweep",
    "launch",
    "tokenizer",
)
MAX_ERROR_LINES = 3
MAX_LINE_CHARACTERS = 1000

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


def run(arguments: list[str], signals: Signals) -> int:
    """Runs a verb.

    Args:
        arguments: the command line without the program's name.
        signals: the signals that the process has received.

    Returns:
        The exit code. Any error of the verb becomes a message on stderr and an exit code.

    Raises:
        Stop: if a signal has come, and a library has turned it into another error.
    """
    name = arguments[0] if arguments and arguments[0] in VERBS else ""
    try:
        with lazy.quiet():  # also if a user's file imports it
            code = _dispatch(arguments)
        sys.stdout.flush()  # raises errors of writing here, not when Python exits
        return code
    except BrokenPipeError:
        return _nobody_reads()
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it is, it ends here as a line and a code
        signals.check()  # compiled modules that a signal interrupts only report a failed import
        if _shows_traceback(arguments):
            traceback.print_exc()
        return _complain(error, name)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in _HELP:
        print(_overview(), end="")
        return 0
    name, *rest = arguments
    if name not in VERBS:
        raise UsageError(_unknown_verb(name))
    verb = _verb(name)
    if not _HELP_FLAGS.isdisjoint(command.find_flags(verb, rest)):
        print(command.help_text(name, verb), end="")
        return 0
    values, word = command.read(name, verb, rest)
    return verb.run(values, word)


def _shows_traceback(arguments: list[str]) -> bool:
    name, *rest = arguments or [""]
    verb = sys.modules.get(f"{_PLACE}.{name}")  # it may be the module that could not be imported
    found = command.find_flags(cast(Verb, verb), rest) if verb else {a.lstrip("-") for a in rest}
    return not found.isdisjoint({"traceback", "traceback=true"})


def _verb(name: str) -> Verb:
    return cast(Verb, importlib.import_module(f"{_PLACE}.{name}"))


def _unknown_verb(name: str) -> str:
    if name.startswith("-"):
        return f"the verb comes first: lingo VERB {name}\nVerbs: {', '.join(VERBS)}."
    return f"there is no verb {name!r}.{suggest(name, VERBS)}\nVerbs: {', '.join(VERBS)}."


def _overview() -> str:
    """Returns the text of `lingo --help`."""
    width = max(map(len, VERBS))
    lines = [f"  {name:{width}}  {(_verb(name).__doc__ or '').splitlines()[0]}" for name in VERBS]
    verbs = "\n".join(lines)
    return (
        f"usage: lingo VERB [--flags]\n\n{_INTRODUCTION}\nverbs:\n{verbs}\n\n"
        "`lingo VERB --help` shows a verb's flags and examples.\n"
    )


def _complain(error: BaseException, name: str) -> int:
    """Prints an error and returns its exit code."""
    where = f"lingo {name}".rstrip()
    if isinstance(error, LingoError):
        text, code = str(error), error.exit_code
        text = _shorten(text) if isinstance(error, ParamError) else text
    elif isinstance(error, OSError) and error.errno in _NO_ROOM:
        file = f" {error.filename}" if error.filename else ""  # a stream has no name
        text, code = f"cannot write{file}: {error.strerror}", NO_ROOM
    elif isinstance(error, FileNotFoundError) and error.filename is None:
        # only os.getcwd() raises this without a file name
        text, code = "the working directory is gone: change into one that is there.", USAGE
    elif isinstance(error, MemoryError):
        said = f": {error}" if str(error) else ""
        text, code = f"out of memory{said} (--traceback shows where)", UNEXPECTED
    else:
        kind = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
        text, code = f"unexpected {kind} (--traceback shows where)", UNEXPECTED
    with contextlib.suppress(OSError):  # the exit code remains
        said = "\n".join(_cut(escape_controls(line)) for line in f"{where}: {text}".splitlines())
        print(said, file=sys.stderr, flush=True)
    return code


def _shorten(text: str) -> str:
    lines = text.splitlines() or [""]
    if len(lines) <= MAX_ERROR_LINES:
        return "\n".join(lines)
    return "\n".join([*lines[: MAX_ERROR_LINES - 1], f"... ({len(lines)} lines in all)"])


def _cut(line: str) -> str:
    """Returns a line without its middle if it is very long."""
    if len(line) <= MAX_LINE_CHARACTERS:
        return line
    half = MAX_LINE_CHARACTERS // 2
    return f"{line[:half]} ... {line[-half:]}"


def _nobody_reads() -> int:
    """Discards further output after a broken pipe, as in `lingo list | head -1`; returns 0."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
