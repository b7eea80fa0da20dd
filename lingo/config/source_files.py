"""Finds and reads the user's own files that an experiment uses.

They are the files that define the experiment's classes, the bases of these and the functions, and
all files that those files import, directly or not, from their own directory or package. Files of
lingo and of installed packages are left out, and so are imports by a computed name.

A file is named after its module, such as `mine.py` or `layers/gate.py`, so that copies under these
names can import each other.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from lingo.config.base import regular_file
from lingo.config.base.errors import ParamError
from lingo.config.node.tree import Value, functions, nodes
from lingo.config.roots import mount
from lingo.config.roots import roots as roots_
from lingo.config.roots.user_line import is_installed

MAX_PART = 100  # maximum number of characters between two slashes of a file's name

_BLOCK_BYTES = 2**20


class SourceFile(NamedTuple):
    """A Python file with its digest and content."""

    path: str  # absolute, without links
    sha256: str  # the hexadecimal SHA-256 of the file's bytes
    content: bytes | None = None  # the bytes; None: not known, or too large to be kept


class _Module(NamedTuple):
    """A module's file and the dotted name under which it is imported."""

    file: Path  # may be a link
    name: str

    @property
    def parts(self) -> list[str]:
        """The parts of the file's name: ["layers", "gate"], or ["layers", "__init__"]."""
        parts = self.name.split(".")
        known = parts[parts[0] in mount.NAMES :]  # a params directory may have any name
        if not known or roots_.import_root(self.file, ".".join(known)) is None:
            parts = [self.file.stem]  # the name is not the file's, as in `__main__`
        is_package = self.file.stem == "__init__" and parts[-1] != "__init__"
        return [*parts, "__init__"] if is_package else parts


def find_user_files(value: Value, function_file: str = "") -> dict[str, SourceFile]:
    """Returns name -> file for the user's own files that an experiment uses.

    Args:
        value: Params, or a container of Params.
        function_file: file of the experiment's function, which is included if it was imported.

    Raises ParamError if a file cannot be read.
    """
    found = nodes(value)
    classes = {cls for node in found for cls in node.cls.__mro__}
    names = dict.fromkeys(sorted(one.__module__ for one in classes | {*functions(value)}))
    if function_file:
        loaded = sys.modules.copy().items()
        names |= {n: None for n, m in loaded if getattr(m, "__file__", None) == function_file}
    modules = [_Module(file, n) for n in names if (file := _loaded_file(n)) is not None]
    return _read_all(modules)


def find_imports(file: Path, name: str = "") -> list[SourceFile]:
    """Returns a user's file and the user's other files that importing it would run.

    The file need not be imported yet. It may be imported as module `name`, or under its stem alone,
    so the files of both imports are returned. Raises ParamError if a file cannot be read.
    """
    names = [file.stem, *([name] if roots_.import_root(file, name) else [])]
    return [*_read_all([_Module(file, one) for one in names]).values()]


def _read_all(modules: Iterable[_Module]) -> dict[str, SourceFile]:
    """Returns name -> file for the user's own modules among `modules`, and for all they import."""
    files: dict[str, SourceFile] = {}
    waiting, seen, paths = [*modules], set[_Module](), set[Path]()
    while waiting:
        module = waiting.pop(0)
        path = module.file.resolve()
        if module in seen or is_installed(str(path)):
            continue
        seen.add(module)
        if path not in paths:
            files[_unused_name(module, files)] = read(path)
        paths.add(path)
        waiting += _imported_modules(module)
    return dict(sorted(files.items()))


def read(file: Path) -> SourceFile:
    """Reads a file; raises ParamError if it cannot be read."""
    try:
        with regular_file.open_regular(file) as stream:
            content = stream.read(roots_.MAX_BYTES + 1)
            digest = hashlib.sha256(content)
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise ParamError(f"{file} cannot be read: {error.strerror}") from None
    is_small = len(content) <= roots_.MAX_BYTES
    return SourceFile(str(file), digest.hexdigest(), content if is_small else None)


def _unused_name(module: _Module, names: Mapping[str, SourceFile]) -> str:
    """Returns a new file name for a module; its parts are safe names of folders and files."""
    parts = [re.sub(r"[^\w-]", "_", part, flags=re.ASCII) for part in module.parts]
    stem, count = "/".join(part[: MAX_PART - 5] for part in parts), 1
    while (name := f"{stem}~{count}.py" if count > 1 else f"{stem}.py") in names:
        count += 1
    return name


def _loaded_file(name: str) -> Path | None:
    """Returns the file of an imported module; None if it is not imported, or has no file."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(os.path.abspath(file)) if file and os.path.isfile(file) else None


# ---- imports -------------------------------------------------------------------------------------


def _imported_modules(module: _Module) -> Iterator[_Module]:
    """Yields the modules that a module's import runs, if they are in its directory or package.

    These are the packages around the module and the modules that it imports itself.
    """
    names: dict[str, None] = {}
    for parts in [module.parts[:-1], *(name.split(".") for name in _imported_names(module))]:
        names |= dict.fromkeys(".".join(parts[:end]) for end in range(1, len(parts) + 1))
    for name in names:
        if (file := _locate(name, module)) is not None:
            yield _Module(file, name)


def _imported_names(module: _Module) -> Iterator[str]:
    """Yields the absolute names in a module's import statements; nothing if it is not Python."""
    try:
        tree = roots_.parse(module.file)
    except ParamError:
        return
    package = module.parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            around = package[: len(package) - node.level + 1] if node.level else []
            origin = [*around, *([node.module] if node.module else [])]
            yield from (".".join([*origin, alias.name]) for alias in node.names)


def _locate(name: str, importer: _Module) -> Path | None:
    """Returns the file of an imported module that is in its importer's directory or package."""
    top, *inner = name.split(".")
    own_top, *own_inner = importer.parts
    folder = importer.file.parents[len(own_inner)]  # the folder of the importer's top module
    if own_inner and top == own_top:
        stem = roots_.module_stem([importer.file.parents[len(own_inner) - 1]], inner)
    else:
        around = [folder, folder.parent] if top in mount.NAMES else [folder]
        stem = roots_.module_stem(around, [top, *inner])
    file = stem and roots_.module_file(stem)
    loaded = _loaded_file(name)
    is_other = file is not None and loaded is not None and not os.path.samefile(loaded, file)
    return None if is_other else file
