"""Makes lingo's `tasks` and `params` importable, without running any of their code.

The folders `tasks` and `params` are next to `lingo` in a checkout and inside it in a wheel. They
are not installed packages, since their names are too common. Each becomes a namespace package whose
first directory is lingo's own, so that no folder on `sys.path` replaces it. Folders of the same
name on `sys.path` follow. `import lingo` calls `expose`, so this file imports only fast modules.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType

NAMES = ("tasks", "params")

LINGO = os.path.realpath(os.path.join(__file__, "..", "..", ".."))


def home() -> str:
    """Returns the directory that holds lingo's own `tasks` and `params`."""
    inside = os.path.join(LINGO, "_experiments")  # a wheel has them here
    return inside if os.path.isdir(inside) else os.path.dirname(LINGO)


def expose() -> None:
    """Makes `tasks` and `params` importable, unless a user's module has the same name."""
    for name in NAMES:
        own = os.path.join(home(), name)
        spec = PathFinder.find_spec(name)
        if name in sys.modules:
            spec = sys.modules[name].__spec__
        if spec is not None and spec.origin:
            _hide(own, spec)
        else:
            mount(name, [own, *folders_on_path(name)])


def mount(name: str, directories: Iterable[str]) -> None:
    """Makes `tasks` or `params` a namespace package of some directories, lingo's own first.

    Python prefers a subpackage with an `__init__.py` in the last directory to a folder without one
    in the first directory. So lingo's subpackages are imported while the package has no other
    directory.
    """
    own, *others = dict.fromkeys(directories)
    for key in [k for k, m in sys.modules.items() if isinstance(m, _Hidden)]:
        if key.startswith(f"{name}."):
            del sys.modules[key]
    if name not in sys.modules:
        sys.modules[name] = module_from_spec(ModuleSpec(name, None, is_package=True))
    package = sys.modules[name]
    missing = [key for key in _subpackages(name, own) if key not in sys.modules]
    if missing:
        package.__path__ = [own]
    for key in missing:
        import_module(key)
    package.__path__ = [own, *others]


def folders_on_path(name: str) -> list[str]:
    """Returns the folders with a name on `sys.path`; [] if Python finds a module with the name."""
    spec = PathFinder.find_spec(name)
    if spec is None or spec.origin:
        return []
    return [os.path.realpath(folder) for folder in spec.submodule_search_locations or ()]


@functools.cache
def _subpackages(name: str, directory: str) -> list[str]:
    """Returns the dotted names of the subpackages in a package's directory, parents first."""
    packages: list[str] = []
    for folder, folders, _ in os.walk(directory):
        folders[:] = sorted(f for f in folders if f.isidentifier() and not f.startswith("_"))
        parent = name + folder.removeprefix(directory).replace(os.sep, ".")
        packages += [f"{parent}.{child}" for child in folders]
    return packages


class _Hidden(ModuleType):
    """Stands for a module of lingo that cannot be imported, since a user's file hides its package.

    Reading an attribute raises ImportError.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(name)
        self._message = message

    def __getattr__(self, attribute: str) -> object:
        if attribute == "__path__" or not attribute.startswith("_"):  # "_": introspection
            raise ImportError(self._message, name=self.__name__)
        raise AttributeError(attribute)


def _hide(own: str, spec: ModuleSpec) -> None:
    """Makes imports of lingo's modules raise an error that names the user's file that hides them.

    Python asks no import finder for a submodule of `tasks.py`, but it looks into `sys.modules`.
    """
    message = f"{spec.origin} hides lingo's {own}: rename it, since lingo needs its name"
    folders = [f for f in spec.submodule_search_locations or () if os.path.isdir(f)]
    theirs = {entry.removesuffix(".py") for folder in folders for entry in os.listdir(folder)}
    for child in {entry.removesuffix(".py") for entry in os.listdir(own)} - theirs:
        if not child.startswith("_"):
            key = f"{spec.name}.{child}"
            sys.modules.setdefault(key, _Hidden(key, message))
