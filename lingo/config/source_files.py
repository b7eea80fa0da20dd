"""The user's own files that an experiment uses, with their bytes.

They are the files of its classes, their bases and its functions, and the files that these import,
directly or not, from their own directory or package. Left out are files of lingo and of installed
packages, and imports by a computed name.

A file has the name of its module, `mine.py` or `layers/gate.py`: copies under these names can
import each other.
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

MAX_PART = 100  # characters between two slashes of a name

_BLOCK_BYTES = 2**20


class SourceFile(NamedTuple):
    """A file of Python."""

    path: str  # absolute, without links
    sha256: str  # of its bytes, hexadecimal
    content: bytes | None = None  # None: not known, or too large to be kept


class _Module(NamedTuple):
    """A file, perhaps a link to one, and the name under which it is imported."""

    file: Path
    name: str

    @property
    def parts(self) -> list[str]:
        """The parts of its name, with `__init__`."""
        parts = self.name.split(".")
        known = parts[parts[0] in mount.NAMES :]  # the folder of `params` may have any name
        if not known or roots_.import_root(self.file, ".".join(known)) is None:
            parts = [self.file.stem]  # as for `__main__`
        is_package = self.file.stem == "__init__" and parts[-1] != "__init__"
        return [*parts, "__init__"] if is_package else parts


def find_user_files(value: Value, function_file: str = "") -> dict[str, SourceFile]:
    """Returns the user's own files of an experiment by name.

    Args:
        value: Params, or a container of them.
        function_file: the file of the experiment's function; it counts if it has been imported.

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
    """Returns a user's file, and the user's other files that its import as module `name` runs.

    The file need not be imported yet. It may also be imported under its stem alone. Raises
    ParamError if a file cannot be read.
    """
    names = [file.stem, *([name] if roots_.import_root(file, name) else [])]
    return [*_read_all([_Module(file, one) for one in names]).values()]


def _read_all(modules: Iterable[_Module]) -> dict[str, SourceFile]:
    """Returns the files of the user's own modules and of the modules that these import, by name."""
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
    """Returns a name that no other file has; no part of it leads out of a folder."""
    parts = [re.sub(r"[^\w-]", "_", part, flags=re.ASCII) for part in module.parts]
    stem, count = "/".join(part[: MAX_PART - 5] for part in parts), 1
    while (name := f"{stem}~{count}.py" if count > 1 else f"{stem}.py") in names:
        count += 1
    return name


def _loaded_file(name: str) -> Path | None:
    """Returns the file of a module that has been imported, or None if it has none."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(os.path.abspath(file)) if file and os.path.isfile(file) else None


# ---- imports -------------------------------------------------------------------------------------


def _imported_modules(module: _Module) -> Iterator[_Module]:
    """Yields the nearby modules that a module's import runs: packages around it, its imports."""
    names: dict[str, None] = {}
    for parts in [module.parts[:-1], *(name.split(".") for name in _imported_names(module))]:
        names |= dict.fromkeys(".".join(parts[:end]) for end in range(1, len(parts) + 1))
    for name in names:
        if (file := _locate(name, module)) is not None:
            yield _Module(file, name)


def _imported_names(module: _Module) -> Iterator[str]:
    """Yields the names in the import statements of a module; a file that is not Python has none."""
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
    folder = importer.file.parents[len(own_inner)]  # it has the importer's top module
    if own_inner and top == own_top:
        stem = roots_.module_stem([importer.file.parents[len(own_inner) - 1]], inner)
    else:
        around = [folder, folder.parent] if top in mount.NAMES else [folder]
        stem = roots_.module_stem(around, [top, *inner])
    file = stem and roots_.module_file(stem)
    loaded = _loaded_file(name)
    is_other = file is not None and loaded is not None and not os.path.samefile(loaded, file)
    return None if is_other else file
