"""The project's files, each parsed once: what is defined in them and what they import."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from lingo.trainer.directory.environment import git

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ("lingo", "tasks", "params", "tools")
"""The folders of the project's code. That of `tests` only checks it."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def current_commit() -> str:
    """Returns the commit of this checkout, "unknown" without git."""
    return (git(Path(__file__)) or {}).get("commit", "unknown")


class SourceFile(NamedTuple):
    """A file of Python."""

    path: str  # relative to the root, with slashes
    module: str  # its dotted name; the folder's for an `__init__.py`
    text: str  # what it contains
    syntax: ast.Module

    @property
    def is_package(self) -> bool:
        """Whether it is the `__init__.py` of a folder."""
        return self.path.endswith("/__init__.py")

    @property
    def num_lines(self) -> int:
        """Number of lines, as `wc -l` counts them."""
        return self.text.count("\n")

    @property
    def room(self) -> str:
        """The room that it belongs to, as `room_of` names it."""
        return room_of(self.module)

    def functions(self) -> Iterator[tuple[tuple[ast.AST, ...], Function]]:
        """Yields (the classes and functions around it, outermost first; a function), in order."""
        waiting: list[tuple[tuple[ast.AST, ...], ast.AST]] = [((), self.syntax)]
        while waiting:
            around, node = waiting.pop()
            if isinstance(node, Function):
                yield around, node
            if isinstance(node, Function | ast.ClassDef):
                around = (*around, node)
            waiting += [(around, child) for child in reversed(list(ast.iter_child_nodes(node)))]

    def classes(self) -> Iterator[ast.ClassDef]:
        """Yields every class, those inside functions included."""
        return (node for node in ast.walk(self.syntax) if isinstance(node, ast.ClassDef))


class Import(NamedTuple):
    """One name that a file imports."""

    file: SourceFile  # importer
    name: str  # what is imported, as dotted as it is written: `lingo.ops.scan.scan`
    target: SourceFile | None  # file of the tree that has it; None: it is outside the tree
    line: int  # where it is imported

    def __str__(self) -> str:
        return f"{self.file.path}:{self.line}: {self.name}"


Edges = Mapping[tuple[str, str], list[Import]]
"""(importer, imported) -> the imports that do it; of files, folders or rooms."""


class SourceTree:
    """All files of some folders, sorted by folder and path; `modules` has them by dotted name."""

    def __init__(self, root: Path = ROOT, folders: Iterable[str] = SOURCE) -> None:
        """Reads and parses the files of the folders that exist under a root."""
        paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
        self.files = [_read_file(root, path) for path in paths]
        self.modules = {file.module: file for file in self.files}

    @functools.cached_property
    def imports(self) -> list[Import]:
        """Every import; also those inside functions and under TYPE_CHECKING."""
        return [
            Import(file, name, self.find(name), line)
            for file in self.files
            for name, line in _imported_names(file)
        ]

    def find(self, name: str) -> SourceFile | None:
        """Returns the file that a dotted name comes from: its longest part that is a module."""
        while name and name not in self.modules:
            name = name.rpartition(".")[0]
        return self.modules.get(name)

    def edges(self, group: Callable[[SourceFile], str]) -> Edges:
        """Returns which groups of files import which others; the group "" is left out."""
        edges: dict[tuple[str, str], list[Import]] = {}
        for one in self.imports:
            if one.target is not None:
                start, end = group(one.file), group(one.target)
                if start and end and start != end:
                    edges.setdefault((start, end), []).append(one)
        return edges


def room_of(name: str) -> str:
    """Returns the room of a dotted name: `layers` of `lingo.layers.linear`, or its first part."""
    top, *rest = name.split(".")
    return top if top != "lingo" else rest[0] if rest else "__init__"


def circles(edges: Edges) -> list[list[str]]:
    """Returns the groups of importers that all reach each other, with two members or more."""
    imported: dict[str, set[str]] = {}
    for start, end in edges:
        imported.setdefault(start, set()).add(end)
    reached: dict[str, set[str]] = {}
    for start in imported:
        nodes: set[str] = set()
        new = imported[start]
        while new:
            nodes |= new
            new = set().union(*(imported.get(node, ()) for node in new)) - nodes
        reached[start] = nodes
    groups = {
        tuple(sorted(node for node in nodes if start in reached.get(node, ())))
        for start, nodes in reached.items()
    }
    return sorted(list(group) for group in groups if len(group) > 1)


def _read_file(root: Path, path: Path) -> SourceFile:
    relative = path.relative_to(root)
    module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
    text = path.read_text(encoding="utf-8")
    return SourceFile(relative.as_posix(), module, text, ast.parse(text, str(path)))


def _imported_names(file: SourceFile) -> Iterator[tuple[str, int]]:
    for node in ast.walk(file.syntax):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, node.lineno) for alias in names)
            case ast.ImportFrom(level=0, module=str(module), names=names):
                yield from ((f"{module}.{alias.name}", node.lineno) for alias in names)
            case ast.ImportFrom():
                raise ValueError(f"{file.path}:{node.lineno}: imports are absolute")
            case ast.Call(
                func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]
            ):
                yield name, node.lineno
