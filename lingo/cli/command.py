"""The command line of a verb, a file in `verbs`: its own absl flags, strict parsing, and help."""

from __future__ import annotations

import difflib
import itertools
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from absl import flags

from lingo.config import regular_file
from lingo.config.errors import ParamError
from lingo.config.roots import roots
from lingo.config.roots.roots import Roots
from lingo.config.synonyms import synonyms
from lingo.storage.files import refuse_address

MAX_SUGGESTIONS = 3
MAX_FLAG_CHARACTERS = 80
MAX_FLAG_FILE_BYTES = 2**20  # of all flag files, each as often as it is named

_REFUSED = re.compile(r"--?undefok(=.*)?", re.DOTALL)
_FLAG_FILE = re.compile(r"--?flagfile(=(.*))?", re.DOTALL)
_DASHES = "-\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}"  # word processors put these for hyphens
_INNER = "--"
_EXPERIMENT = re.compile(r"[A-Za-z][\w./-]*(:\w+)?(\(.*\))?")
_PATHS = {  # of parameters that other programs have flags for
    "learning_rate": "optimizer.learning_rate",
    "weight_decay": "optimizer.weight_decay",
    "max_grad_norm": "optimizer.max_grad_norm",
    "batch_size": "train_input.batch_size",
    "dtype": "task.dtype",
    "patience": "evaluate.patience",
}
_NO_PATHS = {"exp", "only", "prompt", "set", "source", "sweep"}  # flags that may have `://` inside
_FLAG = re.compile(r"--?([a-zA-Z][\w-]*)")


class UsageError(ParamError):
    """A command line is not valid."""


class Verb(Protocol):
    """The interface of a verb's module; its docstring is the help.

    `WORD` is the word beside the flags, for the usage line: "" for none, "[word]" if it is
    optional, "-- words" for a command line of its own, which `run` gets quoted as for a shell.
    """

    __doc__: str | None
    WORD: str

    def define(self, values: flags.FlagValues) -> None:
        """Defines the verb's flags."""
        ...

    def run(self, values: flags.FlagValues, word: str) -> int:
        """Runs the verb and returns the exit code."""
        ...


def new_flags(verb: Verb) -> flags.FlagValues:
    """Returns the flags of a verb, before any is read."""
    values = flags.FlagValues()
    values.set_gnu_getopt()
    verb.define(values)
    boolean("traceback", "Show where in the code an error comes from.", values)
    strings("flagfile", "A file with more flags, one a line.", values)
    return values


def read(name: str, verb: Verb, arguments: Sequence[str]) -> tuple[flags.FlagValues, str]:
    """Reads the arguments after a verb; returns the flags, and the word beside them or "".

    Raises UsageError also for repeated flags and `--undefok`, which absl accepts.
    """
    values = new_flags(verb)
    arguments, inner = _split(name, verb, arguments)
    written = [list(part) for part in _scan(list(_expand(arguments)), values)]
    for flag in (part[0].partition("=")[0] for part in written):
        if flag.startswith("--") and len(flag) > MAX_FLAG_CHARACTERS:
            # absl's search for a similar one would take too long
            raise UsageError(_unknown_flag(f"{flag[2:MAX_FLAG_CHARACTERS]}...", values))
    try:
        _, *words = values([name, *itertools.chain.from_iterable(written)])
    except flags.UnrecognizedFlagError as error:
        value = str(error.flagvalue).partition("=")[2]
        raise UsageError(_unknown_flag(error.flagname, values, value)) from None
    except (flags.Error, ValueError) as error:  # ValueError: from --noswitch=value
        raise UsageError(_absl_message(error)) from None
    if empty := next((flag for flag in values if "" in _texts(values[flag])), None):
        raise UsageError(f"--{empty} has no value")
    for flag in {*values} - _NO_PATHS:
        for text in _texts(values[flag]):
            if isinstance(text, str):
                refuse_address(text)
    values.flagfile = _flag_files(arguments)
    word = _word(name, verb, words, values)
    return values, shlex.join(inner) if inner else word


def _split(name: str, verb: Verb, arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Returns the arguments before and after `--`; () after, if the verb takes no command."""
    if not verb.WORD.startswith(_INNER):
        return arguments, ()
    end = arguments.index(_INNER) if _INNER in arguments else len(arguments)
    if not (inner := arguments[end + 1 :]):
        raise UsageError(f"{name} needs a command after --: {usage(name, verb)}")
    return arguments[:end], inner


def _scan(arguments: Sequence[str], values: flags.FlagValues) -> Iterator[tuple[str, ...]]:
    """Yields each flag with its value, `_` for `-` in its name; each word; `--` with the rest."""
    remaining = iter(arguments)
    for argument in remaining:
        name = _FLAG.match(argument)
        if argument == "--":
            yield argument, *remaining
        elif name is None:
            yield (argument,)
        else:
            flag, rest = name[1].replace("-", "_"), argument[name.end() :]
            takes_next = not rest and flag in values and not values[flag].boolean
            yield f"--{flag}{rest}", *itertools.islice(remaining, int(takes_next))


def _absl_message(error: Exception) -> str:
    """Returns absl's error as a sentence; absl prints some of them as tuples."""
    text = re.sub(r"(\d{40})\d+", r"\1...", str(error).removeprefix("ERROR:: "))
    text = re.sub(r"Exceeds the limit .*", "has too many digits", text)
    text = re.sub(r"invalid literal for int.*: ('.*')", r"\1 is not a whole number", text)
    text = re.sub(r"could not convert string to float: ('.*')", r"\1 is not a number", text)
    return re.sub(r"\('Non-boolean argument to boolean flag', .*\)", "write true or false", text)


def _texts(flag: flags.Flag) -> list[Any]:
    return flag.value if isinstance(flag.value, list) else [flag.value]


def _expand(arguments: Sequence[str]) -> Iterator[str]:
    """Yields a command line in which the lines of the file replace each `--flagfile`."""
    waiting, size = list(reversed(arguments)), 0
    while waiting:
        argument = waiting.pop()
        if _REFUSED.fullmatch(argument):
            raise UsageError(f"{argument} would hide a mistake: leave it out")
        if match := _FLAG_FILE.fullmatch(argument):
            file = match[2] if match[1] else waiting.pop() if waiting else ""
            content = _read_flag_file(file)
            size += len(content) + 1
            if size > MAX_FLAG_FILE_BYTES:
                raise UsageError(
                    f"the flag files up to {file} are larger than {MAX_FLAG_FILE_BYTES >> 20} MiB"
                    " in all: perhaps one leads to itself"
                )
            waiting += reversed(_flag_lines(file, content))
            continue
        yield argument
        if argument == "--":
            yield from reversed(waiting)
            return


def _flag_files(arguments: Sequence[str]) -> list[str]:
    """Returns the flag files that a command line names, without those named in flag files."""
    pairs = itertools.zip_longest(arguments, arguments[1:], fillvalue="")
    named = [(_FLAG_FILE.fullmatch(argument), after) for argument, after in pairs]
    return [match[2] if match[1] else after for match, after in named if match]


def _read_flag_file(file: str) -> bytes:
    if not file:
        raise UsageError("--flagfile has no value")
    try:
        return regular_file.read(file, max_bytes=MAX_FLAG_FILE_BYTES)
    except OSError as error:
        raise UsageError(f"--flagfile={file} cannot be read: {error.strerror}") from None


def _flag_lines(file: str, content: bytes) -> list[str]:
    """Returns the flags in a flag file: one per line, without empty lines and comments."""
    try:
        lines = [line.strip() for line in content.decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise UsageError(f"--flagfile={file} is not text: byte {error.start}") from None
    flags_in_file: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line or line.startswith("#"):
            continue
        if "\0" in line:
            raise UsageError(f"{file}:{number} is not text: it has a zero byte")
        if not line.startswith("-"):
            raise UsageError(f"{file}:{number}: {line!r:.80} is not a flag: write --name=value")
        flags_in_file.append(line)
    return flags_in_file


def _unknown_flag(name: str, values: flags.FlagValues, value: str = "") -> str:
    known = [f"--{flag}" for flag in values]
    close = [f"--{flag}" for flag in synonyms(name) if flag in values][:1]
    if not close and {"exp", "set"} <= {*values} and (override := _override(name, value)):
        close = [f"--set={override}"]
    if not close:
        close = difflib.get_close_matches(f"--{name.lower()}", known, MAX_SUGGESTIONS, 0.7)
    meant = f" Did you mean {' or '.join(close)}?" if close else ""
    return f"there is no flag --{name}.{meant}\nFlags: {', '.join(sorted(known))}."


def _flag_of_word(word: str, values: flags.FlagValues) -> str:
    """Returns the flag that a word beside the flags is for, `--exp=`, or ""."""
    if "prompt" in values:
        return "--prompt=" if " " not in word else ""
    if not _EXPERIMENT.fullmatch(word):
        return ""
    names = ("run", "exp") if os.path.isdir(word) or "exp" not in values else ("exp",)
    return next((f"--{name}=" for name in names if name in values), "")


def _override(name: str, value: str) -> str:
    """Returns the override of the parameter that a flag of another program sets, or ""."""
    from lingo.config.params import fields  # slow
    from lingo.contract import Experiment

    if "." in name:
        return f"{name}={value}"
    for word in (name, *synonyms(name)):
        if word in ("float16", "bfloat16", "float32"):
            return f"task.dtype={word}"
        path = _PATHS.get(word, word if word in fields(Experiment) else "")
        if path:
            return f"{path}={value}"
    return ""


def _word(name: str, verb: Verb, words: Sequence[str], values: flags.FlagValues) -> str:
    allowed = bool(verb.WORD) and not verb.WORD.startswith(_INNER)
    if len(words) > allowed:
        stray = words[allowed]
        after = f" after {verb.WORD}" if verb.WORD else ""
        bare = stray.lstrip(_DASHES)
        if "=" in bare:
            flag = "--" if bare.partition("=")[0] in values else "--set="
        else:
            flag = _flag_of_word(stray, values)
        meant = f" Did you mean {flag}{bare}?" if flag else ""
        raise UsageError(f"{stray!r} is one word too many: {name} takes flags only{after}.{meant}")
    if not any(words) and allowed and not verb.WORD.startswith("["):
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
    """Defines a switch with an optional number, `--name` (1) or `--name=3`; None if not given."""

    def convert(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not int(text):
            raise ValueError(f"{text!r} is not a positive number")
        return int(text)

    flags.DEFINE_flag(_Switch(name, help, _OptionalParser("1", convert), "N"), values)


def switch(name: str, choices: Sequence[str], help: str, values: flags.FlagValues) -> None:
    """Defines a switch with an optional word, the first if left out; None if it is not given."""
    form = "|".join(choices)

    def convert(text: str) -> str:
        if text not in choices:
            raise ValueError(f"value should be one of {form}")
        return text

    flags.DEFINE_flag(_Switch(name, help, _OptionalParser(choices[0], convert), form), values)


class _OptionalParser(flags.ArgumentParser):
    def __init__(self, default: str, convert: Callable[[str], Any]) -> None:
        self._default, self._convert = default, convert

    def parse(self, argument: Any) -> Any:
        text = {"true": self._default, "false": ""}.get(argument, argument)
        return self._convert(text) if text else None


class _Switch(flags.Flag):
    """A flag with an optional value, which absl allows for boolean flags only."""

    def __init__(self, name: str, help: str, parser: flags.ArgumentParser, form: str) -> None:
        self.form = form  # of the value, for the help
        super().__init__(parser, None, name, None, help, boolean=True, allow_overwrite=False)


def choice(name: str, choices: Sequence[str], help: str, values: flags.FlagValues) -> None:
    """Defines a flag for one of some words; the first is the default."""
    flags.DEFINE_enum(
        name, choices[0], list(choices), help, flag_values=values, allow_overwrite=False
    )


def define_params_dir(values: flags.FlagValues) -> None:
    """Defines the flag that adds a directory of experiments."""
    strings("params_dir", "A further directory of experiments.", values)


def find_roots(values: flags.FlagValues) -> Roots:
    """Returns the roots of experiments and classes, with those of `--params_dir`."""
    return roots.find(values.params_dir)


def refuse_other_flags(values: flags.FlagValues, names: Sequence[str], why: str) -> None:
    """Raises UsageError, which says why, if flags are given beside some and those of all verbs."""
    known = (*names, "traceback", "flagfile")
    if others := sorted(name for name in values if values[name].present and name not in known):
        raise UsageError(f"{why}: leave out {', '.join(f'--{name}' for name in others)}")


# ---- help --------------------------------------------------------------------------------------


def usage(name: str, verb: Verb) -> str:
    """Returns the usage line of a verb."""
    parts = ("lingo", name, verb.WORD, "[--flags]")
    if verb.WORD.startswith(_INNER):
        parts = ("lingo", name, "[--flags]", verb.WORD)
    return " ".join(part for part in parts if part)


def help_text(name: str, verb: Verb) -> str:
    """Returns the text of `lingo VERB --help`: description, examples, flags with defaults."""
    values = new_flags(verb)
    shown = [_describe_flag(values[flag]) for flag in sorted(values)]
    width = max(len(left) for left, _ in shown)
    table = "\n".join(f"  {left:{width}}  {right}" for left, right in shown)
    return f"usage: {usage(name, verb)}\n\n{(verb.__doc__ or '').strip()}\n\nflags:\n{table}\n"


def _describe_flag(flag: flags.Flag) -> tuple[str, str]:
    if isinstance(flag, _Switch):
        return f"--{flag.name}[={flag.form}]", flag.help or ""
    if flag.boolean:
        return f"--{flag.name}", f"{flag.help} (default: off)"
    choices = getattr(flag.parser, "enum_values", None)
    form = "|".join(choices) if choices else flag.name.upper()
    if isinstance(flag, flags.MultiFlag):
        help, _, _ = (flag.help or "").partition(";\n")  # drops absl's explanation
        return f"--{flag.name}={form}", f"{help} (repeatable)"
    default = f" (default: {flag.default})" if flag.default is not None else ""
    return f"--{flag.name}={form}", f"{flag.help}{default}"
