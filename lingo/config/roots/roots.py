"""The roots: the directories with experiments and with the classes that experiments name.

`lingo` is the installed package. `tasks` and `params` are next to it in a checkout, or inside it
in a wheel; `mount` makes them importable. Only these directories, and those that the user names,
are trusted: a configuration file cannot name a class from any other directory.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

from lingo.config.base import regular_file
from lingo.config.base.ast_lock import AST_LOCK
from lingo.config.base.errors import ParamError
from lingo.config.roots import mount

VARIABLE = "LINGO_PARAMS"
MAX_BYTES = 2**24  # maximum size of a Python file

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


class Roots(NamedTuple):
    """The directories in which modules of `lingo`, `tasks` and `params` are found."""

    packages: dict[str, tuple[Path, ...]]  # package -> trusted directories, searched in order
    local: Path | None = None
    """The folder `params` of the working directory, unless that is a checkout of lingo.

    It is used to list and find experiments, but never to load a configuration.
    """

    @property
    def params(self) -> tuple[Path, ...]:
        """The directories with experiments, the working directory's included."""
        return self.packages["params"] + ((self.local,) if self.local else ())

    @property
    def user_params(self) -> tuple[Path, ...]:
        """The directories with experiments that the user named by flag or environment variable."""
        own = [directory.with_name("params").resolve() for directory in self.packages["tasks"]]
        return tuple(directory for directory in self.packages["params"] if directory not in own)

    def trusted_roots(self) -> Roots:
        """Returns these roots without the working directory's `params`."""
        return self._replace(local=None)


def find(params_dirs: Sequence[str | os.PathLike[str]] = ()) -> Roots:
    """Returns the roots of this installation and this working directory.

    Experiments are in lingo's own directory, in `params_dirs`, and in the directories that the
    environment variable LINGO_PARAMS names. Raises ParamError if a named directory does not exist.
    """
    base = Path(mount.home())
    named = [Path(d) for d in params_dirs]
    named += [Path(d) for d in os.environ.get(VARIABLE, "").split(os.pathsep) if d]
    for directory in named:
        if not os.path.isdir(directory):  # unlike Path.is_dir, os.path.isdir never raises
            raise ParamError(
                f"{directory} is not a directory: --params_dir and {VARIABLE} name directories"
            )
    params = dict.fromkeys(d.resolve() for d in (base / "params", *named))
    packages = {"lingo": (Path(mount.LINGO),), "tasks": (base / "tasks",), "params": tuple(params)}
    checkout = os.path.isfile("lingo/__init__.py")  # of lingo: its `params` are already included
    local = Path("params").resolve() if os.path.isdir("params") and not checkout else None
    return Roots(packages, None if local in params else local)


def module_stem(directories: Iterable[Path], parts: Sequence[str]) -> Path | None:
    """Returns a module's path without suffix, in the first of the directories that has it.

    `parts` are the parts of the module's name below these directories.
    """
    for directory in directories:
        stem = directory.joinpath(*parts)
        if module_file(stem) or os.path.isdir(stem):
            return stem
    return None


def module_file(stem: Path) -> Path | None:
    """Returns the file of a module from its path without suffix; None for a namespace package."""
    files = (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))
    return next((file for file in files if os.path.isfile(file)), None)


def files(directory: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yields (file, parts of its module's name) for all Python files below a directory, sorted."""
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(f for f in folders if f[:1] not in "._" and f != "_experiments")
        parts = list(Path(folder).relative_to(directory).parts)
        for name in sorted(names):
            if name.endswith(".py"):
                stem = name.removesuffix(".py")
                yield Path(folder, name), parts + ([] if stem == "__init__" else [stem])


def locate(module: str, roots: Roots) -> Path | None:
    """Returns the file of a module of the roots, or None, without importing anything."""
    if not _MODULE.fullmatch(module):
        return None
    package, *parts = module.split(".")
    directories = roots.params if package == "params" else roots.packages.get(package, ())
    stem = module_stem(directories, parts)
    is_module = parts or package == "lingo"  # `lingo` itself has `Experiment`
    return module_file(stem) if stem and is_module else None


def module_name(file: Path, roots: Roots) -> str | None:
    """Returns the dotted name of a file that is in one of the roots' directories, or None."""
    for package, directories in {**roots.packages, "params": roots.params}.items():
        for directory in directories:
            if file.is_relative_to(directory):
                parts = file.relative_to(directory).with_suffix("").parts
                return ".".join([package, *(p for p in parts if p != "__init__")])
    return None


def import_root(file: Path, module: str) -> Path | None:
    """Returns the directory from which `file` is imported as `module`; None: never."""
    parts = module.split(".")
    stem = file.parent if file.stem == "__init__" else file.with_suffix("")
    is_module = all(map(str.isidentifier, parts)) and [*stem.parts[-len(parts) :]] == parts
    return stem.parents[len(parts) - 1] if is_module else None


def source(file: Path) -> bytes:
    """Returns the content of a file; raises ParamError if it cannot be read or is too large."""
    try:
        content = regular_file.read(file, max_bytes=MAX_BYTES)
    except OSError as error:
        raise ParamError(f"{file} cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise ParamError(f"{file} is not a file of Python: it is larger than {MAX_BYTES >> 20} MiB")
    return content


def parse(file: Path) -> ast.Module:
    """Parses a Python file without running it; raises ParamError if it is not Python."""
    return parse_source(source(file), file)


def parse_source(content: bytes, file: Path) -> ast.Module:
    """Parses the content of a file; raises ParamError if it is not Python."""
    try:
        with AST_LOCK:
            return ast.parse(content, str(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", None) or str(error) or "it is nested too deep"
        raise ParamError(f"{file}:{line} is not Python: {reason}") from None


def defines_class(file: Path, name: str) -> bool:
    """Returns whether a file's top level has a `class` statement with this name and with bases."""
    content = source(file)
    if not re.search(rf"^class\s+{name}\s*\(".encode(), content, re.MULTILINE):
        return False  # parsing is slow, and most files do not have to be parsed
    return name in _definitions(content, file).classes


def class_names(file: Path) -> list[str]:
    """Returns the sorted names of the classes with bases that a file's top level defines."""
    return sorted(_definitions(source(file), file).classes)


def defines_function(file: Path, name: str) -> bool:
    """Returns whether a file's top level has a `def` statement with this name."""
    return name in _definitions(source(file), file).functions


class _Definitions(NamedTuple):
    classes: frozenset[str]  # classes that have bases
    functions: frozenset[str]


@functools.lru_cache(maxsize=64)  # a configuration names several classes of a file
def _definitions(content: bytes, file: Path) -> _Definitions:
    """Returns the names that the content of a file defines at its top level."""
    body = parse_source(content, file).body
    return _Definitions(
        frozenset(n.name for n in body if isinstance(n, ast.ClassDef) and n.bases),
        frozenset(n.name for n in body if isinstance(n, ast.FunctionDef)),
    )


def source_file(named: type | FunctionType) -> Path | None:
    """Returns the file that defines a class or function; None if it was typed interactively."""
    file = getattr(sys.modules.get(named.__module__), "__file__", None)
    return Path(file).resolve() if file and os.path.isfile(file) else None
