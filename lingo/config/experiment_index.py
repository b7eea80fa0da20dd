"""Lists the experiments in the params directories by reading their files, without running code."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lingo.config.base.errors import ParamError, suggest
from lingo.config.roots import roots as roots_
from lingo.config.roots.roots import Roots

MAX_FILES = 1024
"""The maximum number of files whose experiments are cached.

Without the cache, `lingo check` would parse all files again for each experiment.
"""


class Entry(NamedTuple):
    """An experiment, as its file declares it."""

    name: str  # the full name, such as `lm.source.tiny`
    file: Path
    line: int  # the line of the function's `def`
    doc: str  # the function's docstring
    signature: str  # the function's arguments, as written
    function: str  # the function's name
    minutes: int | None = None  # measured duration of training, from `@experiment(minutes=2)`

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return self.doc.partition("\n")[0]


class ExperimentIndex(NamedTuple):
    """The experiments in the params directories."""

    entries: dict[str, Entry]  # by name, sorted
    unreadable: list[str]  # an error message per file that cannot be read or parsed

    def find(self, name: str) -> Entry:
        """Returns the experiment with a full name, or with a unique ending of its name.

        Raises ParamError if no experiment or several experiments match.
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
        last = {full.rpartition(".")[2]: full for full in self.entries}
        near = suggest(name, self.entries) or suggest(name.rpartition(".")[2], last)
        raise ParamError(f"There is no experiment {name!r}.{near} {all_}{broken}")

    def search(self, word: str) -> list[Entry]:
        """Returns the experiments whose name or summary contains a word, in any case.

        Raises ParamError if no experiment matches.
        """
        key = word.lower()
        entries = [e for e in self.entries.values() if key in f"{e.name} {e.summary}".lower()]
        if word and not entries:
            raise ParamError(f"no experiment has {word!r} in it.{suggest(word, self.entries)}")
        return entries


def index(roots: Roots | None = None) -> ExperimentIndex:
    """Reads all files of the params directories.

    Raises ParamError if two experiments have the same name.
    """
    entries: dict[str, Entry] = {}
    unreadable: list[str] = []
    for directory in (roots or roots_.find()).params:
        for file, parts in roots_.files(directory):
            try:
                found = read_entries(file, parts)
            except ParamError as error:
                unreadable.append(str(error))
                continue
            for entry in found:
                if twin := entries.get(entry.name):
                    places = f"{twin.file}:{twin.line} and {entry.file}:{entry.line}"
                    raise ParamError(f"{entry.name} is defined twice: {places}")
                entries[entry.name] = entry
    return ExperimentIndex(dict(sorted(entries.items())), unreadable)


def read_entries(file: Path, parts: Sequence[str]) -> list[Entry]:
    """Returns the experiments of a file without importing it; raises ParamError if unreadable.

    `parts` are the parts of the module's name, which the experiments' names begin with.
    """
    try:
        return [*_read_marked(roots_.source(file), file, tuple(parts))]
    except RecursionError:  # `ast.unparse` raises it before the parser does
        raise ParamError(f"{file} is not a file of experiments: it is nested too deep") from None


def function_line(file: Path, name: str) -> str:
    """Returns `file:line` of a file's top-level function, or "", without importing the file."""
    functions = (n for n in roots_.parse(file).body if isinstance(n, ast.FunctionDef))
    return next((f"{file}:{f.lineno}" for f in functions if f.name == name), "")


@functools.lru_cache(maxsize=MAX_FILES)
def _read_marked(content: bytes, file: Path, parts: tuple[str, ...]) -> tuple[Entry, ...]:
    """Returns the experiments in a file's content; cached, since parsing is slow."""
    if b"experiment" not in content:
        return ()
    found: dict[str, Entry] = {}
    for node in roots_.parse_source(content, file).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        mark = next(filter(_is_mark, node.decorator_list), None)
        if mark is None:
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
            _minutes(mark),
        )
    return tuple(found.values())


def _is_mark(decorator: ast.expr) -> bool:
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(name).rpartition(".")[2] == "experiment"


def _minutes(mark: ast.expr) -> int | None:
    """Returns the literal int in a decorator `@experiment(minutes=2)`, or None."""
    for keyword in mark.keywords if isinstance(mark, ast.Call) else ():
        match keyword:
            case ast.keyword(arg="minutes", value=ast.Constant(value=int(number))):
                return number
            case _:
                pass
    return None


def _signature(arguments: ast.arguments) -> str:
    """Returns a function's arguments as text, such as `(a: int = 1, b)`."""
    names = [*arguments.args, *arguments.kwonlyargs]
    missing: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
    defaults = [*missing, *arguments.defaults, *arguments.kw_defaults]
    texts = [
        ast.unparse(name) + (f" = {ast.unparse(d)}" if d else "")
        for name, d in zip(names, defaults, strict=True)
    ]
    return f"({', '.join(texts)})"
