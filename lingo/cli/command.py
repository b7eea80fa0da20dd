"""A verb's command line: its own absl flags, read strictly, and the help that shows them.

Each file in `verbs` is one verb: its docstring is its help, `WORD` the word it takes, `define` its
flags, `run` what it does.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import itertools
import re
from collections.abc import Sequence
from typing import Any, Protocol

from absl import flags

from lingo.config.params import ParamError

MAX_SUGGESTIONS = 3

_REFUSED = re.compile(r"--?(undefok(=.*)?|flagfile=)", re.DOTALL)
_FLAG = re.compile(r"--?([a-zA-Z][\w-]*)")


class UsageError(ParamError):
    """A command line that asks for nothing that can be done."""


class Verb(Protocol):
    """What the module of a verb has.

    Attributes:
        WORD: the word beside the flags, for the usage line: "" for none, "[word]" if it may be
            left out.
    """

    __doc__: str | None
    WORD: str

    def define(self, values: flags.FlagValues) -> None:
        """Defines the verb's flags."""
        ...

    def run(self, values: flags.FlagValues, word: str) -> int:
        """Does what the verb says and returns the exit code."""
        ...


def new_flags(verb: Verb) -> flags.FlagValues:
    """Returns the flags of a verb, none of them read yet."""
    values = flags.FlagValues()
    values.set_gnu_getopt()
    verb.define(values)
    boolean("traceback", "Show where in the code an error comes from.", values)
    return values


def read(name: str, verb: Verb, arguments: Sequence[str]) -> tuple[flags.FlagValues, str]:
    """Reads a command line.

    Args:
        name: of the verb.
        verb: its module.
        arguments: what follows the verb.

    Returns:
        The flags, and the word beside them or "".

    Raises:
        UsageError: for everything that absl refuses, and for repeated flags, `--undefok`, and words
            that the verb does not take.
    """
    values = new_flags(verb)
    try:
        _, *words = values([name, *_underscored(_expanded(arguments, values), values)])
    except flags.UnrecognizedFlagError as error:
        raise UsageError(_unknown_flag(error.flagname, values)) from None
    except flags.Error as error:
        raise UsageError(f"{str(error).removeprefix('ERROR:: ')}.") from None
    if empty := next((flag for flag in values if "" in _texts(values[flag])), None):
        raise UsageError(f"--{empty} has no value.")
    return values, _word(name, verb, words, values)


def _texts(flag: flags.Flag) -> list[Any]:
    return flag.value if isinstance(flag.value, list) else [flag.value]


def _expanded(arguments: Sequence[str], values: flags.FlagValues) -> list[str]:
    """Returns a command line with the lines of flag files in the place of each `--flagfile`."""
    try:
        with contextlib.redirect_stderr(io.StringIO()) as warnings:
            expanded = values.read_flags_from_files(list(arguments), force_gnu=True)
    except UnicodeDecodeError:
        raise UsageError("the file that --flagfile names is no text.") from None
    if warnings.getvalue():
        raise UsageError("a flag file leads to itself by --flagfile.")
    for argument in (*arguments, *expanded):
        if _REFUSED.fullmatch(argument):
            raise UsageError(f"{argument} would hide a mistake: leave it out.")
    return expanded


def _underscored(arguments: Sequence[str], values: flags.FlagValues) -> list[str]:
    """Returns a command line with `_` for `-` in the names of flags, not in values or words."""
    written: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        name = _FLAG.match(argument)
        if argument == "--":  # words only from here on
            written += [argument, *remaining]
        elif name is None:
            written.append(argument)
        else:
            flag, rest = name[1].replace("-", "_"), argument[name.end() :]
            written.append(f"--{flag}{rest}")
            if not rest and flag in values and not values[flag].boolean:
                written += itertools.islice(remaining, 1)  # its value
    return written


def _unknown_flag(name: str, values: flags.FlagValues) -> str:
    there = [f"--{flag}" for flag in values]
    close = difflib.get_close_matches(f"--{name}", there, MAX_SUGGESTIONS, 0.7)
    meant = f" Did you mean {' or '.join(close)}?" if close else ""
    return f"there is no flag --{name}.{meant}\nFlags: {', '.join(sorted(there))}."


def _word(name: str, verb: Verb, words: Sequence[str], values: flags.FlagValues) -> str:
    if len(words) > bool(verb.WORD):
        stray = words[bool(verb.WORD)]
        after = f" after {verb.WORD}" if verb.WORD else ""
        dashes = "--" if stray.partition("=")[0] in values else "--set="
        meant = f" Did you mean {dashes}{stray}?" if "=" in stray else ""
        raise UsageError(f"{stray!r} is one word too many: {name} takes flags only{after}.{meant}")
    if not any(words) and verb.WORD and not verb.WORD.startswith("["):
        raise UsageError(f"{name} needs a word: {usage(name, verb)}")
    return words[0] if words else ""


# ---- flags -------------------------------------------------------------------------------------


def string(name: str, help: str, values: flags.FlagValues) -> None:
    """Defines a flag that may be given once."""
    flags.DEFINE_string(name, None, help, flag_values=values, allow_overwrite=False)


def strings(name: str, help: str, values: flags.FlagValues) -> None:
    """Defines a flag that may be repeated."""
    flags.DEFINE_multi_string(name, [], help, flag_values=values)


def integer(name: str, help: str, values: flags.FlagValues, **limits: Any) -> None:
    """Defines a flag for a whole number."""
    flags.DEFINE_integer(name, None, help, flag_values=values, allow_overwrite=False, **limits)


def number(name: str, help: str, values: flags.FlagValues, **limits: Any) -> None:
    """Defines a flag for a number."""
    flags.DEFINE_float(name, None, help, flag_values=values, allow_overwrite=False, **limits)


def boolean(name: str, help: str, values: flags.FlagValues) -> None:
    """Defines a switch that is off unless given."""
    flags.DEFINE_boolean(name, False, help, flag_values=values, allow_overwrite=False)


def count(name: str, help: str, values: flags.FlagValues) -> None:
    """Defines a switch that may have a positive number, `--name` or `--name=3`; None unless given.

    Without the number it is 1.
    """
    flags.DEFINE_flag(_Count(name, help), values)


class _CountParser(flags.ArgumentParser):
    """Reads the number of a `_Count`."""

    def parse(self, argument: Any) -> int | None:
        text = {"true": "1", "false": ""}.get(argument, argument)
        if not text:
            return None
        if not text.isascii() or not text.isdigit() or not int(text):
            raise ValueError(f"{argument!r} is no positive number")
        return int(text)


class _Count(flags.Flag):
    """A flag whose number may be left out, which absl allows of switches only."""

    def __init__(self, name: str, help: str) -> None:
        parser = _CountParser()
        super().__init__(parser, None, name, None, help, boolean=True, allow_overwrite=False)


def choice(name: str, choices: Sequence[str], help: str, values: flags.FlagValues) -> None:
    """Defines a flag for one of some words, the first unless given."""
    flags.DEFINE_enum(
        name, choices[0], list(choices), help, flag_values=values, allow_overwrite=False
    )


# ---- help --------------------------------------------------------------------------------------


def usage(name: str, verb: Verb) -> str:
    """Returns the line that shows how a verb is called."""
    return " ".join(part for part in ("lingo", name, verb.WORD, "[--flags]") if part)


def help_text(name: str, verb: Verb) -> str:
    """Returns what `lingo VERB --help` prints: what it does, examples, flags with defaults."""
    values = new_flags(verb)
    shown = [_shown(values[flag]) for flag in sorted(values)]
    shown.append(("--flagfile=FILE", "A file with more flags, one a line."))
    width = max(len(left) for left, _ in shown)
    table = "\n".join(f"  {left:{width}}  {right}" for left, right in shown)
    return f"usage: {usage(name, verb)}\n\n{(verb.__doc__ or '').strip()}\n\nflags:\n{table}\n"


def _shown(flag: flags.Flag) -> tuple[str, str]:
    """Returns a flag and its description."""
    if isinstance(flag, _Count):
        return f"--{flag.name}[=N]", flag.help or ""
    if flag.boolean:
        return f"--{flag.name}", f"{flag.help} (default: off)"
    choices = getattr(flag.parser, "enum_values", None)
    form = "|".join(choices) if choices else flag.name.upper()
    if isinstance(flag, flags.MultiFlag):
        help, _, _ = (flag.help or "").partition(";\n")  # absl explains what "repeatable" says
        return f"--{flag.name}={form}", f"{help} (repeatable)"
    default = f" (default: {flag.default})" if flag.default is not None else ""
    return f"--{flag.name}={form}", f"{flag.help}{default}"
