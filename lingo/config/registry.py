"""The registry of experiments: functions marked `@experiment` in files of the params directories.

Experiments are found by reading files, and only the file of the requested experiment is imported.
The name of an experiment, such as `lm.source.tiny`, is its file's path below the params directory
and its function's name. Any unique ending of the name works. A request has one of these forms:

    tiny                            a name, or its ending
    lm.source.tiny(model_dim=256)   a name with arguments of the function
    my/file.py:tiny(model_dim=256)  a function in any file
"""

from __future__ import annotations

import inspect
import os
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

from lingo.config import override_reader, text
from lingo.config.base import types
from lingo.config.base.errors import Unreadable
from lingo.config.classes import Classes
from lingo.config.experiment_index import Entry, function_line, index, read_entries
from lingo.config.importing import import_file, user_code
from lingo.config.node.copying import deep_copy
from lingo.config.overrides import OverrideResult, apply, parse_template
from lingo.config.params import ParamError, Params, fields, suggest
from lingo.config.roots import roots as roots_
from lingo.config.roots.roots import Roots
from lingo.config.serial import Origin
from lingo.config.trained_files import explain_distrust, is_trusted

F = TypeVar("F", bound=Callable[..., Any])

_FORM = re.compile(
    r"(?P<file>[^(]*\.py(?=:|$|\s*\())?:?(?P<name>[\w.-]*)\s*(?P<arguments>\(.*\))?", re.DOTALL
)
_ARGUMENT = re.compile(r"\s*exp\.(.*)", re.DOTALL)
ARGUMENT = "exp."  # the beginning of overrides of the function's arguments


@overload
def experiment(function: F) -> F: ...


@overload
def experiment(*, minutes: int) -> Callable[[F], F]: ...


def experiment(function: Any = None, *, minutes: int | None = None) -> Any:
    """Marks a function that returns the Params of an experiment, so that the registry finds it.

    `@experiment(minutes=2)` tells `lingo list` that training was measured to take two minutes. The
    file is read, not run, for this number, so it must be a literal.
    """
    del minutes

    def mark(marked: F) -> F:
        return marked

    return mark if function is None else function


class ResolvedExperiment(NamedTuple):
    """A requested experiment, with its overrides applied."""

    params: Params
    origin: Origin
    override_results: list[OverrideResult]  # a result per override of the Params


def get(form: str, overrides: Iterable[str] = (), roots: Roots | None = None) -> ResolvedExperiment:
    """Returns the experiment that a request `form` names, with overrides applied.

    The module's docstring lists the forms. Overrides `exp.argument=value` set arguments of the
    experiment's function, and all others change the Params that it returns. `roots` are by default
    this installation's and the working directory's. Raises ParamError for any mistake in the
    request or an override, and for any error in the experiment's file.
    """
    roots = roots or roots_.find()
    texts = list(overrides)
    match = _FORM.fullmatch(form.strip())
    if not match or not (match["file"] or match["name"]):
        raise ParamError(
            f"{form!r} is not an experiment:"
            " write name, name(argument=value) or file.py:function(argument=value)"
        )
    entry = (
        entry_in_file(Path(match["file"]), match["name"])
        if match["file"]
        else index(roots).find(match["name"])
    )
    function = _open_function(entry, roots)
    arguments = function.arguments(
        match["arguments"] or "", [m[1] for t in texts if (m := _ARGUMENT.fullmatch(t))]
    )
    params = function.call(deep_copy(arguments))
    for override in texts:
        name = override.partition("=")[0]
        if name in function.parameters and name not in fields(params.cls):
            raise ParamError(f"{name} is an argument of {entry.function}: write exp.{override}")
    applied = apply(params, [t for t in texts if not _ARGUMENT.fullmatch(t)], function.classes)
    origin = Origin(
        "" if match["file"] else entry.name,
        str(entry.file),
        entry.function,
        arguments,
        tuple(texts),
    )
    return ResolvedExperiment(params, origin, applied)


def find_changes(
    params: Params,
    origin: Origin,
    roots: Roots | None = None,
    *,
    trust: Iterable[str] | None = None,
) -> list[text.Change]:
    """Returns how an experiment differs from its function's result without arguments and overrides.

    Inherited values are left out.

    Args:
        params: the experiment.
        origin: the experiment's origin: its file and function.
        roots: where the experiment's file may import modules and name classes from.
        trust: files outside the trusted roots that may be imported; None: all may be.

    Raises:
        ParamError: if the experiment has no function, its file may not be imported or cannot be
            read now, or the function needs arguments.
    """
    roots, file = roots or roots_.find(), Path(origin.file)
    if not origin.function:
        raise ParamError("the experiment was made in Python, not by a function marked @experiment")
    is_known = roots_.module_name(file, roots.trusted_roots()) is not None
    if trust is not None and not (is_known or is_trusted(file, trust)):
        raise ParamError(f"{origin.function} is in {file}, {explain_distrust(file)}")
    plain = _open_function(entry_in_file(file, origin.function), roots).call({})
    lines = text.resolve(params)
    inherited = {line.path for line in lines if line.origin not in ("", text.DEFAULT)}
    changes = text.diff(text.resolve(plain), lines)
    return [change for change in changes if change.path not in inherited]


def _open_function(entry: Entry, roots: Roots) -> _Function:
    """Imports an experiment's file, and returns the experiment's function."""
    module = import_file(entry.file, roots)
    return _Function(entry, getattr(module, entry.function), Classes(roots, [module]))


def entry_in_file(file: Path, function: str) -> Entry:
    """Returns the experiment of a function in a file that the user named."""
    if not os.path.isfile(file):
        raise ParamError(f"There is no file {file}")
    entries = {entry.function: entry for entry in read_entries(file.resolve(), [file.stem])}
    if function not in entries:
        if line := function_line(file.resolve(), function):
            raise ParamError(f"{line}: {function} is not marked @experiment")
        there = " or ".join(f"{file}:{name}" for name in entries) or "a function marked @experiment"
        raise ParamError(
            f"{file} has no experiment {function!r}.{suggest(function, entries)} Write {there}."
        )
    return entries[function]


class _Function:
    """An experiment's function, which it calls with arguments read from text."""

    def __init__(self, entry: Entry, function: Callable[..., Any], classes: Classes) -> None:
        self.entry, self.function, self.classes = entry, function, classes
        named = inspect.signature(function).parameters.values()
        self.parameters = {
            p.name: p for p in named if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        }
        with user_code(entry.file):
            self.hints = typing.get_type_hints(function)

    def arguments(self, call: str, overrides: Sequence[str]) -> dict[str, Any]:
        """Returns name -> value from the call's text `(a=1, b=2)` and later overrides `a=1`."""
        try:
            pairs = list(override_reader.parse_call(f"{self.entry.function}{call}")[1].items())
            parts = [override_reader.partition(text, "=") for text in overrides]
        except Unreadable as error:
            raise ParamError(str(error)) from None
        for name, equals, _ in parts:
            if not equals:
                raise ParamError(f"{f'exp.{name}'!r} sets nothing: write exp.argument=value")
        return {
            name: self._read(name, value)
            for name, value in [*pairs, *((n, v) for n, _, v in parts)]
        }

    def call(self, arguments: dict[str, Any]) -> Params:
        missing = [
            n for n, p in self.parameters.items() if p.default is p.empty and n not in arguments
        ]
        if missing:
            name = self.entry.name
            raise ParamError(
                f"{name} needs {' and '.join(missing)}: write {name}({missing[0]}=...)"
            )
        with user_code(self.entry.file):
            params = self.function(**arguments)
        if not isinstance(params, Params):
            raise ParamError(
                f"{self.entry.file}:{self.entry.line}: {self.entry.function} returned"
                f" {params!r:.80}; an experiment returns Params"
            )
        return params

    def _read(self, name: str, value: str) -> Any:
        """Returns the value of an argument from its text, read as the annotated type."""
        if name not in self.parameters:
            raise ParamError(
                f"{self.entry.name} has no argument {name!r}.{suggest(name, self.parameters)}"
                f" Its arguments: {', '.join(self.parameters) or 'none'}."
            )
        hint = self.hints.get(name, Any)
        try:
            types.fitter(hint)
        except TypeError:
            hint = Any
        try:
            return override_reader.read(
                value, hint, lambda inside, hint: parse_template(inside, hint, self.classes, name)
            )
        except Unreadable as error:
            raise ParamError(f"{self.entry.name}: {name} {error}") from None
