"""Where experiments and the classes they name come from: directories, and the modules in them.

`lingo` is the installed package. `tasks` and `params` stand beside it in a checkout, or inside it
in a wheel; they are no installed packages, since their names are too common, but mounted by
`install`. Only what lies in these places, or in a directory that the user names, is trusted: a
configuration file can name no class from anywhere else.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NamedTuple

from lingo.config import regular_file
from lingo.config.params import ParamError
from lingo.config.parsing import PARSING

VARIABLE = "LINGO_PARAMS"
MAX_BYTES = 2**24  # of a file of Python

_RUNNING = threading.RLock()  # held while a user's code runs: it prints to a redirected stdout
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_PACKAGE = Path(__file__).resolve().parents[1]


class Roots(NamedTuple):
    """Directories of Python files, by the package their modules belong to.

    Attributes:
        packages: trusted: "lingo", "tasks" and "params" -> directories, first match first.
        local: `params` of the working directory, if it is another one: serves the listing and the
            asking for an experiment, never the loading of a configuration.
    """

    packages: dict[str, tuple[Path, ...]]
    local: Path | None = None

    @property
    def params(self) -> tuple[Path, ...]:
        """The directories of experiments."""
        return self.packages["params"] + ((self.local,) if self.local else ())

    @property
    def named(self) -> tuple[Path, ...]:
        """Those directories of experiments that the user named."""
        own = [directory.with_name("params").resolve() for directory in self.packages["tasks"]]
        return tuple(directory for directory in self.packages["params"] if directory not in own)

    def trusted(self) -> Roots:
        """Returns the same without the working directory's."""
        return self._replace(local=None)


def find(params_dirs: Sequence[str | os.PathLike[str]] = ()) -> Roots:
    """Returns the roots of this installation and this working directory.

    Args:
        params_dirs: further directories of experiments; those of the environment variable
            LINGO_PARAMS follow.

    Raises:
        ParamError: if one of them does not exist.
    """
    inside = _PACKAGE / "_experiments"  # of a wheel: what stands beside that is not ours
    base = inside if inside.is_dir() else _PACKAGE.parent
    named = [Path(d) for d in params_dirs]
    named += [Path(d) for d in os.environ.get(VARIABLE, "").split(os.pathsep) if d]
    for directory in named:
        if not os.path.isdir(directory):  # unlike Path.is_dir it never raises
            raise ParamError(
                f"{directory} is no directory: --params_dir and {VARIABLE} name directories."
            )
    params = dict.fromkeys(d.resolve() for d in (base / "params", *named) if os.path.isdir(d))
    packages = {"lingo": (_PACKAGE,), "tasks": (base / "tasks",), "params": tuple(params)}
    local = Path("params").resolve() if os.path.isdir("params") else None
    return Roots(packages, None if local in params else local)


def install(roots: Roots) -> None:
    """Makes `tasks` and `params` of these roots importable, whatever else has these names.

    Raises:
        ParamError: if another module of that name has been imported already.
    """
    with _RUNNING:
        _mount("tasks", roots.packages["tasks"])
        _mount("params", roots.params)
        if _Mounted not in sys.meta_path:
            sys.meta_path.insert(0, _Mounted)


def _mount(name: str, directories: Sequence[Path]) -> None:
    module = sys.modules.get(name)
    if module is not None and getattr(module, "__file__", None):
        raise ParamError(
            f"{module.__file__} has been imported as {name!r}, a name that lingo needs; rename it."
        )
    if module is None:
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
    module.__path__ = [str(directory) for directory in directories]


class _Mounted:
    """Finds the modules below `tasks` and `params` in the directories mounted there now.

    Python itself would prefer a package with an `__init__.py` in the last directory to a folder
    without one in the first.
    """

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns how a module is loaded, or None if it is none of these: see `sys.meta_path`."""
        package, *parts = name.split(".")
        if package not in ("tasks", "params") or not parts:
            return None
        stem = _stem([Path(directory) for directory in sys.modules[package].__path__], parts)
        if stem is None:
            return None
        file = _file(stem)
        if file is None:
            return importlib.machinery.ModuleSpec(name, None, is_package=True)
        inner = [str(stem)] if file.parent == stem else None
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=inner)


def _stem(directories: Iterable[Path], parts: Sequence[str]) -> Path | None:
    """Returns the path without suffix of a module in the first directory that has it."""
    for directory in directories:
        stem = directory.joinpath(*parts)
        if _file(stem) or os.path.isdir(stem):
            return stem
    return None


def _file(stem: Path) -> Path | None:
    """Returns the file of a module, or None: a folder needs none."""
    files = (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))
    return next((file for file in files if os.path.isfile(file)), None)


def files(directory: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yields every Python file below a directory with the parts of its module's name, sorted."""
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(f for f in folders if f[:1] not in "._" and f != "_experiments")
        parts = list(Path(folder).relative_to(directory).parts)
        for name in sorted(names):
            if name.endswith(".py"):
                stem = name.removesuffix(".py")
                yield Path(folder, name), parts + ([] if stem == "__init__" else [stem])


def locate(module: str, roots: Roots) -> Path | None:
    """Returns the file of a module of the roots, without importing anything."""
    if not _MODULE.fullmatch(module):
        return None
    package, *parts = module.split(".")
    directories = roots.params if package == "params" else roots.packages.get(package, ())
    stem = _stem(directories, parts)
    return _file(stem) if stem and parts else None


def module_name(file: Path, roots: Roots) -> str | None:
    """Returns the name under which the roots hold a file, or None."""
    for package, directories in {**roots.packages, "params": roots.params}.items():
        for directory in directories:
            if file.is_relative_to(directory):
                parts = file.relative_to(directory).with_suffix("").parts
                return ".".join([package, *(p for p in parts if p != "__init__")])
    return None


def source(file: Path) -> bytes:
    """Returns what a file holds.

    Raises:
        ParamError: if it cannot be read, or is too large for a file of Python.
    """
    try:
        content = regular_file.read(file, max_bytes=MAX_BYTES)
    except OSError as error:
        raise ParamError(f"{file} cannot be read: {error.strerror}.") from None
    if len(content) > MAX_BYTES:
        raise ParamError(f"{file} is no file of Python: it is larger than {MAX_BYTES >> 20} MiB.")
    return content


def parse(file: Path) -> ast.Module:
    """Parses a Python file without running it.

    Raises:
        ParamError: if it cannot be read, or is no Python.
    """
    content = source(file)
    try:
        with PARSING:
            return ast.parse(content, str(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        said = getattr(error, "msg", None) or str(error) or "it is nested too deep"
        raise ParamError(f"{file}:{line} is no Python: {said}.") from None


def defines_class(file: Path, name: str) -> bool:
    """Returns whether a `class` statement of that name, with bases, stands at the top of a file."""
    if not re.search(rf"^class\s+{name}\s*\(".encode(), source(file), re.MULTILINE):
        return False  # most do not: parsing is slow
    return any(isinstance(n, ast.ClassDef) and n.name == name and n.bases for n in parse(file).body)


class Running:
    """A `with` block that runs a user's code: what it raises becomes a ParamError naming its line.

    What it prints goes to stderr: results on stdout are lingo's. It may not end the program. One
    thread at a time is in such a block.

    Args:
        file: the user's file; the innermost of its lines that was running is named.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._printing = contextlib.redirect_stdout(sys.stderr)

    def __enter__(self) -> None:
        _RUNNING.acquire()
        self._printing.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._printing.__exit__(kind, error, trace)
        _RUNNING.release()
        if error is None or isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            return
        if isinstance(error, SyntaxError) and error.filename:
            raise ParamError(
                f"{error.filename}:{error.lineno} is no Python: {error.msg}."
            ) from error
        lines = [f.lineno for f in traceback.extract_tb(trace) if Path(f.filename) == self.file]
        where = f"{self.file}:{lines[-1]}" if lines else str(self.file)
        said = str(error) if isinstance(error, ParamError) else _said(error)
        raise ParamError(f"{where}: {said}") from error


def _said(error: BaseException) -> str:
    """Returns the kind of an error and the first line of its message, also if it has none."""
    return "".join(traceback.format_exception_only(error)).partition("\n")[0].rstrip(": ")


def is_imported(name: str, file: Path) -> bool:
    """Returns whether a module has been imported from that file."""
    return getattr(sys.modules.get(name), "__file__", None) == str(file)


def import_module(name: str, file: Path, roots: Roots) -> ModuleType:
    """Imports a module of the roots, which must come from that file.

    Raises:
        ParamError: if it comes from elsewhere, or fails.
    """
    with _RUNNING:
        install(roots)
        with Running(file):
            module = importlib.import_module(name)
    if module.__file__ is None or not os.path.samefile(module.__file__, file):
        raise ParamError(f"{name} was imported from {module.__file__}, not from {file}.")
    return module


def import_file(file: Path, roots: Roots) -> ModuleType:
    """Imports a file that the user named, once; it may import its neighbours.

    A file of the roots becomes their module; another one the module of its stem, or, where that
    is taken, of a name that nobody else has.

    Raises:
        ParamError: if it cannot be imported.
    """
    file = file.resolve()
    with _RUNNING:  # or another thread would find a module half imported
        for module in list(sys.modules.values()):
            if getattr(module, "__file__", None) == str(file):
                return module
        if name := module_name(file, roots):
            return import_module(name, file, roots)
        return _import_own(file, roots)


def _import_own(file: Path, roots: Roots) -> ModuleType:
    install(roots)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    spec = importlib.util.find_spec(file.stem) if file.stem.isidentifier() else None
    with Running(file):
        if spec is not None and spec.origin == str(file):
            return importlib.import_module(file.stem)
        return _import_as(f"{file.stem} ({file})", file)


def _import_as(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ParamError(f"{file} is no Python file.")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def source_file(cls: type) -> Path | None:
    """Returns the file that defines a class, or None for a class typed into a session."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(file).resolve() if file and os.path.isfile(file) else None
