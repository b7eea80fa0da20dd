"""Talks with a model of a run: a line is your turn, and the model's answer appears as it is made.

    lingo chat --run=runs/tiny
    lingo chat --run=runs/tiny --temperature=0 --max_tokens=40
    printf 'hello\\n/why\\n' | lingo chat --run=runs/tiny --seed=1

A model that is trained to answer texts answers each line. Any other model continues the
conversation; it reads as many of the last turns as fit. Control characters are escaped. Ctrl-C
stops an answer. The same lines and flags give the same answers. Commands:

    /why          explain the last answer: settings, candidates, tools
    /tools off    answer without tools; /tools on
    /save FILE    write the turns into a new file, a conversation in one line of JSON
    /reset        forget all turns
    /help         show these commands
    /quit         end; so does Ctrl-D
"""

from __future__ import annotations

import contextlib
import importlib
import re
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lingo.cli import experiment_options
from lingo.cli.command import UsageError
from lingo.cli.experiment_options import DeviceOptions, RunOptions
from lingo.cli.options import LoadOptions
from lingo.config.base.errors import LingoError, ParamError
from lingo.config.options import option_class
from lingo.config.printable import escape_controls, escape_text
from lingo.contract import build_experiment
from lingo.decode.chat import Chat, ChatOptions
from lingo.processes.signals import Stop
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.trained import Trained

MAX_LINE_BYTES = 1_000_000

_PROMPT = "> "
# A command such as "/save FILE", unlike a path or a comment in a program.
_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*\S))?\s*")
_WIDTH = 100


@option_class
class Options(ChatOptions, LoadOptions, RunOptions, DeviceOptions):
    """The options of `lingo chat`."""


def run(options: Options) -> int:
    """Answers the lines of the standard input until its end."""
    run = options.require_run()
    options.check()
    resolved = options.resolve_run()
    experiment = build_experiment(resolved)
    options.make_devices(resolved.params)
    with experiment.runtime.join() as processes:
        if processes.count > 1:
            raise UsageError("lingo chat is for one process: several cannot share a terminal")
        model = Trained(
            resolved.params, RunDirectory(run), step=options.step, quantize=options.quantize
        )
        experiment_options.print_later_errors(model.checkpoint)
        chat = Chat(model, experiment.chat, options)
        is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
        if is_terminal:
            _prepare_terminal()
            print(f"{escape_controls(run)}, step {model.step}. /help shows commands, Ctrl-D ends.")
        with _interrupts() if is_terminal else contextlib.nullcontext():
            _converse(chat, is_terminal=is_terminal)
    return 0


def _prepare_terminal() -> None:
    """Lets the user edit a line before it is sent, and type bytes that are not UTF-8."""
    with contextlib.suppress(ImportError):  # some Pythons lack it
        importlib.import_module("readline")  # `input` edits lines once it is imported
    terminal: Any = sys.stdin
    terminal.reconfigure(errors="surrogateescape")


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """A context in which each Ctrl-C raises KeyboardInterrupt, instead of ending the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _converse(chat: Chat, *, is_terminal: bool) -> None:
    """Answers lines and obeys commands until the end of the input.

    On a terminal, it goes on after an interrupt or a mistake.
    """
    while True:
        try:
            line = _read_line(is_terminal=is_terminal)
            if line is None or not _obey(chat, line):
                return
        except (KeyboardInterrupt, LingoError) as error:
            if isinstance(error, Stop) or not is_terminal:
                raise
            print("" if isinstance(error, KeyboardInterrupt) else escape_controls(str(error)))


def _read_line(*, is_terminal: bool) -> str | None:
    """Returns the next line without its newline; None at the end of the input."""
    if is_terminal:
        try:
            return input(_PROMPT)
        except EOFError:
            print()
            return None
    if sys.stdin is None:
        raise UsageError("the standard input is closed: lingo chat reads turns from it")
    try:
        line = sys.stdin.buffer.readline(MAX_LINE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the standard input cannot be read: {error.strerror}") from None
    if len(line) > MAX_LINE_BYTES:
        raise UsageError(f"a line of the standard input has more than {MAX_LINE_BYTES:,} bytes")
    return line.decode(errors="surrogateescape").rstrip("\r\n") if line else None


def _obey(chat: Chat, line: str) -> bool:
    """Answers a line, or carries it out if it is a command; returns False for `/quit`."""
    command = _COMMAND.fullmatch(line)
    match command.groups() if command else ("", None):
        case "quit", None:
            return False
        case "help", None:
            print(textwrap.dedent((__doc__ or "").partition("Commands:\n\n")[2]), end="")
        case "reset", None:
            chat.reset()
        case "why", None:
            print(_explain(chat.reply.details) if chat.reply else "there is no answer yet")
        case "tools", ("on" | "off") as tools:
            chat.set_tools(tools)
        case "save", str(file):
            chat.save(file)
        case "", None:
            if line.strip():
                _answer(chat, line)
        case _:
            raise ParamError(f"there is no command {line.strip()!r:.80}: /help shows all")
    return True


def _answer(chat: Chat, text: str) -> None:
    """Prints the model's answer to a text while it is decoded.

    After an interrupt, the part that was printed stays.
    """
    with contextlib.closing(chat.stream(text)) as pieces:
        for piece in pieces:
            if piece:
                print(escape_text(piece), end="", flush=True)
    print(flush=True)


def _explain(details: Mapping[str, Any]) -> str:
    """Returns the details of an answer as text, for `/why`.

    A value is one line, a list of pairs a paragraph, and a list of dicts a table.
    """
    lines: list[str] = []
    for name, value in details.items():
        if not isinstance(value, Sequence) or isinstance(value, str):
            lines.append(f"{name}: {value}")
            continue
        lines.append(f"{name}:")
        if value and isinstance(value[0], Mapping):
            lines += _table(value)
        else:
            text = ", ".join(" ".join(map(str, pair)) for pair in value) or "none"
            indent = "  "
            lines += textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    return "\n".join(map(escape_controls, lines))


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the lines of a table with a header; each column is as wide as its longest cell."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_cell(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  " + "  ".join(map(str.ljust, row, widths)).rstrip().replace("\n", " ") for row in cells
    ]


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
