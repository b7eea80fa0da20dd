"""The research loop: queries until there is an answer, tools that fail."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from lingo.config.params import ParamError
from tasks.dialog.research import (
    Answer,
    Citation,
    Research,
    Search,
    append_search,
)
from tasks.dialog.tools.calculator import Calculator
from tasks.dialog.tools.retrieval import Entry, Retrieval
from tasks.dialog.tools.tool import Tool
from tasks.dialog.tools.toolset import Toolset
from tasks.dialog.tools.translator import Translator

URL = "https://example.org/nadal"


class Nadal(Retrieval):
    """Two facts."""

    def entries(self) -> list[Entry]:
        return [
            Entry("Rafael Nadal", "Age", "35", URL),
            Entry("Rafael Nadal", "Favourite song", "none\n  is known"),
        ]


class Failing(Tool):
    """Raises an exception."""

    def __call__(self, query: str) -> list[str]:
        raise ValueError("no")


def research(*tools: type[Tool], **values: Any) -> Research:
    return Research.params(toolset=Toolset.params(tools=list(tools)), **values).build()


class Script:
    """A model that writes one text after another, and keeps the contexts that it was given."""

    def __init__(self, *outputs: str) -> None:
        self.outputs, self.contexts = list(outputs), []

    def __call__(self, context: str) -> str:
        self.contexts.append(context)
        return self.outputs[len(self.contexts) - 1]


def test_a_model_that_needs_no_tool_answers_at_once() -> None:
    model = Script("User, Hi, how can I help?")
    answer = research(Calculator)(model, "Hello")
    assert answer == Answer("Hi, how can I help?", "answered", (), ("User, Hi, how can I help?",))
    assert model.contexts == ["Hello"]
    assert answer.citations == []


def test_a_query_and_what_the_tools_found_are_appended_to_the_context() -> None:
    model = Script("TS, 135+7721", "User, It is 7856.")
    answer = research(Calculator, Translator, Nadal)(model, "How much is 135+7721?")
    assert (answer.text, answer.ending) == ("It is 7856.", "answered")
    assert model.contexts == [
        "How much is 135+7721?",
        "How much is 135+7721? RESPONSE TS, 135+7721 TOOLS 7856",
    ]
    assert answer.citations == [Citation("7856", "Calculator", "")]


def test_research_may_ask_again_and_every_snippet_has_its_source() -> None:
    model = Script("TS, Rafael Nadal's age", "TS, Rafael Nadal's favourite song", "User, 35.")
    answer = research(Calculator, Translator, Nadal)(model, "How old is he?")
    assert model.contexts[-1] == (
        "How old is he? RESPONSE TS, Rafael Nadal's age TOOLS Rafael Nadal / Age / 35"
        " RESPONSE TS, Rafael Nadal's favourite song"
        " TOOLS Rafael Nadal / Favourite song / none is known"
    )
    assert answer.citations == [
        Citation("Rafael Nadal / Age / 35", "Nadal", URL),
        Citation("Rafael Nadal / Favourite song / none is known", "Nadal", ""),
    ]
    assert [(call.tool, call.query) for call in answer.calls] == [
        (tool, query)
        for query in ("Rafael Nadal's age", "Rafael Nadal's favourite song")
        for tool in ("Calculator", "Translator", "Nadal")
    ]
    assert answer.outputs == tuple(model.outputs)


@pytest.mark.parametrize("limit", [0, 1, 4])
def test_the_number_of_searches_is_bounded(limit: int) -> None:
    model = Script(*["TS, 1+1"] * 9)
    answer = research(Calculator, max_searches=limit, fallback="Sorry.")(model, "?")
    assert (answer.text, answer.ending) == ("Sorry.", "limit")
    assert (len(answer.calls), len(model.contexts)) == (limit, limit + 1)


def test_the_limit_of_the_paper_is_four() -> None:
    model = Script(*["TS, 1+1"] * 4, "User, 2.")
    assert research(Calculator)(model, "?").text == "2."


def test_the_model_reads_that_nothing_was_found() -> None:
    model = Script("TS, blue in French", "User, I do not know.")
    research(Calculator, Translator)(model, "?")
    assert model.contexts[-1] == "? RESPONSE TS, blue in French TOOLS nothing"


def test_a_tool_that_fails_does_not_end_the_conversation_and_is_recorded() -> None:
    model = Script("TS, 1+1", "User, 2.")
    answer = research(Failing, Calculator)(model, "?")
    assert answer.text == "2."
    assert [call.error for call in answer.calls] == ["ValueError: no", ""]
    assert answer.citations == [Citation("2", "Calculator", "")]


def test_an_error_of_the_model_is_the_callers() -> None:
    with pytest.raises(IndexError):
        research(Calculator)(Script(), "?")


@pytest.mark.parametrize("after", [(), ("TS, 1+1",)])
def test_a_text_without_a_recipient_is_the_answer(after: tuple[str, ...]) -> None:
    answer = research(Calculator)(Script(*after, " not much. "), "What's up?")
    assert (answer.text, answer.ending) == ("not much.", "malformed")


def test_a_query_is_one_line() -> None:
    model = Script("TS, 1 +\n 1", "User, 2.")
    assert research(Calculator)(model, "?").calls[0].query == "1 + 1"
    assert model.contexts[-1] == "? RESPONSE TS, 1 + 1 TOOLS 2"


def test_several_snippets_stand_between_semicolons() -> None:
    assert append_search("?", Search("q", ["a\n b", "c"])) == "? RESPONSE TS, q TOOLS a b; c"


def test_a_context_may_be_anything_that_searches_can_be_appended_to() -> None:
    def model(turns: tuple[str, ...]) -> str:
        return "TS, 1+1" if len(turns) == 1 else f"User, {turns[-1]}"

    def append(turns: tuple[str, ...], search: Search) -> tuple[str, ...]:
        return (*turns, search.request, search.result)

    answer = research(Calculator)(model, ("How much is 1+1?",), append)
    assert answer.text == "2"


def test_no_tool_and_no_rating_needs_tensorflow() -> None:
    modules = "import lingo, sys, tasks.dialog.ratings, tasks.dialog.research as r"
    code = f"{modules}; r.Research.params().build(); assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ParamError, match="max_searches"):
        Research.params(max_searches=-1).build()
