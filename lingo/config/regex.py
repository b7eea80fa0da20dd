"""Regular expressions in configurations: what Python takes, and what it matches in time."""

from __future__ import annotations

import importlib
import math
import re
from typing import Any, cast

from lingo.config.params import ParamError

MAX_CHARACTERS = 1000
MAX_WAYS = 1_000_000  # three times anything at all, and some choices
MAX_COUNT = 1000  # of repetitions that are asked for; Python goes round as often for an empty text

_NAME_CHARACTERS = 50
_PARSER: Any = importlib.import_module("re._parser")  # nothing public shows how `re` reads one
_REPEATS = (_PARSER.MAX_REPEAT, _PARSER.MIN_REPEAT, _PARSER.POSSESSIVE_REPEAT)


def check_regex(pattern: str) -> None:
    """Checks a regular expression.

    Python tries every way in which a text may match. Those of what repeats or chooses multiply,
    and where a repeated group holds such, as `(a+)+`, they double with each character.

    Raises:
        ParamError: if it is none, or may take for ever on a name of fifty characters.
    """
    if len(pattern) > MAX_CHARACTERS:
        raise ParamError(f"{pattern!r:.80}... has more than {MAX_CHARACTERS} characters")
    try:
        re.compile(pattern)
        ways = _ways(_PARSER.parse(pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise ParamError(f"{pattern!r} is no regular expression: {error}") from None
    if ways > MAX_WAYS:
        raise ParamError(
            f"{pattern!r} may take for ever to match: repeat no group in which something repeats"
            " or chooses, as (a+)+ does, and no more than three things in all"
        )


def _ways(part: Any) -> float:
    """Returns a bound on the ways in which a parsed pattern matches a name; inf for too many."""
    if not isinstance(part, _PARSER.SubPattern):
        return 1
    return math.prod(_ways_of(kind, about) for kind, about in part)


def _ways_of(kind: Any, about: Any) -> float:
    """Returns the same of one item: what it is, and what `re` tells about it."""
    if kind in _REPEATS:
        low, high, inner = about
        if _repeats(inner) or low > MAX_COUNT:
            return math.inf
        return max(1, min(high, _NAME_CHARACTERS) - low + 1)
    if kind is _PARSER.BRANCH:
        return sum(map(_ways, about[1]))
    parts = cast("tuple[Any, ...]", about) if isinstance(about, tuple) else (about,)
    return math.prod(map(_ways, parts))


def _repeats(part: Any) -> bool:
    """Returns whether something in a parsed pattern, however deep, repeats or chooses."""
    if isinstance(part, (_PARSER.SubPattern, tuple, list)):
        return any(map(_repeats, part))
    return any(part is kind for kind in (*_REPEATS, _PARSER.BRANCH))  # they equal characters
