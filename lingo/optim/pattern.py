"""Patterns that select weights by their names."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence

from lingo.config.params import ParamError
from lingo.config.regex import check_regex


def match_patterns(patterns: Sequence[str], name: str) -> list[str]:
    """Returns the patterns that match the whole name of a weight."""
    return [pattern for pattern in patterns if re.fullmatch(pattern, name)]


@contextlib.contextmanager
def name_field(field: str) -> Iterator[None]:
    """Prepends the name of a field to the text of a ParamError raised inside."""
    try:
        yield
    except ParamError as error:
        raise ParamError(f"{field}: {error}") from None


def check_patterns(patterns: Iterable[str]) -> None:
    """Raises ParamError for a pattern that is too long or not a regular expression."""
    for pattern in patterns:
        check_regex(pattern)


def check_used(patterns: Sequence[str], names: Sequence[str]) -> None:
    """Raises ParamError for a pattern that matches no weight."""
    for pattern in patterns:
        if not any(re.fullmatch(pattern, name) for name in names):
            raise ParamError(
                f"{pattern!r} matches none of {len(names)} weights; a pattern matches a whole name"
                f" such as {names[0]!r}"
                if names
                else f"{pattern!r} matches no weight: the model has none"
            )
