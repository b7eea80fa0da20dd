"""Regular expressions: what is refused."""

from __future__ import annotations

import pytest

from lingo.config.params import ParamError
from lingo.config.regex import MAX_CHARACTERS, check_regex


@pytest.mark.parametrize("pattern", ["", r"model/.*/layers/\d+/(ffn|attention)/.*", "(?!model/).*"])
def test_a_regular_expression_is_accepted(pattern: str) -> None:
    check_regex(pattern)


@pytest.mark.parametrize(
    "pattern", ["(", "[", "*", "(?P<a", "(" * 499 + ")" * 499 + "**", "a{99999999999}"]
)
def test_another_text_is_refused(pattern: str) -> None:
    with pytest.raises(ParamError, match="is not a regular expression"):
        check_regex(pattern)


def test_a_long_text_is_refused() -> None:
    with pytest.raises(ParamError, match="more than 1000 characters"):
        check_regex("a" * (MAX_CHARACTERS + 1))
