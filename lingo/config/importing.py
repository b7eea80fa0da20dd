"""Imports modules of the roots, and files that a user names; their code runs in `user_code`.

If such a file imports TensorFlow, the import is quiet.
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

_RUNNING = threading.RLock()  # held while a user's code runs: it prints to a redirected stdout


def install(roots: Roots) -> None:
    """Makes `tasks` and `params` of these roots importable, even if others have these names."""
    with _RUNNING:
        _refuse_others()
        for name, directories in {**roots.packages, "params": roots.params}.items():
            if name in mount.NAMES:
                folders = [f for f in mount.folders_on_path(name) if not _is_excluded(f, roots)]
                mount.mount(name, [*map(str, directories), *folders])


def _refuse_others() -> None:
    """Raises ParamError if an imported module has lingo's name, but comes from another file."""
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
    """Returns whether a folder is the working directory's `params`, and these roots exclude it."""
    return roots.local is None and os.path.isdir("params") and os.path.samefile(folder, "params")


@contextlib.contextmanager
def user_code(file: Path) -> Generator[None]:
    """Runs a `with` block of a user's code: an error becomes a ParamError with its file and line.

    The code's output goes to stderr, since stdout is for lingo's results. The code cannot end the
    program. Only one thread at a time is in such a block.
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
    """Returns whether a module has been imported from that file."""
    return getattr(sys.modules.get(name), "__file__", None) == str(file)


def import_module(name: str, file: Path, roots: Roots) -> ModuleType:
    """Imports a module of the roots; raises ParamError if it fails or comes from another file."""
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
    """Imports a file that the user named, once; it may import files of its directory.

    A file of the roots becomes their module. Another file becomes the module `name` of a package if
    it is in one, else a module named by its stem, or by a unique name if the stem is taken.
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
    """Returns the file that importing a name would run; this runs the packages around the file."""
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
