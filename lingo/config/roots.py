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
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NamedTuple

from lingo.config.params import ParamError

VARIABLE = "LINGO_PARAMS"

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
    beside = _PACKAGE.parent
    base = (
        beside
        if (beside / "params").is_dir() and (beside / "tasks").is_dir()
        else _PACKAGE / "_experiments"
    )
    named = [Path(d) for d in params_dirs]
    named += [Path(d) for d in os.environ.get(VARIABLE, "").split(os.pathsep) if d]
    for directory in named:
        if not directory.is_dir():
            raise ParamError(
                f"{directory} is no directory: --params_dir and {VARIABLE} name directories."
            )
    params = dict.fromkeys(d.resolve() for d in (base / "params", *named) if d.is_dir())
    packages = {"lingo": (_PACKAGE,), "tasks": (base / "tasks",), "params": tuple(params)}
    local = Path("params").resolve()
    return Roots(packages, local if local.is_dir() and local not in params else None)


def install(roots: Roots) -> None:
    """Makes `tasks` and `params` importable, whatever else of these names is on `sys.path`.

    Raises:
        ParamError: if another module of that name has been imported already.
    """
    for name, wanted in (("tasks", roots.packages["tasks"]), ("params", roots.params)):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "__file__", None):
            raise ParamError(
                f"{module.__file__} has been imported as {name!r},"
                " a name that lingo needs; rename it."
            )
        if module is None:
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
        module.__path__ = list(dict.fromkeys([*map(str, wanted), *module.__path__]))


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
    for directory in directories:
        stem = directory.joinpath(*parts)
        for file in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
            if file.is_file() and file.is_relative_to(directory):
                return file
    return None


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
        ParamError: if it cannot be read.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        raise ParamError(f"{file} cannot be read: {error.strerror}.") from None


def parse(file: Path) -> ast.Module:
    """Parses a Python file without running it.

    Raises:
        ParamError: if it cannot be read, or is no Python.
    """
    try:
        return ast.parse(source(file), str(file))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise ParamError(
            f"{file}:{line or 1} is no Python: {getattr(error, 'msg', error)}."
        ) from None


def defines_class(file: Path, name: str) -> bool:
    """Returns whether a `class` statement of that name, with bases, stands at the top of a file."""
    if not re.search(rf"^class\s+{name}\s*\(".encode(), source(file), re.MULTILINE):
        return False  # most do not: parsing is slow
    return any(isinstance(n, ast.ClassDef) and n.name == name and n.bases for n in parse(file).body)


class Running:
    """A `with` block that runs a user's code: what it raises becomes a ParamError naming its line.

    What it prints goes to stderr: results on stdout are lingo's.

    Args:
        file: the user's file; the innermost of its lines that was running is named.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._printing = contextlib.redirect_stdout(sys.stderr)

    def __enter__(self) -> None:
        self._printing.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._printing.__exit__(kind, error, trace)
        if not isinstance(error, Exception):
            return
        if isinstance(error, SyntaxError) and error.filename:
            raise ParamError(
                f"{error.filename}:{error.lineno} is no Python: {error.msg}."
            ) from error
        lines = [f.lineno for f in traceback.extract_tb(trace) if Path(f.filename) == self.file]
        where = f"{self.file}:{lines[-1]}" if lines else str(self.file)
        first = str(error).partition("\n")[0]
        said = first if isinstance(error, ParamError) else f"{type(error).__name__}: {first}"
        raise ParamError(f"{where}: {said}") from error


def is_imported(name: str, file: Path) -> bool:
    """Returns whether a module has been imported from that file."""
    return getattr(sys.modules.get(name), "__file__", None) == str(file)


def import_module(name: str, file: Path, roots: Roots) -> ModuleType:
    """Imports a module of the roots, which must come from that file.

    Raises:
        ParamError: if it comes from elsewhere, or fails.
    """
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
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(file):
            return module
    if name := module_name(file, roots):
        return import_module(name, file, roots)
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
    return Path(file).resolve() if file and Path(file).is_file() else None
