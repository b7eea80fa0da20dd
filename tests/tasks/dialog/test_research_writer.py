"""Researched dialogs: every answer rests on what the tools really say."""

from __future__ import annotations

import functools
import random

import pytest

from lingo.config.params import ParamError
from lingo.datasets.signatures import Signatures
from tasks.dialog import wordings
from tasks.dialog.facts import all_facts
from tasks.dialog.judge import Judge
from tasks.dialog.message import parse_message
from tasks.dialog.research import Answer, Research, Search
from tasks.dialog.research_writer import ResearchWriter
from tasks.dialog.templates import ResearchDialogs, TemplateDialogs
from tasks.dialog.tools.calculator import Calculator
from tasks.dialog.tools.fact_retrieval import FactRetrieval
from tasks.dialog.tools.tool import Tool
from tasks.dialog.tools.toolset import Toolset
from tasks.dialog.tools.translator import Translator
from tasks.dialog.turns import Turn
from tasks.dialog.writer import Asked

NUM_QUESTIONS = 400
FUNCTIONS = Signatures.params(packages=["absl"])
TOOLS = [Calculator.params(), Translator.params(), FactRetrieval.params(functions=FUNCTIONS)]


@functools.cache
def writer(invented_share: float = 0.0) -> ResearchWriter:
    tools: list[Tool] = [params.build() for params in TOOLS]
    known = all_facts(FUNCTIONS.build())
    return ResearchWriter(known, tools, heldout=False, invented_share=invented_share)


@functools.cache
def exchanges() -> list[tuple[Asked, list[Turn]]]:
    generators = [random.Random(f"research {i}") for i in range(NUM_QUESTIONS)]
    asked = [writer().ask(rng) for rng in generators]
    return [
        (one, list(writer().answer(one, rng))) for one, rng in zip(asked, generators, strict=True)
    ]


@functools.cache
def research() -> Research:
    return Research.params(toolset=Toolset.params(tools=TOOLS)).build()


def replay(asked: Asked, turns: list[Turn]) -> Answer:
    """Returns what comes of the research loop if a model writes what the writer wrote."""
    written = iter([turn.text for turn in turns if turn.speaker == "model"])

    def append(read: tuple[str, ...], search: Search) -> tuple[str, ...]:
        return (*read, search.request, search.result)

    read: list[tuple[str, ...]] = []
    answer = research()(lambda turns: (read.append(turns), next(written))[1], (asked.text,), append)
    assert read[-1][1:] == tuple(turn.text for turn in turns[:-1])
    return answer


def test_a_model_that_has_learned_them_is_told_by_the_tools_what_the_dialogs_say() -> None:
    for asked, turns in exchanges()[:40]:
        answer = replay(asked, turns)
        assert answer.ending == "answered"
        assert f"User, {answer.text}" == turns[-1].text


def test_answers_are_good_and_what_they_state_is_in_what_the_tools_found() -> None:
    judge, num_vague, num_claims = Judge(all_facts(FUNCTIONS.build())), 0, 0
    for asked, turns in exchanges():
        verdict = judge(asked, parse_message(turns[-1].text).text)
        assert verdict.ratings["sensible"]
        assert not verdict.ratings["unsafe"]
        assert verdict.is_supported == verdict.has_claims
        if verdict.has_claims:
            assert asked.fact is not None
            assert asked.fact.value in turns[-2].text
        num_claims += verdict.has_claims
        num_vague += parse_message(turns[-1].text).text in wordings.VAGUE.train
    assert num_claims > NUM_QUESTIONS / 2
    assert 0 < num_vague < NUM_QUESTIONS / 20


def test_a_question_about_the_code_of_a_territorys_money_takes_two_searches() -> None:
    lengths = {len(turns) for asked, turns in exchanges() if asked.via is not None}
    assert lengths == {5}
    assert {len(turns) for asked, turns in exchanges() if asked.via is None} == {1, 3}


def test_an_invented_name_is_the_same_in_all_turns_and_is_mostly_no_fact() -> None:
    known = {text for fact in all_facts(FUNCTIONS.build()) for text in (fact.line, fact.value)}
    num_invented = num_answered = 0
    for i in range(NUM_QUESTIONS):
        rng = random.Random(f"research {i}")
        asked = writer(0.999).ask(rng)
        turns = writer(0.999).exchange(asked, rng)
        answer = parse_message(turns[-1].text).text
        kind = asked.fact.kind if asked.fact else "request"
        if kind in ("request", "result") or answer in wordings.VAGUE.train:
            continue
        snippets = [snippet.split(" / ") for snippet in turns[-2].text.split("; ")]
        used = next(snippet for snippet in snippets if snippet[-1] in answer)
        if len(used) == 3:  # subject, relation, value
            assert used[0] in turns[-3].text
            assert used[0] in answer
            assert asked.via or used[0] in turns[0].text
        num_answered += 1
        num_invented += " / ".join(used) not in known
    assert num_answered > NUM_QUESTIONS / 3
    assert num_invented > 0.9 * num_answered


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_bad_share_of_invented_names_is_refused(share: float) -> None:
    with pytest.raises(ParamError, match=f"invented_share={share}"):
        ResearchDialogs.params(num_dialogs=1, invented_share=share).build()


@pytest.mark.parametrize("split", ["train", "heldout_facts", "heldout_templates"])
def test_researched_and_rated_dialogs_hold_out_the_same_facts(split) -> None:
    fields = {"split": split, "num_dialogs": 200, "functions": FUNCTIONS}
    researched = ResearchDialogs.params(**fields, tools=TOOLS).build()
    rated = TemplateDialogs.params(**fields).build()
    for source in (researched, rated):
        facts = [asked.fact for asked in source.questions() if asked.fact is not None]
        assert {fact.is_heldout for fact in facts} == {split == "heldout_facts"}
    assert not any(turn.ratings for dialog in researched.dialogs() for turn in dialog.turns)
