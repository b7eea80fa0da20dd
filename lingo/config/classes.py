"""Finds the classes that configurations name by reading files, and imports them on request."""

from __future__ import annotations

import ast
import copy
import functools
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple, TypeGuard

from lingo.config import importing
from lingo.config.base.errors import ParamError, UnknownClass, suggest
from lingo.config.node.label import label
from lingo.config.params import Configurable
from lingo.config.roots import roots as roots_
from lingo.config.roots.roots import Roots
from lingo.config.trained_files import explain_distrust, is_trusted

_STATEMENT = re.compile(
    rb"^class +([A-Za-z]\w*) *\((?!NamedTuple|Protocol|Exception|\w*Error|[\w.]*Enum)", re.MULTILINE
)


class ClassFile(NamedTuple):
    """The module and file of a `class` statement."""

    module: str
    file: Path


class Classes:
    """The classes in the roots' files (see `roots`), and in some modules already imported."""

    def __init__(
        self,
        roots: Roots | None = None,
        modules: Iterable[ModuleType] = (),
        *,
        trust: Iterable[str] | None = None,
    ) -> None:
        """`trust` has the working directory's files that may be imported; None: all may be.

        Files that the user has trained and not changed since may always be imported.
        """
        self.modules = list(modules)
        self.roots = roots or roots_.find()
        self._trust = trust
        self._original: Classes | None = None  # set in a copy, which shares its `places`

    @functools.cached_property
    def places(self) -> dict[str, list[ClassFile]]:
        """Class name -> its `class` statements with bases, at the top level of the roots' files."""
        if self._original is not None:
            return self._original.places
        found: defaultdict[str, list[ClassFile]] = defaultdict(list)
        for package, directories in {**self.roots.packages, "params": self.roots.params}.items():
            for directory in directories:
                for file, parts in roots_.files(directory):
                    for name in _STATEMENT.findall(roots_.source(file)):
                        found[name.decode()].append(ClassFile(".".join([package, *parts]), file))
        return dict(found)

    def with_modules(self, modules: Iterable[ModuleType]) -> Classes:
        """Returns a copy with more modules, which shares `places` with this object."""
        more = copy.copy(self)
        more.modules, more._original = [*dict.fromkeys([*self.modules, *modules])], self
        return more

    def find(
        self, name: str, fits: Callable[[type[Configurable]], bool] | None = None
    ) -> type[Configurable]:
        """Imports and returns a class by its name, to choose it in an override or a template.

        `name` is `Class`, `module:Class` or `file.py:Class`. The file is the experiment's own, by
        its name, or any file, by its path, which is then imported as the file of an experiment is.
        `fits` returns whether a class is allowed, to choose among classes of the same name. A file
        in `params` of the working directory is imported only for a class that no other file has.
        Raises UnknownClass if no class has the name, ParamError if several fit.
        """
        module, _, name = name.rpartition(":")
        found = {cls for cls in self._candidates(module, name) if is_named(cls, module)}
        if not found and (cls := self._find_local(module, name)) is not None:
            return cls
        if len(found) > 1 and fits is not None:
            found = {c for c in found if fits(c)} or {min(found, key=label)}  # to be refused
        if len(found) == 1:
            return found.pop()
        if found and module.endswith(".py"):
            raise _several(name, [str(roots_.source_file(cls)) for cls in found])
        if found:
            raise _several(name, [cls.__module__ for cls in found])
        where = f" in {module}{self._missing(module)}" if module else ""
        known = roots_.class_names(Path(module)) if _is_file(module) else self.names()
        if _is_file(module) and name in known:
            raise UnknownClass(
                f"{name!r}{where} is not a class of lingo's, such as Layer: inherit from one. A"
                " Keras layer is wrapped: Keras(factory=...)"
            )
        raise UnknownClass(f"There is no class {name!r} to configure{where}.{suggest(name, known)}")

    def find_function(self, name: str) -> FunctionType:
        """Returns the function named `function` or `file.py:function`.

        The file is the experiment's own, by its name, or any file, by its path. Raises ParamError
        unless exactly one function has that name.
        """
        module, _, name = name.rpartition(":")
        modules = [*self.modules, *self._import_named(module, name, roots_.defines_function)]
        own = {n: f for m in modules for n, f in _own_functions(m).items()}
        found = {
            function
            for candidate in modules
            if (function := _own_functions(candidate).get(name)) and is_named(function, module)
        }
        if len(found) == 1:
            return found.pop()
        if found:
            forms = " or ".join(sorted(map(label, found)))
            raise ParamError(f"{name} is the name of {len(found)} functions: write {forms}")
        files = ", ".join(sorted({str(m.__file__) for m in self.modules})) or "a file of your own"
        where = f"{module}{self._missing(module)}" or files
        raise ParamError(f"There is no function {name!r} in {where}.{suggest(name, own)}")

    def names(self) -> list[str]:
        """Returns the sorted names of all classes that may be configurable, for suggestions."""
        return sorted({*self.places, *(name for m in self.modules for name in _own_classes(m))})

    def subclasses(self, base: type[Configurable]) -> dict[str, ClassFile]:
        """Returns name -> place of the classes that inherit from `base`, without importing them.

        If several classes have the same name, only the first place with it is checked.
        """
        return {
            name: places[0]
            for name, places in sorted(self.places.items())
            if name != base.__name__
            and inherits(places[0].module, places[0].file, name, self.roots, base)
        }

    def _candidates(self, module: str, name: str) -> Iterable[type[Configurable]]:
        """Yields the classes with a name that are already imported or in trusted files.

        If a module is given, no other module is imported.
        """
        modules = [*self.modules, *self._import_named(module, name, roots_.defines_class)]
        for place in self._places(module, name):
            if not self._is_local(place) and roots_.defines_class(place.file, name):
                modules.append(importing.import_module(place.module, place.file, self.roots))
        for found in modules:
            if name in (own := _own_classes(found)):
                yield own[name]

    def _import_named(
        self, module: str, name: str, defines: Callable[[Path, str], bool]
    ) -> list[ModuleType]:
        """Returns [the module of the file with the path `module`] if it defines `name`, else []."""
        is_there = _is_file(module) and defines(Path(module), name)
        return [importing.import_file(Path(module), self.roots)] if is_there else []

    def _missing(self, module: str) -> str:
        """Returns ", which is not there" if `module` is neither a file nor the experiment's."""
        own = [os.path.basename(str(m.__file__)) for m in self.modules]
        is_missing = module.endswith(".py") and not _is_file(module) and module not in own
        return ", which is not there" if is_missing else ""

    def _find_local(self, module: str, name: str) -> type[Configurable] | None:
        """Imports the class with a name from `params` of the working directory; None: not there.

        Raises ParamError if several files have the class, or if its file may not be imported.
        """
        places = [
            place
            for place in self._places(module, name)
            if self._is_local(place) and inherits(place.module, place.file, name, self.roots)
        ]
        if not places:
            return None
        if len(places) > 1:
            raise _several(name, [place.module for place in places])
        (place,) = places
        where, file = place
        if self._trust is not None and not is_trusted(file, self._trust, where):
            raise ParamError(f"{name} is a class of {file}, {explain_distrust(file, where)}")
        found = importing.import_module(where, file, self.roots)
        return _own_classes(found).get(name)

    def _places(self, module: str, name: str) -> list[ClassFile]:
        """Returns the places of classes with a name; `module` is "", a module, or a file's name."""
        places = self.places.get(name, [])
        return [place for place in places if module in ("", place.module, place.file.name)]

    def _is_local(self, place: ClassFile) -> bool:
        return self.roots.local is not None and place.file.is_relative_to(self.roots.local)


def is_named(named: type | FunctionType, module: str) -> bool:
    """Returns whether a class or function is in `module`: "", a module, a file's name or path."""
    if module in ("", named.__module__, label(named).partition(":")[0]):
        return True
    return _is_file(module) and roots_.source_file(named) == Path(module).resolve()


def _is_file(module: str) -> bool:
    return module.endswith(".py") and os.path.isfile(module)


def _several(name: str, modules: Iterable[str]) -> ParamError:
    """Returns the error for a class name that several modules have."""
    forms = sorted(f"{module}:{name}" for module in modules)
    return ParamError(f"{name} is the name of {len(forms)} classes: write {' or '.join(forms)}")


def is_configurable(value: object) -> TypeGuard[type[Configurable]]:
    """Returns whether a value is a Configurable class."""
    return isinstance(value, type) and issubclass(value, Configurable)


def inherits(
    module: str, file: Path, cls: str, roots: Roots, base: type[Configurable] = Configurable
) -> bool:
    """Returns whether the class `cls` of a file inherits from `base`, without importing anything.

    A base class in another installed package cannot be checked without importing that package. In
    `params`, a class with such a base counts as Configurable.
    """
    if not (importing.is_imported(module, file) or roots_.defines_class(file, cls)):
        return False
    own = base is Configurable and module.partition(".")[0] == "params"
    waiting, seen = [(module, cls)], set[tuple[str, str]]()
    while waiting:
        where, name = found = waiting.pop()
        if found in seen:
            continue
        seen.add(found)
        place = roots_.locate(where, roots)
        if place is None:
            package = where.partition(".")[0]
            if own and package not in ("lingo", "tasks", "params", *sys.stdlib_module_names):
                return True
        elif importing.is_imported(where, place):
            value = getattr(sys.modules[where], name, None)
            if is_configurable(value) and issubclass(value, base):
                return True
        else:
            waiting += _base_names(where, place, name)
    return False


def _base_names(module: str, file: Path, name: str) -> list[tuple[str, str]]:
    """Returns (module, name) of each base of a class.

    If the file only imports the class, its own (module, name) is returned.
    """
    body = roots_.parse(file).body
    imported = _imported_names(module, file, body)
    statements = [n for n in body if isinstance(n, ast.ClassDef) and n.name == name]
    if not statements:
        return [imported[name]] if name in imported else []
    found: list[tuple[str, str]] = []
    for base in statements[-1].bases:
        written = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        holder, _, last = written.rpartition(".")
        if holder:
            found.append((".".join(filter(None, imported.get(holder, (holder,)))), last))
        else:
            found.append(imported.get(last, (module, last)))
    return found


def _imported_names(
    module: str, file: Path, body: Iterable[ast.stmt]
) -> dict[str, tuple[str, str]]:
    """Returns imported name -> (module, name in the module) for a file's imports; "": a module."""
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    found: dict[str, tuple[str, str]] = {}
    for node in body:
        if isinstance(node, ast.Import):
            found |= {alias.asname: (alias.name, "") for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            around = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*around, *([node.module] if node.module else [])])
            found |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
    return found


def _own_classes(module: ModuleType) -> dict[str, type[Configurable]]:
    return {
        n: c
        for n, c in vars(module).items()
        if is_configurable(c) and c.__module__ == module.__name__
    }


def _own_functions(module: ModuleType) -> dict[str, FunctionType]:
    return {
        n: f
        for n, f in vars(module).items()
        if isinstance(f, FunctionType) and f.__module__ == module.__name__
    }


def own_modules(named: Iterable[type | FunctionType]) -> list[ModuleType]:
    """Returns the modules of classes and functions, but no modules of lingo, tasks and params."""
    names = dict.fromkeys(one.__module__ for one in named)
    known = ("lingo", "tasks", "params")
    return [sys.modules[n] for n in names if n.partition(".")[0] not in known and n in sys.modules]
