"""The classes that configurations name: found by reading files, imported when asked for."""

from __future__ import annotations

import functools
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeGuard

from lingo.config import roots as roots_
from lingo.config.params import Configurable, ParamError, suggest
from lingo.config.roots import Roots

_STATEMENT = re.compile(
    rb"^class +([A-Za-z]\w*) *\((?!NamedTuple|Protocol|Exception|\w*Error|[\w.]*Enum)", re.MULTILINE
)


class UnknownClass(ParamError):
    """No class has that name."""


class Place(NamedTuple):
    """Where a `class` statement stands."""

    module: str
    file: Path


def label(cls: type) -> str:
    """Returns the name of a class in texts for people.

    Classes of lingo and tasks go by their name. Others may be called like one of these, being a
    copy of it more often than not, so the name of their file stands before.
    """
    if cls.__module__.partition(".")[0] in ("lingo", "tasks"):
        return cls.__qualname__
    file = roots_.source_file(cls)
    return f"{file.name if file else cls.__module__}:{cls.__qualname__}"


class _Index:
    """The `class` statements of the roots, read on first use."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots

    @functools.cached_property
    def places(self) -> dict[str, list[Place]]:
        found: defaultdict[str, list[Place]] = defaultdict(list)
        for package, directories in {**self.roots.packages, "params": self.roots.params}.items():
            for directory in directories:
                for file, parts in roots_.files(directory):
                    for name in _STATEMENT.findall(roots_.source(file)):
                        found[name.decode()].append(Place(".".join([package, *parts]), file))
        return dict(found)


class Classes:
    """The classes that an override may name."""

    def __init__(self, roots: Roots | None = None, modules: Iterable[ModuleType] = ()) -> None:
        """Looks into some roots and modules.

        Args:
            roots: where to look; those of this installation if None.
            modules: further modules, imported already: an experiment's own file.
        """
        self.modules = list(modules)
        self._index = _Index(roots if roots is not None else roots_.find())

    @property
    def roots(self) -> Roots:
        """Where it looks."""
        return self._index.roots

    @property
    def places(self) -> dict[str, list[Place]]:
        """Every class with bases at the top of a file of the roots, by name."""
        return self._index.places

    def including(self, modules: Iterable[ModuleType]) -> Classes:
        """Returns the same with more modules; what has been read is not read again."""
        more = Classes(self.roots, dict.fromkeys([*self.modules, *modules]))
        more._index = self._index
        return more

    def find(
        self, name: str, fits: Callable[[type[Configurable]], bool] | None = None
    ) -> type[Configurable]:
        """Imports a class.

        Args:
            name: `Class`, `module:Class`, or `file.py:Class` for one of the experiment's own file.
            fits: tells which classes may stand where it is wanted, if there are several.

        Raises:
            UnknownClass: with the nearest names, if there is none.
            ParamError: if there are several, or what has the name cannot be configured.
        """
        module, _, name = name.rpartition(":")
        found = {
            cls
            for cls in self._candidates(module, name)
            if not module or module in (cls.__module__, label(cls).partition(":")[0])
        }
        if len(found) > 1 and fits is not None:
            found = {c for c in found if fits(c)} or {min(found, key=label)}  # it will be refused
        if len(found) == 1:
            return found.pop()
        if found:
            forms = " or ".join(sorted(f"{c.__module__}:{name}" for c in found))
            raise ParamError(f"{name} is the name of {len(found)} classes: write {forms}.")
        where = f" in {module}" if module else ""
        raise UnknownClass(
            f"There is no class {name!r} to configure{where}.{suggest(name, self.names())}"
        )

    def names(self) -> list[str]:
        """Returns the name of every class that may be configurable."""
        return sorted({*self.places, *(name for m in self.modules for name in _own_classes(m))})

    def _candidates(self, module: str, name: str) -> Iterable[type[Configurable]]:
        """Yields the classes of a name; where a module is given, no other is imported for it."""
        modules = list(self.modules)
        for place in self.places.get(name, ()):
            wanted = module in ("", place.module, place.file.name)
            if wanted and roots_.defines_class(place.file, name):
                modules.append(roots_.import_module(place.module, place.file, self.roots))
        for found in modules:
            if name in (own := _own_classes(found)):
                yield own[name]


def is_configurable(value: object) -> TypeGuard[type[Configurable]]:
    """Returns whether a value is a class with fields."""
    return isinstance(value, type) and issubclass(value, Configurable)


def _own_classes(module: ModuleType) -> dict[str, type[Configurable]]:
    return {
        n: c
        for n, c in vars(module).items()
        if is_configurable(c) and c.__module__ == module.__name__
    }


def own_modules(classes: Iterable[type]) -> list[ModuleType]:
    """Returns the modules of classes that stand outside lingo, tasks and params."""
    names = dict.fromkeys(c.__module__ for c in classes)
    known = ("lingo", "tasks", "params")
    return [sys.modules[n] for n in names if n.partition(".")[0] not in known and n in sys.modules]
