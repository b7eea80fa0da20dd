"""The command line: `lingo VERB --flags`.

Results go to stdout, errors to stderr, in one to three lines. A verb's code is imported when it is
called, so that one that only reads parameters starts at once.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import cast

from lingo.cli import command
from lingo.cli.command import UsageError, Verb
from lingo.config.params import ParamError, suggest
from lingo.errors import LingoError

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
    "sweep",
    "tokenizer",
)
MAX_ERROR_LINES = 3

USAGE = 2
UNEXPECTED = 1
INTERRUPTED = 130

_HELP = ("--help", "-help", "-h", "--helpshort", "--helpfull")
_INTRODUCTION = """\
Declares, inspects and trains experiments.

    lingo list
    lingo show --exp=lm.source.tiny
    lingo train --exp=lm.source.tiny --logdir=runs/tiny --set=optimizer.learning_rate=1e-3
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a verb.

    Args:
        argv: the command line without the program's name; that of the process if None.

    Returns:
        The exit code, as `lingo.errors` lists them.
    """
    _open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments and arguments[0] in VERBS else ""
    try:
        code = _dispatch(arguments)
        print(end="", flush=True)  # what cannot be written shows here, not when Python ends
        return code
    except BrokenPipeError:
        return _nobody_reads()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  # whatever it is, it ends here as a line and a code
        if "--traceback" in arguments:
            traceback.print_exc()
        return _complain(error, name)


def _open_streams() -> None:
    """Opens streams that are closed (`2>&-`) to nowhere, before a file takes their numbers."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in (*_HELP, "help"):
        print(_overview(), end="")
        return 0
    name, *rest = arguments
    if name not in VERBS:
        raise UsageError(_unknown_verb(name))
    verb = _verb(name)
    if any(argument in _HELP for argument in rest):
        print(command.help_text(name, verb), end="")
        return 0
    values, word = command.read(name, verb, rest)
    return verb.run(values, word)


def _verb(name: str) -> Verb:
    return cast(Verb, importlib.import_module(f"lingo.cli.verbs.{name}"))


def _unknown_verb(name: str) -> str:
    if name.startswith("-"):
        return f"the verb comes first: lingo VERB {name}\nVerbs: {', '.join(VERBS)}."
    return f"there is no verb {name!r}.{suggest(name, VERBS)}\nVerbs: {', '.join(VERBS)}."


def _overview() -> str:
    """Returns what `lingo --help` prints."""
    width = max(map(len, VERBS))
    lines = [f"  {name:{width}}  {(_verb(name).__doc__ or '').splitlines()[0]}" for name in VERBS]
    verbs = "\n".join(lines)
    return (
        f"usage: lingo VERB [--flags]\n\n{_INTRODUCTION}\nverbs:\n{verbs}\n\n"
        "`lingo VERB --help` shows a verb's flags and examples.\n"
    )


def _complain(error: Exception, name: str) -> int:
    """Prints an error and returns its exit code."""
    where = f"lingo {name}".rstrip()
    if isinstance(error, LingoError):
        text, code = str(error), error.exit_code
    elif isinstance(error, ParamError):
        text, code = _shortened(str(error)), USAGE
    else:
        kind = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
        text, code = f"unexpected {kind} (--traceback shows where)", UNEXPECTED
    print(f"{where}: {_printable(text)}", file=sys.stderr)
    return code


def _shortened(text: str) -> str:
    lines = text.splitlines() or [""]
    if len(lines) <= MAX_ERROR_LINES:
        return "\n".join(lines)
    return "\n".join([*lines[: MAX_ERROR_LINES - 1], f"... ({len(lines)} lines in all)"])


def _printable(text: str) -> str:
    """Returns a text without what a terminal would obey: it may come from a file or a name."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def _nobody_reads() -> int:
    """Ends quietly after `lingo list | head -1`: nobody wants the rest."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
