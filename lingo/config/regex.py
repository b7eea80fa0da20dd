"""Checks regular expressions in configurations."""

from __future__ import annotations

import re

from lingo.config.base.errors import ParamError

MAX_CHARACTERS = 1000


def check_regex(pattern: str) -> None:
    """Raises ParamError for a text that is too long or not a regular expression.

    Nested repeats such as `(a+)+` are not refused, but avoid them: Python's matching time doubles
    with each character of a name.
    """
    if len(pattern) > MAX_CHARACTERS:
        raise ParamError(f"{pattern!r:.80}... has more than {MAX_CHARACTERS} characters")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ParamError(f"{pattern!r} is not a regular expression: {error}") from None
