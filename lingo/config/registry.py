"""The registry of experiments: functions marked `@experiment` in files of the params directories.

Nothing is registered by running code: files are read, and only the one that is asked for is
imported. The name of an experiment is its file's path below the directory and its function,
`lm.source.tiny`; any unique ending of it works. Asking for one takes these forms:

    tiny                            a name or an ending
    lm.source.tiny(model_dim=256)   with arguments of the function
    my/file.py:tiny(model_dim=256)  from any file
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lingo.config import types
from lingo.config.node.copying import detached
from lingo.config.overrides import overrides as overrides_
from lingo.config.overrides import parse, syntax
from lingo.config.overrides.overrides import Applied
from lingo.config.params import ParamError, Params, fields, suggest
from lingo.config.roots import roots as roots_
from lingo.config.roots.classes import Classes
from lingo.config.roots.importing import Running, import_file
from lingo.config.roots.roots import Roots
from lingo.config.serial.serial import Origin

F = TypeVar("F", bound=Callable[..., Any])

_FORM = re.compile(
    r"(?P<file>[^(]*\.py(?=:|$|\s*\())?:?(?P<name>[\w.-]*)\s*(?P<arguments>\(.*\))?", re.DOTALL
)
_ARGUMENT = re.compile(r"\s*exp\.(.*)", re.DOTALL)
ARGUMENT = "exp."  # begins an override of an argument of the experiment's function


def experiment(function: F) -> F:
    """Marks a function that returns the Params of an experiment, for the registry to find."""
    return function


class Entry(NamedTuple):
    """An experiment as its file shows it.

    Attributes:
        name: `lm.source.tiny`.
        file: where it is.
        line: of the function.
        doc: its docstring.
        signature: its arguments, as written.
        function: its name in the file.
    """

    name: str
    file: Path
    line: int
    doc: str
    signature: str
    function: str

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return self.doc.partition("\n")[0]


class Registry(NamedTuple):
    """What the params directories hold.

    Attributes:
        entries: by name, sorted.
        unreadable: files that are no Python, with what is wrong.
    """

    entries: dict[str, Entry]
    unreadable: list[str]

    def find(self, name: str) -> Entry:
        """Returns the entry of a name or of a unique ending of one.

        Raises:
            ParamError: with the nearest names, or all that end so.
        """
        if name in self.entries:
            return self.entries[name]
        found = [full for full in self.entries if full.endswith(f".{name}")]
        if len(found) == 1:
            return self.entries[found[0]]
        if found:
            raise ParamError(f"{name!r} is the end of {len(found)} names: {', '.join(found)}")
        broken = f" Not readable: {'; '.join(self.unreadable)}." if self.unreadable else ""
        all_ = f"`lingo list` shows all {len(self.entries)}."
        raise ParamError(f"There is no experiment {name!r}.{self._suggest(name)} {all_}{broken}")

    def search(self, word: str) -> list[Entry]:
        """Returns the entries with a word in their name or summary, in any case; "" finds all.

        Raises:
            ParamError: if there is none, with the nearest names.
        """
        key = word.lower()
        entries = [e for e in self.entries.values() if key in f"{e.name} {e.summary}".lower()]
        if word and not entries:
            raise ParamError(f"no experiment has {word!r} in it.{suggest(word, self.entries)}")
        return entries

    def _suggest(self, name: str) -> str:
        last = {full.rpartition(".")[2]: full for full in self.entries}
        return suggest(name, self.entries) or suggest(name.rpartition(".")[2], last)


class Chosen(NamedTuple):
    """An experiment that was asked for, with its overrides applied.

    Attributes:
        params: the root.
        origin: what was asked for.
        applied: what each override of the tree did.
    """

    params: Params
    origin: Origin
    applied: list[Applied]


def index(roots: Roots | None = None) -> Registry:
    """Reads all files of the params directories.

    Args:
        roots: where to look; those of this installation and the working directory if None.

    Raises:
        ParamError: if two experiments have the same name.
    """
    entries: dict[str, Entry] = {}
    unreadable: list[str] = []
    for directory in (roots if roots is not None else roots_.find()).params:
        for file, parts in roots_.files(directory):
            try:
                marked = b"experiment" in roots_.source(file)  # most are not: parsing is slow
                found = _entries(file, parts) if marked else []
            except ParamError as error:
                unreadable.append(str(error))
                continue
            for entry in found:
                if twin := entries.get(entry.name):
                    places = f"{twin.file}:{twin.line} and {entry.file}:{entry.line}"
                    raise ParamError(f"{entry.name} is defined twice: {places}")
                entries[entry.name] = entry
    return Registry(dict(sorted(entries.items())), unreadable)


def get(form: str, overrides: Iterable[str] = (), roots: Roots | None = None) -> Chosen:
    """Returns an experiment by what a user types.

    Args:
        form: `name`, `name(argument=value)` or `file.py:function(argument=value)`.
        overrides: `exp.argument=value` for the function, the rest for what it returns, in order.
        roots: where to look; those of this installation and the working directory if None.

    Raises:
        ParamError: for every mistake in these, and whatever goes wrong in the experiment's file.
    """
    roots = roots if roots is not None else roots_.find()
    texts = list(overrides)
    match = _FORM.fullmatch(form.strip())
    if not match or not (match["file"] or match["name"]):
        raise ParamError(
            f"{form!r} is no experiment:"
            " write name, name(argument=value) or file.py:function(argument=value)"
        )
    entry = (
        _in_file(Path(match["file"]), match["name"])
        if match["file"]
        else index(roots).find(match["name"])
    )
    module = import_file(entry.file, roots)
    classes = Classes(roots, [module])
    function = _Function(entry, getattr(module, entry.function), classes)
    arguments = function.arguments(
        match["arguments"] or "", [m[1] for t in texts if (m := _ARGUMENT.fullmatch(t))]
    )
    params = function.call(detached(arguments))
    for text in texts:
        name = text.partition("=")[0]
        if name in function.parameters and name not in fields(params.cls):
            raise ParamError(f"{name} is an argument of {entry.function}: write exp.{text}")
    applied = overrides_.apply(params, [t for t in texts if not _ARGUMENT.fullmatch(t)], classes)
    origin = Origin(
        "" if match["file"] else entry.name,
        str(entry.file),
        entry.function,
        arguments,
        tuple(texts),
    )
    return Chosen(params, origin, applied)


def _entries(file: Path, parts: Sequence[str]) -> list[Entry]:
    """Returns the experiments of a file, without importing it.

    Raises:
        ParamError: if it is no Python, nested too deep, or has two of one name.
    """
    try:
        return _marked(file, parts)
    except RecursionError:  # of `ast.unparse`, which gives up before the parser does
        raise ParamError(f"{file} is no file of experiments: it is nested too deep") from None


def _marked(file: Path, parts: Sequence[str]) -> list[Entry]:
    found: dict[str, Entry] = {}
    for node in roots_.parse(file).body:
        if not (isinstance(node, ast.FunctionDef) and any(map(_is_mark, node.decorator_list))):
            continue
        if twin := found.get(node.name):
            raise ParamError(
                f"{node.name} is defined twice: {file}:{twin.line} and {file}:{node.lineno}"
            )
        found[node.name] = Entry(
            ".".join([*parts, node.name]),
            file,
            node.lineno,
            ast.get_docstring(node) or "",
            _signature(node.args),
            node.name,
        )
    return list(found.values())


def _is_mark(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).rpartition(".")[2] == "experiment"


def _signature(arguments: ast.arguments) -> str:
    """Returns `(a: int = 1, b)`."""
    names = [*arguments.args, *arguments.kwonlyargs]
    missing: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
    defaults = [*missing, *arguments.defaults, *arguments.kw_defaults]
    texts = [
        ast.unparse(name) + (f" = {ast.unparse(d)}" if d else "")
        for name, d in zip(names, defaults, strict=True)
    ]
    return f"({', '.join(texts)})"


def _in_file(file: Path, function: str) -> Entry:
    """Returns an experiment of a file that the user named."""
    if not os.path.isfile(file):
        raise ParamError(f"There is no file {file}")
    entries = {entry.function: entry for entry in _entries(file.resolve(), [file.stem])}
    if function not in entries:
        there = " or ".join(f"{file}:{name}" for name in entries) or "a function marked @experiment"
        raise ParamError(
            f"{file} has no experiment {function!r}.{suggest(function, entries)} Write {there}."
        )
    return entries[function]


class _Function:
    """An experiment's function and how to call it."""

    def __init__(self, entry: Entry, function: Callable[..., Any], classes: Classes) -> None:
        self.entry, self.function, self.classes = entry, function, classes
        named = inspect.signature(function).parameters.values()
        self.parameters = {
            p.name: p for p in named if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        }
        with Running(entry.file):
            self.hints = typing.get_type_hints(function)

    def arguments(self, call: str, overrides: Sequence[str]) -> dict[str, Any]:
        """Reads the arguments `(a=1, b=2)` and the overrides `a=1`, which come later."""
        try:
            pairs = list(syntax.call(f"{self.entry.function}{call}").arguments.items())
            parts = [syntax.partition(text, "=") for text in overrides]
        except syntax.Unreadable as error:
            raise ParamError(str(error)) from None
        for name, equals, _ in parts:
            if not equals:
                raise ParamError(f"{f'exp.{name}'!r} sets nothing: write exp.argument=value")
        return {
            name: self._read(name, text) for name, text in [*pairs, *((n, t) for n, _, t in parts)]
        }

    def call(self, arguments: dict[str, Any]) -> Params:
        """Calls the function."""
        missing = [
            n for n, p in self.parameters.items() if p.default is p.empty and n not in arguments
        ]
        if missing:
            name = self.entry.name
            raise ParamError(
                f"{name} needs {' and '.join(missing)}: write {name}({missing[0]}=...)"
            )
        with Running(self.entry.file):
            params = self.function(**arguments)
        if not isinstance(params, Params):
            raise ParamError(
                f"{self.entry.file}:{self.entry.line}: {self.entry.function} returned"
                f" {params!r:.80}; an experiment returns Params"
            )
        return params

    def _read(self, name: str, text: str) -> Any:
        """Reads an argument by its annotation."""
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
            return parse.read(
                text, hint, lambda text, hint: overrides_.template(text, hint, self.classes, name)
            )
        except syntax.Unreadable as error:
            raise ParamError(f"{self.entry.name}: {name} {error}") from None
