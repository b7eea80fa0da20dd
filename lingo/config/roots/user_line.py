"""Finds lines in a user's own files: where an error was raised, where a function is defined."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lingo.config.base.errors import line_of, place_of
from lingo.config.roots import mount

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')
_LINE = re.compile(r"\.py:\d+")
_REWRITTEN = "in user code:"
_QUOTED_ERROR = re.compile(r"^ +(\w+(?:Error|Exception)\b.*)", re.MULTILINE)
_WRONG_CALL = re.compile(r"([\w.]+)\.(\w+)\(\) (?:missing|takes|got) ")
_GENERATED = "__autograph_generated_file"  # the beginning of names of AutoGraph's files
_PACKAGES = {"site-packages", "dist-packages"}


def user_line(error: BaseException, *, own: Path | None = None) -> str:
    """Returns `file:line` of the innermost frame of an error's traceback in a user's file, or "".

    Files of lingo, of installed packages and of Python are not the user's, except `own`. If an
    error was raised again as another error, the first error counts. If TensorFlow computes a graph,
    or code that AutoGraph has rewritten, the frames are read from the error's message. If lingo
    calls a method that a user's class lacks, the line is where the class is defined; if the method
    takes other arguments, the line is where the method is defined.
    """
    found = ""
    for cause in causes(error):
        if line := _called_line(cause):
            return line
        frames = [*_traced_frames(_text(cause))] or [*_frames(cause)]
        lines = [f"{file}:{line}" for file, line in frames if is_user_file(file, own)]
        if lines:
            found = lines[-1]
            if is_user_file(frames[-1][0], own):  # the user's code raised it itself
                break
    return found


def error_prefix(error: BaseException) -> str:
    """Returns the text to print before an error's message: `file:line: path: `, or "".

    The line is where the error comes from in the user's file, and the path leads to the object
    that raised the error. Each is left out if it is unknown, or if the message already has it.
    """
    text, place, line = _text(error), place_of(error), user_line(error) or line_of(error)
    parts = [line] if line and not names_line(text) else []
    parts += [place] if place and place not in text else []
    return "".join(f"{part}: " for part in parts)


def first_line(error: BaseException) -> str:
    """Returns an error's type and the first line of its message, such as `ValueError: no shape`."""
    text = str(error)
    if text.startswith(_REWRITTEN):  # AutoGraph quotes lines of code before the error
        return next((match[1] for match in _QUOTED_ERROR.finditer(text)), text)
    return f"{type(error).__name__}: {text}".rstrip(": ").splitlines()[0]


def names_line(text: str) -> bool:
    """Returns whether a message names a line of a Python file, such as `mine.py:3`."""
    return _LINE.search(text) is not None


def definition_line(defined: type | Callable[..., Any]) -> str:
    """Returns `file:line` where a class or function is defined; its name if it has no file."""
    try:
        file, line = inspect.getsourcefile(defined), inspect.getsourcelines(defined)[1]
    except (OSError, TypeError):  # it was typed into an interpreter
        return defined.__qualname__
    return f"{file}:{line}"


def _text(error: BaseException) -> str:
    return traceback.format_exception_only(error)[0]  # without notes


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, then its cause, the cause of that, and so on."""
    seen = set[int]()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _called_line(error: BaseException) -> str:
    """Returns `file:line` of the user's method that lingo called wrongly, or "".

    If a user's class lacks the method, it is the line of the class.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    match = _WRONG_CALL.match(str(error)) if isinstance(error, TypeError) else None
    if not frames or not (match or isinstance(error, NotImplementedError)):
        return ""
    if is_user_file(frames[-1].f_code.co_filename):
        return ""
    for value in frames[-1].f_locals.values():
        for cls in type(value).__mro__:
            defined = vars(cls).get(match[2]) if match and cls.__qualname__ == match[1] else None
            line = definition_line(defined or cls)
            if (defined or not match) and is_user_file(line.rpartition(":")[0]):
                return line
    return ""


def _frames(error: BaseException) -> Iterator[tuple[str, int]]:
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield frame.f_code.co_filename, line


def _traced_frames(message: str) -> Iterator[tuple[str, int]]:
    """Yields (file, line) of all frames that a message quotes, if one is in a user's file."""
    frames = [(file, int(line)) for file, line in _FRAME.findall(message)]
    if any(is_user_file(file) for file, _ in frames):
        yield from frames


def is_user_file(file: str, own: Path | None = None) -> bool:
    """Returns whether a file is `own`, or is not lingo's, Python's or an installed package's."""
    if not os.path.isabs(file):  # such as <frozen importlib>
        return False
    path = os.path.realpath(file)
    if own is not None and path == os.path.realpath(own):
        return True
    is_generated = os.path.basename(path).startswith(_GENERATED)
    return os.path.isfile(path) and not is_generated and not is_installed(path)


def is_installed(path: str) -> bool:
    """Returns whether a file is lingo's, Python's or a package's; `path` is absolute, no link."""
    is_package = not _PACKAGES.isdisjoint(path.split(os.sep))
    return is_package or path.startswith(_lingo_dirs() + _python_dirs())


@functools.cache
def is_lingos(defined: type) -> bool:
    """Returns whether a class is in lingo's own folders `lingo`, `tasks` or `params`."""
    if (file := getattr(sys.modules.get(defined.__module__), "__file__", None)) is None:
        return False  # it was typed into an interpreter
    return os.path.realpath(file).startswith(_lingo_dirs())


@functools.cache
def _lingo_dirs() -> tuple[str, ...]:
    """Returns the directories of lingo, each with a slash at its end."""
    return _with_slashes(mount.LINGO, *(os.path.join(mount.home(), name) for name in mount.NAMES))


@functools.cache
def _python_dirs() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return _with_slashes(*(paths[n] for n in ("stdlib", "platstdlib", "purelib", "platlib")))


def _with_slashes(*directories: str) -> tuple[str, ...]:
    return tuple(os.path.join(os.path.realpath(directory), "") for directory in directories)
