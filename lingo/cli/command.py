"""Reads the command line of a verb, a module in `verbs`: defines flags, parses them, shows help."""

from __future__ import annotations

import difflib
import itertools
import os
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from absl import flags

from lingo.cli import buckets
from lingo.config.base import regular_file
from lingo.config.base.errors import ParamError
from lingo.config.base.synonyms import synonyms
from lingo.config.options import (
    INNER,
    Declaration,
    declarations,
    option,
    option_class,
    word_field,
)
from lingo.config.roots import roots
from lingo.config.roots.roots import Roots
from lingo.storage.files import refuse_address

MAX_SUGGESTIONS = 3
MAX_FLAG_CHARACTERS = 80
MAX_FLAG_FILE_BYTES = 2**20  # of all flag files together; a file that is named twice counts twice

_REFUSED = re.compile(r"--?undefok(=.*)?", re.DOTALL)
_FLAG_FILE = re.compile(r"--?flagfile(=(.*))?", re.DOTALL)
_DASHES = "-\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}"  # word processors replace hyphens by these
_EXPERIMENT = re.compile(r"[A-Za-z][\w./-]*(:\w+)?(\(.*\))?")
_PATHS = {  # a flag of other programs -> the path of lingo's parameter
    "learning_rate": "optimizer.learning_rate",
    "weight_decay": "optimizer.weight_decay",
    "max_grad_norm": "optimizer.max_grad_norm",
    "batch_size": "train_input.batch_size",
    "dtype": "task.dtype",
    "patience": "evaluate.patience",
}
_EPOCHS = "To train for three epochs: --set=max_steps=None --set=max_epochs=3."
_DEVICES = "One device is used; several are, for example, --set='runtime=Mesh(data=2)'."
_RESUME = "The same command goes on where the run in --logdir has stopped."
_START = "To begin with other weights: --set='init_from=WarmStart(path=RUN)'."
_ANEW = "No run is overwritten: name another --logdir, or remove the folder."
_ADVICE = {  # a flag of other programs without a like parameter in lingo -> what to do instead
    **dict.fromkeys(("epochs", "max_epochs", "num_epochs", "num_train_epochs"), _EPOCHS),
    **dict.fromkeys(("gpus", "num_gpus", "n_gpus", "device", "distributed", "strategy"), _DEVICES),
    **dict.fromkeys(("resume", "continue", "resume_from_checkpoint"), _RESUME),
    **dict.fromkeys(("checkpoint", "ckpt", "ckpt_path", "pretrained", "load_from"), _START),
    **dict.fromkeys(("overwrite", "restart", "force", "overwrite_output_dir"), _ANEW),
}
_NO_PATHS = {"exp", "only", "prompt", "set", "source", "sweep"}  # their values may contain `://`
_DATA = {"input", "images", "classes"}  # data, which may be in buckets and on web servers
_FLAG = re.compile(r"--?([a-zA-Z][\w-]*)")


class UsageError(ParamError):
    """A command line is not valid."""


@option_class
class VerbOptions:
    """The options that every verb has; a verb's own options are declared in a subclass."""

    traceback: bool = option("Show where in the code an error comes from.", default=False)
    flagfile: Sequence[str] = option("A file with more flags, one per line.", default=())
    flag_names: frozenset[str] = frozenset()  # the names of all flags on the command line

    def refuse_others(self, names: Sequence[str], why: str) -> None:
        """Raises UsageError, with the reason `why`, for flags except `names` and --traceback."""
        if extra := sorted(self.flag_names - {*names, "traceback"}):
            raise UsageError(f"{why}: leave out {', '.join(f'--{name}' for name in extra)}")


@option_class
class RootOptions(VerbOptions):
    """The option of verbs that look up experiments and classes by name."""

    params_dir: Sequence[str] = option("A further directory of experiments.", default=())

    def roots(self) -> Roots:
        """Returns the directories of experiments and classes, including `--params_dir`."""
        return roots.find(self.params_dir)


@option_class
class FormatOptions(VerbOptions):
    """The option of verbs that print their result for people or for programs."""

    format: Literal["text", "json"] = option("How to print the result.", default="text")

    @property
    def as_json(self) -> bool:
        return self.format == "json"


class Verb(Protocol):
    """The interface of a verb's module, whose docstring is the text of `lingo VERB --help`."""

    __doc__: str | None
    Options: type[VerbOptions]

    def run(self, options: Any) -> int:
        """Runs the verb with an instance of `Options`, and returns the exit code."""
        ...


def read(name: str, verb: Verb, arguments: Sequence[str]) -> Any:
    """Parses the arguments after a verb's name; returns an instance of the verb's `Options`.

    Raises UsageError for mistakes, also for repeated flags and `--undefok`, which absl accepts.
    """
    values, (field, form) = _new_flags(verb.Options), word_field(verb.Options)
    inner_field, inner_form = word_field(verb.Options, inner=True)
    arguments, inner = _split(inner_form, arguments)
    usage = _usage(name, verb.Options)
    hint = f"\nA command and its flags stand after --: {usage}" if inner_field and not inner else ""
    written = [list(part) for part in _scan(list(_expand(arguments)), values)]
    for flag in (part[0].partition("=")[0] for part in written):
        if flag.startswith("--") and len(flag) > MAX_FLAG_CHARACTERS:
            # for so long a name, absl's search for a similar flag would take too long
            raise UsageError(_unknown_flag(f"{flag[2:MAX_FLAG_CHARACTERS]}...", values))
    try:
        _, *words = values([name, *itertools.chain.from_iterable(written)])
    except flags.UnrecognizedFlagError as error:
        value = str(error.flagvalue).partition("=")[2]
        raise UsageError(_unknown_flag(error.flagname, values, value) + hint) from None
    except (flags.Error, ValueError) as error:  # ValueError: from --noswitch=value
        raise UsageError(_absl_message(error)) from None
    if empty := next((flag for flag in values if "" in _texts(values[flag])), None):
        raise UsageError(f"--{empty} has no value")
    for flag in values:
        values[flag].value = buckets.local(name, flag, values[flag].value)
    for flag in {*values} - _NO_PATHS - _DATA:
        for text in _texts(values[flag]):
            if isinstance(text, str):
                refuse_address(text)
    values.flagfile = _flag_files(arguments)
    options: dict[str, Any] = {}
    for declared in declarations(verb.Options):
        value = values[declared.flag].value
        options[declared.field] = tuple(value) if isinstance(value, list) else value
    single = _word(name, "" if inner else form, words, values, usage=usage)
    if field:
        options[field] = buckets.local(name, field, single)
    if inner_field:
        options[inner_field] = tuple(inner)
        if not inner and not single:
            raise UsageError(f"{name} needs a command after --: {usage}")
    return verb.Options(**options, flag_names=frozenset(f for f in values if values[f].present))


def new_output(path: str, kind: str) -> Path:
    """Returns `--output`, a new file or folder (`kind`); raises UsageError if it exists."""
    output = Path(path)
    if os.path.lexists(output):
        raise UsageError(f"--output={output} exists: name another {kind}, or remove it")
    if not output.parent.is_dir():
        raise UsageError(f"--output={output}: there is no directory {output.parent}")
    return output


def arguments(options: VerbOptions, fields: Sequence[str]) -> list[str]:
    """Returns the command-line flags for those options in `fields` that are not the defaults."""
    known = {declared.field: declared for declared in declarations(type(options))}
    given: list[str] = []
    for field in fields:
        flag, value = known[field].flag, getattr(options, field)
        if value != known[field].option.default:
            texts = value if isinstance(value, tuple | list) else (value,)
            given += [f"--{flag}" if text is True else f"--{flag}={text}" for text in texts]
    return given


def _split(form: str, arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Splits arguments at `--`: (before, after). Nothing is after it if a verb takes no command."""
    end = arguments.index(INNER) if form and INNER in arguments else len(arguments)
    return arguments[:end], arguments[end + 1 :]


def _scan(arguments: Sequence[str], values: flags.FlagValues) -> Iterator[tuple[str, ...]]:
    """Yields the parts of a command line, each as a tuple of its arguments.

    A part is a flag with its value, a word, or `--` with all arguments after it. In a flag's name,
    `-` is replaced by `_`.
    """
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
    """Returns the message of absl's error as a sentence, since absl prints some as tuples."""
    text = re.sub(r"(\d{40})\d+", r"\1...", str(error).removeprefix("ERROR:: "))
    text = re.sub(r"Exceeds the limit .*", "has too many digits", text)
    text = text.replace(": is not a step", " is not a step")
    text = re.sub(r"invalid literal for int.*: ('.*')", r"\1 is not a whole number", text)
    text = re.sub(r"could not convert string to float: ('.*')", r"\1 is not a number", text)
    return re.sub(r"\('Non-boolean argument to boolean flag', .*\)", "write true or false", text)


def _texts(flag: flags.Flag) -> list[Any]:
    return flag.value if isinstance(flag.value, list) else [flag.value]


def _expand(arguments: Sequence[str]) -> Iterator[str]:
    """Yields a command line's arguments, with each `--flagfile` replaced by its file's lines."""
    # absl is not used for this: it would read files without a limit, even pipes, it would skip a
    # file that includes itself, and its errors would name neither file nor line.
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
                    " together: perhaps a file includes itself"
                )
            waiting += reversed([*_flag_lines(file, content)])
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


def _flag_lines(file: str, content: bytes) -> Iterator[str]:
    """Yields the flags in a flag file, which has one per line, empty lines and comments."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"--flagfile={file} is not text: byte {error.start}") from None
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if "\0" in line:
            raise UsageError(f"{file}:{number} is not text: it has a zero byte")
        if line.startswith("-"):
            yield line
        elif line and not line.startswith("#"):
            raise UsageError(f"{file}:{number}: {line!r:.80} is not a flag: write --name=value")


def _unknown_flag(name: str, values: flags.FlagValues, value: str = "") -> str:
    known = [f"--{flag}" for flag in values]
    if "logdir" in values and (advice := _ADVICE.get(name.lower())):
        return f"there is no flag --{name}. {advice}\nFlags: {', '.join(sorted(known))}."
    close = [f"--{flag}" for flag in synonyms(name) if flag in values][:1]
    if not close and {"exp", "set"} <= {*values} and (override := _override(name, value)):
        close = [f"--set={override}"]
    if not close:
        close = difflib.get_close_matches(f"--{name.lower()}", known, MAX_SUGGESTIONS, 0.7)
    meant = f" Did you mean {' or '.join(close)}?" if close else ""
    return f"there is no flag --{name}.{meant}\nFlags: {', '.join(sorted(known))}."


def _flag_of_word(word: str, values: flags.FlagValues) -> str:
    """Returns the flag that a user probably forgot before a word, such as `--exp=`, or ""."""
    if "prompt" in values:
        return "--prompt=" if " " not in word else ""
    if "from" in values:
        return "--from="
    if "run" in values and os.path.isdir(word):
        return "--run="
    if not _EXPERIMENT.fullmatch(word):
        return ""
    names = ("run", "exp") if os.path.isdir(word) or "exp" not in values else ("exp",)
    return next((f"--{name}=" for name in names if name in values), "")


def _override(name: str, value: str) -> str:
    """Returns the override that does what a flag of another program does, or ""."""
    from lingo.config.params import fields  # slow
    from lingo.contract import Experiment

    if "." in name:
        return f"{name}={value}"
    for word in (name, *synonyms(name)):
        if word in ("float16", "bfloat16", "float32"):
            return f"task.dtype={word}"
        path = _PATHS.get(word, word if word in fields(Experiment) else "")
        if path == _PATHS["dtype"]:
            value = next(iter(synonyms(f"fp{value}" if value in ("16", "32") else value)), value)
        if path:
            return f"{path}={value}"
    return ""


def _word(
    name: str, form: str, words: Sequence[str], values: flags.FlagValues, *, usage: str
) -> str:
    if len(words) > (allowed := bool(form)):
        stray = words[allowed]
        after = f" after {form}" if form else ""
        bare = stray.lstrip(_DASHES)
        if "=" in bare:
            flag = "--" if bare.partition("=")[0] in values else "--set="
        else:
            flag = _flag_of_word(stray, values)
        meant = f" Did you mean {flag}{bare}?" if flag else ""
        raise UsageError(f"{stray!r} is one word too many: {name} takes flags only{after}.{meant}")
    if not any(words) and allowed and not form.startswith("["):
        raise UsageError(f"{name} needs a word: {usage}")
    return words[0] if words else ""


# ---- flags -------------------------------------------------------------------------------------


def _new_flags(cls: type[VerbOptions]) -> flags.FlagValues:
    """Returns absl flags for all options of an option class, before arguments are parsed."""
    values = flags.FlagValues()
    values.set_gnu_getopt()
    for declared in declarations(cls):
        _define(declared, values)
    return values


def _define(declared: Declaration, values: flags.FlagValues) -> None:
    """Defines the absl flag of an option in `values`; the field's type decides the flag's kind."""
    name, given = declared.flag, declared.option
    types, choices, default, text = declared.types, declared.choices, given.default, given.help
    own = {"flag_values": values, "allow_overwrite": False}
    limits = {"lower_bound": given.minimum, "upper_bound": given.maximum}
    if given.switch_value is not None:
        parser = _Parser(lambda text: _read_switch(text, choices, given.switch_value))
        flags.DEFINE_flag(_Switch(parser, None, name, None, text), values)
    elif _is_repeatable(declared):
        flags.DEFINE_multi_string(name, [], text, flag_values=values)
    elif choices and int in types:
        flags.DEFINE(_Parser(lambda text: _read_step(text, choices)), name, None, text, **own)
    elif choices:
        flags.DEFINE_enum(name, default, choices, text, **own)
    elif bool in types:
        flags.DEFINE_boolean(name, default, text, **own)
    elif int in types:
        flags.DEFINE_integer(name, default, text, **limits, **own)
    elif float in types:
        flags.DEFINE_float(name, default, text, **limits, **own)
    else:
        flags.DEFINE_string(name, default, text, **own)


class _Parser(flags.ArgumentParser):
    """An absl parser that calls a function."""

    def __init__(self, read: Callable[[str], Any]) -> None:
        self._read = read

    def parse(self, argument: Any) -> Any:
        return self._read(argument)


def _read_step(text: str, words: Sequence[str]) -> int | str:
    """Returns the step in the value of a flag: a number, or one of `words` such as "best"."""
    if text in words:
        return text
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise ValueError(f"is not a step: a number, or {' or '.join(words)}")
    return int(text)


def _read_switch(text: str, words: Sequence[str], alone: Any) -> Any:
    """Returns a word or number for `--flag=value`, `alone` for `--flag`, None for `--noflag`."""
    if text in ("true", "false", ""):
        return alone if text == "true" else None
    if words and text not in words:
        raise ValueError(f"value should be one of {'|'.join(words)}")
    if words:
        return text
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ValueError(f"{text!r} is not a positive number")
    return int(text)


class _Switch(flags.Flag):
    """A flag with an optional value, which absl allows for boolean flags only."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, boolean=True, allow_overwrite=False)


def _is_repeatable(declared: Declaration) -> bool:
    return typing.get_origin(declared.hint) is Sequence


# ---- help --------------------------------------------------------------------------------------


def _usage(name: str, cls: type[VerbOptions]) -> str:
    """Returns the usage line of a verb with its positional arguments."""
    (_, form), (_, inner) = word_field(cls), word_field(cls, inner=True)
    return " ".join(part for part in ("lingo", name, form, "[--flags]", inner) if part)


def help_text(name: str, verb: Verb) -> str:
    """Returns the text of `lingo VERB --help`: usage, description, examples and flags."""
    shown = sorted(map(_describe_flag, declarations(verb.Options)))
    width = max(len(left) for left, _ in shown)
    table = "\n".join(f"  {left:{width}}  {right}" for left, right in shown)
    text = (verb.__doc__ or "").strip()
    return f"usage: {_usage(name, verb.Options)}\n\n{text}\n\nflags:\n{table}\n"


def _describe_flag(declared: Declaration) -> tuple[str, str]:
    name, given, form = declared.flag, declared.option, "|".join(declared.choices)
    if given.switch_value is not None:
        return f"--{name}[={form or 'N'}]", given.help
    if bool in declared.types:
        return f"--{name}", f"{given.help} (default: off)"
    if _is_repeatable(declared):
        return f"--{name}={name.upper()}", f"{given.help} (repeatable)"
    is_word = form and int not in declared.types
    default = "" if given.default is None else f" (default: {given.default})"
    return f"--{name}={form if is_word else name.upper()}", f"{given.help}{default}"
