"""Templated dialogs: ratings follow the written rules, and nothing held out is in training."""

from __future__ import annotations

import functools
import random
import re

import pytest

from lingo.config.params import ParamError
from lingo.datasets.signatures import Signatures
from tasks.dialog import wordings
from tasks.dialog.facts import cldr_facts
from tasks.dialog.templates import TemplateDialogs
from tasks.dialog.turns import ATTRIBUTES, Dialog, Response
from tasks.dialog.wordings import Wordings
from tasks.dialog.writer import Asked, Writer, pick

SPLITS = ("train", "heldout_facts", "heldout_templates")
NUM_DIALOGS = 300
FUNCTIONS = Signatures.params(packages=["absl"])


@functools.cache
def dialogs(split: str = "train", seed: int = 0) -> list[Dialog]:
    params = TemplateDialogs.params(
        split=split, num_dialogs=NUM_DIALOGS, seed=seed, functions=FUNCTIONS
    )
    return params.build().dialogs()[:NUM_DIALOGS]


def responses(split: str) -> list[Response]:
    return [r for dialog in dialogs(split) for r in dialog.responses() if r.turn.ratings]


def texts(split: str) -> str:
    return "\n".join(turn.text for dialog in dialogs(split) for turn in dialog.turns)


def pattern(wording: str) -> str:
    """Returns a regular expression of what a template can say."""
    return re.sub(r"\\{\w+\\}", ".+", re.escape(wording))


def says(choices: Wordings, text: str) -> bool:
    return any(wording in text for wording in (*choices.train, *choices.heldout))


def test_dialogs_depend_on_the_seed_alone() -> None:
    first = dialogs()
    again = TemplateDialogs.params(num_dialogs=50, functions=FUNCTIONS).build().dialogs()
    assert again[:50] == first[:50]
    assert dialogs(seed=1) != first


@pytest.mark.parametrize("split", SPLITS)
def test_ratings_are_cascaded_and_each_is_often_0_and_often_1(split: str) -> None:
    rated = [response.turn.ratings for response in responses(split)]
    assert all(list(ratings) == list(ATTRIBUTES) for ratings in rated)
    assert all(r["interesting"] <= r["specific"] <= r["sensible"] for r in rated)
    for name in ATTRIBUTES:
        assert 0.05 < sum(r[name] for r in rated) / len(rated) < 0.9


@pytest.mark.parametrize("split", SPLITS)
def test_a_specific_response_names_the_subject_and_a_wrong_subject_is_not_sensible(split):
    subjects = {fact.subject for fact in cldr_facts()}
    checked = 0
    for context, turn in responses(split):
        named = [subject for subject in subjects if subject in context[-1].text]
        if turn.ratings["specific"] and named:
            assert any(subject in turn.text for subject in named)
            checked += 1
        if says(wordings.VAGUE, turn.text):
            assert turn.ratings["sensible"]
            assert not turn.ratings["specific"]
    assert checked > 50


def test_a_slip_in_the_name_of_the_subject_is_one_character_and_not_sensible() -> None:
    known = [fact for fact in cldr_facts() if fact.kind == "own_name"]
    writer, num_slips = Writer(known, heldout=False), 0
    subjects = [fact.subject for fact in known]
    for i in range(400):
        rng = random.Random(f"slip {i}")
        asked = Asked("", pick(known, rng))
        (turn,) = writer.answer(asked, rng)
        if says(wordings.VAGUE, turn.text):
            continue
        if not any(subject in turn.text for subject in subjects):
            slip = re.compile("|".join(_with_any_character(asked.fact.subject)))
            assert slip.search(turn.text), (asked, turn)
            assert not any(turn.ratings[name] for name in ("sensible", "specific"))
            num_slips += 1
    assert num_slips > 20


def _with_any_character(name: str) -> list[str]:
    """Returns patterns of a name with any character in one of its places."""
    return [f"{re.escape(name[:i])}.{re.escape(name[i + 1 :])}" for i in range(len(name))]


@pytest.mark.parametrize("split", SPLITS)
def test_an_interesting_response_has_two_facts_and_two_facts_are_not_always_interesting(split):
    joined = [r.turn.ratings for r in responses(split) if says(wordings.JOINS, r.turn.text)]
    others = [r.turn.ratings for r in responses(split) if not says(wordings.JOINS, r.turn.text)]
    assert not any(ratings["interesting"] for ratings in others)
    share = sum(ratings["interesting"] for ratings in joined) / len(joined)
    assert 0.2 < share < 0.8


@pytest.mark.parametrize("split", SPLITS)
def test_a_response_is_unsafe_that_is_rude_or_consents_to_a_harmful_request(split):
    activities = (*wordings.ACTIVITIES, *wordings.HELDOUT_ACTIVITIES)
    harmful = re.compile("|".join(pattern(activity.harmful) for activity in activities))
    for context, turn in responses(split):
        consents = says(wordings.CONSENTS, turn.text)
        wanted = says(wordings.RUDE, turn.text) or (
            consents and harmful.search(context[-1].text) is not None
        )
        assert turn.ratings["unsafe"] == wanted


def test_no_held_out_subject_or_wording_is_in_training() -> None:
    heldout = {fact.subject for fact in cldr_facts() if fact.is_heldout and len(fact.subject) > 6}
    known = {fact.subject for fact in cldr_facts() if not fact.is_heldout}
    known |= {fact.language for fact in cldr_facts()}  # which are asked for, not about
    unknown = [s for s in heldout if not any(s in other for other in known)]
    asked = re.compile(rf"\b({'|'.join(map(re.escape, unknown))})\b")
    questions = {
        split: [r.context[-1].text for r in responses(split)]
        for split in ("train", "heldout_facts")
    }
    assert not [text for text in questions["train"] if asked.search(text)]
    assert sum(1 for text in questions["heldout_facts"] if asked.search(text)) > 100
    tables = [*wordings.QUESTIONS.values(), *wordings.ANSWERS.values(), wordings.RUDE]
    tables += [wordings.VAGUE, wordings.JOINS, wordings.REQUESTS, wordings.CONSENTS]
    for table in tables:
        assert not set(table.train) & set(table.heldout)
    rude = wordings.RUDE.heldout + wordings.VAGUE.heldout + wordings.GREETINGS.heldout
    assert not [text for text in rude if text in texts("train")]
    assert all(text in texts("heldout_templates") for text in rude)


def test_without_small_talk_it_is_said_and_none_is_invented() -> None:
    source = TemplateDialogs.params(num_dialogs=3, functions=FUNCTIONS).build()
    has_talk = not source.remarks()
    assert (len(source.dialogs()) > 3) == has_talk


def test_the_id_of_the_content_is_another_for_other_dialogs() -> None:
    def content_id(**fields) -> str:
        return TemplateDialogs.params(num_dialogs=3, **fields).build().content_id()

    ids = [content_id(functions=FUNCTIONS) for _ in range(2)]
    others = [content_id(functions=FUNCTIONS, seed=1), content_id()]
    assert len({*ids, *others}) == 3


def test_no_dialogs_are_refused() -> None:
    with pytest.raises(ParamError, match="num_dialogs=0 is not positive"):
        TemplateDialogs.params(num_dialogs=0).build()
