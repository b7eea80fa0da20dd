"""Errors about parameters, and suggestions for misspelt words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

from lingo.config.errors import LingoError

MAX_SHOWN = 200  # characters of a value that an error shows


class ParamError(LingoError, AttributeError, ValueError):
    """A mistake in parameters; the message says where, what was given and what was expected."""

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path  # of the Params that the message already names


class Unreadable(ParamError):
    """A text is not a value of the expected type."""


class UnknownClass(ParamError):
    """No class has that name."""


def suggest(word: str, words: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" for the nearest words, ignoring case, or ""."""
    if len(word) > MAX_SHOWN:
        return ""
    known = {known.lower(): known for known in words}
    close = [known[near] for near in difflib.get_close_matches(word.lower(), known, 3, 0.6)]
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def shorten(text: str) -> str:
    """Returns a text quoted for messages, shortened to about 80 characters."""
    return repr(text) if len(text) <= 80 else f"{text[:77]!r}..."
