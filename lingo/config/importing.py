"""Imports modules of the roots (see `roots`), and files that a user names.

Their code runs inside `user_code`, which turns an error into a ParamError with file and line. If
such a file imports TensorFlow, TensorFlow's messages on stderr are suppressed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import threading
import traceback
from collections.abc import Generator
from pathlib import Path
from types import ModuleType

from lingo.config.base.errors import ParamError
from lingo.config.lazy import quiet
from lingo.config.roots import mount
from lingo.config.roots.roots import Roots, import_root, module_file, module_name, module_stem
from lingo.config.roots.user_line import user_line

_RUNNING = threading.RLock()  # held while a user's code runs, since stdout is redirected then


def install(roots: Roots) -> None:
    """Makes the roots' `tasks` and `params` importable, next to other folders with these names.

    Raises ParamError if a module from another file has been imported under a name of lingo's.
    """
    with _RUNNING:
        _refuse_others()
        for name, directories in {**roots.packages, "params": roots.params}.items():
            if name in mount.NAMES:
                folders = [f for f in mount.folders_on_path(name) if not _is_excluded(f, roots)]
                mount.mount(name, [*map(str, directories), *folders])


def _refuse_others() -> None:
    """Raises ParamError if an imported module has the name of a lingo module, but another file."""
    home = mount.home()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] not in mount.NAMES or not file:
            continue
        stem = module_stem([Path(home)], name.split("."))
        own = stem and (module_file(stem) or stem)
        if own and os.path.realpath(file) != os.path.realpath(own):
            raise ParamError(
                f"{file} has been imported as {name!r}, a name that lingo needs for {own};"
                " rename it"
            )


def _is_excluded(folder: str, roots: Roots) -> bool:
    """Returns whether a folder is the working directory's `params`, and the roots exclude that."""
    return roots.local is None and os.path.isdir("params") and os.path.samefile(folder, "params")


@contextlib.contextmanager
def user_code(file: Path) -> Generator[None]:
    """A context in which a user's code runs; its errors become ParamErrors with file and line.

    The code's output goes to stderr, since stdout is for lingo's results. The code cannot end the
    program. Only one thread at a time is in such a context.
    """
    with _RUNNING, contextlib.redirect_stdout(sys.stderr):
        try:
            yield
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if isinstance(error, SyntaxError) and error.filename:
                raise ParamError(
                    f"{error.filename}:{error.lineno} is not Python: {error.msg}"
                ) from error
            where = user_line(error, own=file) or str(file)
            text = "".join(traceback.format_exception_only(error)).partition("\n")[0].rstrip(": ")
            message = error if isinstance(error, ParamError) else text
            raise ParamError(f"{where}: {message}") from error


def is_imported(name: str, file: Path) -> bool:
    """Returns whether the module `name` has been imported from `file`."""
    return getattr(sys.modules.get(name), "__file__", None) == str(file)


def import_module(name: str, file: Path, roots: Roots) -> ModuleType:
    """Imports a module of the roots.

    Raises ParamError if the import fails, or finds the module in another file.
    """
    with _RUNNING:
        install(roots)
        if not file.is_relative_to(mount.home()):
            importlib.invalidate_caches()  # the file may have just been written
        with user_code(file), quiet():
            module = importlib.import_module(name)
    if module.__file__ is None or not os.path.samefile(module.__file__, file):
        raise ParamError(f"{name} was imported from {module.__file__}, not from {file}")
    return module


def import_file(file: Path, roots: Roots, name: str = "") -> ModuleType:
    """Imports a file that the user named, unless it is imported already; returns its module.

    The file may import files of its directory. A file of the roots becomes the roots' module. Any
    other file becomes the module `name` if its path ends with this dotted name, or else a module
    named by the file's stem. If that name is another file's, the module gets a unique name.
    """
    file = file.resolve()
    with _RUNNING:  # otherwise another thread could find a partly imported module
        for module in list(sys.modules.values()):
            if getattr(module, "__file__", None) == str(file):
                return module
        if own := module_name(file, roots):
            return import_module(own, file, roots)
        root = import_root(file, name)
        return _import_own(file, name if root else file.stem, root or file.parent, roots)


def _import_own(file: Path, name: str, root: Path, roots: Roots) -> ModuleType:
    if str(root) not in sys.path:
        sys.path.append(str(root))
    install(roots)  # also `tasks` and `params` next to the file
    with user_code(file), quiet():
        if import_root(file, name) and _origin(name) == str(file):
            return importlib.import_module(name)
        return _import_as(f"{file.stem} ({file})", file)


def _origin(name: str) -> str | None:
    """Returns the file that importing a name would run; this imports the packages around it."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # another module has the package's name
        return None
    return None if spec is None else spec.origin


def _import_as(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ParamError(f"{file} is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
