"""Patterns for the names of weights match whole names, and one that matches nothing is an error."""

import pytest

from lingo.config.params import ParamError
from lingo.optim.pattern import check_patterns, check_used, match_patterns


def test_a_pattern_matches_a_whole_name():
    patterns = ["l/0", "l/.*", ".*/w", "w"]
    assert match_patterns(patterns, "l/0/w") == ["l/.*", ".*/w"]
    assert match_patterns(patterns, "w") == ["w"]


def test_a_text_that_is_no_regular_expression_is_refused():
    check_patterns(["a+", ".*"])
    with pytest.raises(ParamError, match=r"'\(' is not a regular expression: missing \)"):
        check_patterns(["a", "("])


def test_a_pattern_that_matches_nothing_is_refused_with_an_example():
    check_used(["l/.*"], ["l/0/w", "head"])
    with pytest.raises(ParamError, match=r"'l' matches none of 2 weights; .* such as 'l/0/w'"):
        check_used(["head", "l"], ["l/0/w", "head"])
    with pytest.raises(ParamError, match="'l' matches no weight: the model has none"):
        check_used(["l"], [])
