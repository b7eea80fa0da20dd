"""Errors with their exit codes, and suggestions for misspelt words.

The exit codes of programs: 0 done; 1 unexpected failure; 2 usage or configuration; 3 no usable
checkpoint; 4 checkpoint of another model; 5 bad data; 6 directory locked; 7 another configuration
in the directory; 8 numeric failure; 9 hang; 10 storage full or read-only; 129 hung up, saved; 130
interrupted, saved; 143 terminated, saved.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable
from typing import ClassVar

from lingo.config.base.synonyms import synonyms

MAX_SHOWN = 200  # characters of a value that an error shows

_RAISED_IN, _SET_IN = "raised in ", "set in "


class LingoError(Exception):
    """An error that a user causes or must know; its message says where, what and what to do."""

    exit_code: ClassVar[int] = 1  # exit code of a program that ends with this error


class NumericFailure(LingoError):
    """A weight is not finite, or losses or gradients are not for too many steps in a row."""

    exit_code: ClassVar[int] = 8


class MissingPackage(LingoError):
    """A package of one of lingo's extras is not installed."""

    exit_code: ClassVar[int] = 2


def check_package(name: str, what: str, *, extra: str) -> None:
    """Raises MissingPackage unless package `name` of an extra is installed; `what` needs it."""
    if importlib.util.find_spec(name) is None:
        raise MissingPackage(
            f"{what} needs {name}, which is not installed: pip install 'lingo-tf[{extra}]'"
        )


class ParamError(LingoError, AttributeError, ValueError):
    """A mistake in parameters; the message says where, what was given and what was expected."""

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path  # the path of the Params, if the message names it; None: it does not


class Unreadable(ParamError):
    """A text cannot be read as a value of the expected type."""


class UnknownClass(ParamError):
    """A class that a text or a configuration names cannot be found, or is in no trusted place."""


def note_place(error: BaseException, path: str) -> None:
    """Notes in an error the path of the object that raised it, unless a path is noted already."""
    if path and not place_of(error):
        error.add_note(f"{_RAISED_IN}{path}")


def place_of(error: BaseException) -> str:
    """Returns the path of the object that raised an error, from `note_place`, or ""."""
    return _read_note(error, _RAISED_IN)


def note_line(error: BaseException, line: str) -> None:
    """Notes in an error the `file:line` that set the values that the error is about."""
    if line:
        error.add_note(f"{_SET_IN}{line}")


def line_of(error: BaseException) -> str:
    """Returns the `file:line` that set the values an error is about, from `note_line`, or ""."""
    return _read_note(error, _SET_IN)


def _read_note(error: BaseException, prefix: str) -> str:
    notes: list[str] = getattr(error, "__notes__", [])
    return next((n.removeprefix(prefix) for n in notes if n.startswith(prefix)), "")


def suggest(word: str, words: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" with the likeliest of `words`, or "".

    The likeliest are the word in another case, else its synonym here, else up to three similar
    words.
    """
    if len(word) > MAX_SHOWN:
        return ""
    known = {known.lower(): known for known in words}
    near = [w for w in (word, *synonyms(word)) if w.lower() in known]
    near = near[:1] or difflib.get_close_matches(word.lower(), known, 3, 0.6)
    close = [known[one.lower()] for one in near]
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def shorten(text: str) -> str:
    """Returns a text quoted for messages, shortened to about 80 characters."""
    return repr(text) if len(text) <= 80 else f"{text[:77]!r}..."
