"""A snippet is a string with a source."""

import copy

from tasks.dialog.tools.tool import Snippet


def test_a_snippet_is_the_string_that_it_is_made_of():
    snippet = Snippet("7856", "calculator")
    assert snippet == "7856"
    assert [snippet] == ["7856"]
    assert Snippet("7856").source == ""


def test_a_copy_has_the_source():
    snippet = Snippet("7856", "calculator")
    other = copy.deepcopy(snippet)
    assert (other, other.source) == (snippet, "calculator")
