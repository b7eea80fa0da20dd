"""Names the classes and functions of a configuration file, and finds them if they are trusted.

The name is `module:Class` for a class in a trusted directory (see `roots`), and `file.py:Class` for
a class in a file of the user's own, whose path and digest the configuration records. `Namer` makes
these names, and `Finder` reads them. `Finder` checks all names before it imports anything. A name
is accepted only if a `class` statement with this name is

- in a trusted directory, and its bases lead to `Configurable`;
- in a file that the caller trusts; or
- in a file that this user has trained and that is unchanged.

The same holds for a function and its `def` statement. However, lingo's own functions are refused,
since a layer would call them with arguments from the configuration file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType
from typing import NamedTuple, TypeAlias, TypeGuard

from lingo.config import importing, trained_files
from lingo.config.base.errors import UnknownClass
from lingo.config.classes import inherits, is_configurable
from lingo.config.params import Configurable, ParamError
from lingo.config.roots import roots as roots_
from lingo.config.roots.roots import Roots

MAX_NAME = 200

Named: TypeAlias = "type[Configurable] | FunctionType"
"""The class or function that a name in a configuration file stands for."""

_NAME = re.compile(r"(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|[^/\\:\0]+\.py):[A-Za-z_]\w*", re.ASCII)


class OwnFile(NamedTuple):
    """The user's own file, outside trusted directories, that defines a configuration's classes."""

    path: str
    sha256: str  # the hexadecimal digest of the file's bytes
    module: str  # the name under which the file was imported


class Namer:
    """Makes the names of classes and functions, and collects in `files` the user's own files."""

    def __init__(self, roots: Roots) -> None:
        self.files: dict[str, OwnFile] = {}
        self._roots = roots

    def name(self, named: Named) -> str:
        """Returns a name by which `Finder` finds a class or function; raises ParamError if none."""
        name = self._find_name(named)
        if not _is_name(name):
            raise ParamError(
                f"{name} cannot be saved: give the {_kind(named)} and its file shorter names, of"
                " English letters, digits and underscores"
            )
        return name

    def _find_name(self, named: Named) -> str:
        file = roots_.source_file(named)
        if "." in named.__qualname__ or file is None:
            hint = "" if file else " (a notebook's %%writefile writes a cell into one)"
            raise ParamError(
                f"{named.__module__}:{named.__qualname__} cannot be saved:"
                f" define the {_kind(named)} at the top level of a file{hint}"
            )
        located = roots_.locate(named.__module__, self._roots)
        if located is not None and os.path.samefile(located, file):
            return f"{named.__module__}:{named.__qualname__}"
        module = named.__module__ if roots_.import_root(file, named.__module__) else file.stem
        content = OwnFile(str(file), _sha256(file), module)
        if (known := self.files.setdefault(file.name, content)) != content:
            raise ParamError(f"{known.path} and {file} have the same name: rename one of them")
        return f"{file.name}:{named.__qualname__}"


class Finder:
    """Finds classes and functions by name; all names are checked before any file is imported.

    `files` has the user's own files that the configuration records, by name. `trust` has the files
    that the caller allows to be imported.
    """

    def __init__(
        self, files: dict[str, OwnFile], trust: Iterable[str | os.PathLike[str]], roots: Roots
    ) -> None:
        self._files = files
        self._trusted = [Path(os.path.realpath(t)) for t in trust]
        self._roots, self._local = roots.trusted_roots(), roots.local

    def find(self, names: Iterable[str]) -> dict[str, Named]:
        """Returns name -> class or function; raises ParamError if a name is not trusted."""
        found = {name: self._locate(name) for name in dict.fromkeys(names)}
        return {name: self._import(name, file) for name, file in found.items()}

    def changed_files(self, names: Iterable[str]) -> tuple[str, ...]:
        """Returns the paths of the user's files among `names` that have changed since recorded."""
        needed = {name.partition(":")[0] for name in names} & self._files.keys()
        used = {name: self._own(name) for name in sorted(needed)}
        return tuple(
            str(file) for name, file in used.items() if _sha256(file) != self._files[name].sha256
        )

    def _locate(self, name: str) -> Path:
        """Returns the file of a trusted class or function, without importing it."""
        if not _is_name(name):
            raise ParamError(f"{name!r:.80} is not the name of a class: 'module:Class' is")
        module, _, last = name.partition(":")
        file = self._own(module) if module.endswith(".py") else roots_.locate(module, self._roots)
        if file is None:
            places = ", ".join(str(d) for dirs in self._roots.packages.values() for d in dirs)
            raise UnknownClass(
                f"{name!r:.120} is in no trusted place: {places}."
                " --params_dir=DIR adds one, for experiments."
            )
        if module.endswith(".py"):  # the bases cannot be checked without importing the file
            is_defined = roots_.defines_class(file, last)
        else:
            is_defined = inherits(module, file, last, self._roots)
        is_lingo = module.partition(".")[0] == "lingo"
        if not is_defined and (is_lingo or not roots_.defines_function(file, last)):
            raise UnknownClass(f"{file} has no class or function {last} to configure")
        return file

    def _own(self, name: str) -> Path:
        """Returns the trusted file with a name: the recorded path, or a file of `trust` if moved.

        Raises ParamError if neither is trusted, or UnknownClass if the recorded file is gone.
        """
        if name not in self._files:
            raise ParamError(f"its 'files' does not say where {name!r:.80} is")
        recorded, module = Path(self._files[name].path), self._files[name].module
        if trained_files.is_trusted(recorded, self._trusted, module):
            return recorded
        if moved := [file for file in self._trusted if file.name == name]:
            return moved[0]
        reason = trained_files.explain_distrust(recorded, module)
        kind = ParamError if os.path.exists(recorded) else UnknownClass
        raise kind(f"it uses classes of {recorded}, {reason}")

    def _import(self, name: str, file: Path) -> Named:
        module, _, last = name.partition(":")
        if module.endswith(".py"):
            is_local = self._local is not None and file.is_relative_to(self._local)
            roots = self._roots._replace(local=self._local if is_local else None)
            imported = importing.import_file(file, roots, self._files[module].module)
        else:
            imported = importing.import_module(module, file, self._roots)
        found = getattr(imported, last, None)
        if not _can_be_named(found) or found.__module__ != imported.__name__:
            raise UnknownClass(f"{file} has no class or function {last} to configure")
        return found


def _can_be_named(value: object) -> TypeGuard[Named]:
    return is_configurable(value) or isinstance(value, FunctionType)


def _kind(named: Named) -> str:
    return "class" if isinstance(named, type) else "function"


def _is_name(name: str) -> bool:
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def _sha256(file: Path) -> str:
    return hashlib.sha256(roots_.source(file)).hexdigest()
