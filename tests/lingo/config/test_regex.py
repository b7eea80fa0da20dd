"""Regular expressions: which are refused, and that those that are taken end in time."""

from __future__ import annotations

import re
import time

import pytest

from lingo.config.params import ParamError
from lingo.config.regex import MAX_CHARACTERS, check_regex

NAME = "model/stack/layers/11/attention/query/w_with_a_long_name"


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        ".*",
        r"model/.*/layers/\d+/(ffn|attention)/.*",
        "(?!model/embedding/).*",
        r"(?:a|b)c+(d)*",
        r"layers/[*+(]+/\(x+\)+",
        "a{2}(b){3}",
        r".*/\.*",
        "(ab)?(cd)?",
        "(?:a|b)+",  # which Python reads as [ab]+
        ".+?.*",
        r"(\w+)/(?=\w*)(?P<layer>\w*)!",
    ],
)
def test_what_ends_in_time_is_taken(pattern: str) -> None:
    check_regex(pattern)
    start = time.process_time()
    re.fullmatch(pattern, NAME)
    assert time.process_time() - start < 0.1


@pytest.mark.parametrize(
    "pattern",
    [
        "(.*)*x",
        "(a+)+",
        "((((.+)+)+)+)+x",
        "(.|.)*y",
        "(a?){40}b",
        "(?:a|a)+",
        "((a)|b)*",
        ".*.*.*.*.*.*x",
        r"(\)+)*",
        "([)]*)+",
        "(.+)(?#)+x",
        "(?x)(.+) +x",
        r"\w*" * 8 + "!",
        ".*/*.*/*.*/*.*/*!",
        r"\w?" * 30 + "!",
        "(a|ab)(c|bcd)" * 11,
        "((?=a+))*b",
        "(?>(a+)+)b",
        "(?:){4000000000}",
        "(?:(?:){999}){999}",
    ],
)
def test_what_may_take_for_ever_is_refused(pattern: str) -> None:
    with pytest.raises(ParamError, match="may take for ever"):
        check_regex(pattern)


@pytest.mark.parametrize("pattern", ["(", "[", "*", "(?P<a", "(" * 499 + ")" * 499 + "**"])
def test_what_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ParamError, match="is no regular expression"):
        check_regex(pattern)


def test_what_is_long_is_refused() -> None:
    with pytest.raises(ParamError, match="more than 1000 characters"):
        check_regex("a" * (MAX_CHARACTERS + 1))
