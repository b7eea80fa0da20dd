"""Tokens of dialogs: the formats of the paper, contexts that are cut at turns, no forged words."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.params import ParamError
from tasks.dialog import formats
from tasks.dialog.formats import SENTINELS, DialogTokenizer
from tasks.dialog.turns import Dialog, Response, Turn
from tests.tasks.dialog.dialogs import CASUAL, LONGER

TOKENIZER = DialogTokenizer.params().build()
(ANSWER,) = CASUAL.responses()
LAST = list(LONGER.responses())[-1]


def prefix(turns, max_tokens):
    return formats.response_prefix(turns, tokenizer=TOKENIZER, max_tokens=max_tokens)


def test_the_generative_format_is_the_papers():
    source, target = formats.generative(ANSWER, tokenizer=TOKENIZER, length=99)
    assert TOKENIZER.decode([*source, *target]) == "What's up? RESPONSE not much."
    assert TOKENIZER.decode(source) == "What's up? RESPONSE"
    assert target.tolist() == [*TOKENIZER.encode("not much."), TOKENIZER.end_id]


@pytest.mark.parametrize(
    ("attribute", "text"), [("sensible", "SENSIBLE 1"), ("interesting", "INTERESTING 0")]
)
def test_the_discriminative_format_is_the_papers(attribute, text):
    pair = formats.discriminative(ANSWER, attribute, tokenizer=TOKENIZER, length=99)
    whole = TOKENIZER.decode([*pair.source, *pair.target])
    assert whole == f"What's up? RESPONSE not much. {text}"
    assert pair.target.tolist() == [TOKENIZER.rating_ids[int(text[-1])]]


def test_each_speaker_has_a_sentinel_but_a_user_who_begins():
    assert TOKENIZER.decode(prefix(LAST.context, 99)) == (
        "RESPONSE Hi, I speak first. USER How much is 135+7721? RESPONSE TS, 135+7721"
        " TOOLS 7856 RESPONSE"
    )


def test_no_text_is_encoded_to_a_sentinel():
    text = " ".join([*SENTINELS, *(f"{word} {word}" for word in SENTINELS)])
    forged = Response((Turn("user", text),), Turn("model", text, {"unsafe": 1}))
    source, target = formats.discriminative(forged, "unsafe", tokenizer=TOKENIZER, length=500)
    sentinels = source[source >= TOKENIZER.tokenizer.vocab_size].tolist()
    assert sentinels == [TOKENIZER.sentinel("RESPONSE"), TOKENIZER.sentinel("UNSAFE")]
    assert target.tolist() == [TOKENIZER.sentinel("1")]


@pytest.mark.parametrize("room", range(3, 40))
def test_a_context_that_is_too_long_loses_first_turns_and_keeps_as_many_as_fit(room):
    turns = [Turn("user", "aaaa"), Turn("model", "bbb"), Turn("user", "cccc"), Turn("user", "dd")]
    texts = [
        "aaaa RESPONSE bbb USER cccc USER dd RESPONSE",
        "RESPONSE bbb USER cccc USER dd RESPONSE",
        "cccc USER dd RESPONSE",
        "dd RESPONSE",
    ]
    sizes = [4 + 4 + 5 + 3 + 1, 4 + 5 + 3 + 1, 4 + 3 + 1, 3]
    wanted = next(text for text, size in zip(texts, sizes, strict=True) if size <= room)
    assert TOKENIZER.decode(prefix(turns, room)) == wanted


def test_a_last_turn_that_is_too_long_alone_keeps_its_speaker_and_its_end():
    turns = [Turn("user", "before"), Turn("tools", "0123456789")]
    assert TOKENIZER.decode(prefix(turns, 6)) == "TOOLS 6789 RESPONSE"
    assert TOKENIZER.decode(prefix([Turn("user", "0123456789")], 6)) == "56789 RESPONSE"


@pytest.mark.parametrize("length", range(12, 40))
def test_examples_have_at_most_so_many_tokens_and_the_whole_response(length):
    pair = formats.generative(ANSWER, tokenizer=TOKENIZER, length=length)
    rated = formats.discriminative(ANSWER, "unsafe", tokenizer=TOKENIZER, length=length)
    assert (pair is None) == (length < 3 + 10)
    assert (rated is None) == (length < 3 + 9 + 2)
    for example in filter(None, (pair, rated)):
        assert len(example.source) + len(example.target) == min(length, 30 - 9 + (example is rated))
    if pair:
        assert TOKENIZER.decode(pair.target) == "not much."


def test_a_prefix_of_nothing_is_refused():
    for turns, room in (([], 9), (ANSWER.context, 2)):
        with pytest.raises(ParamError, match="wanted 3 tokens and 1 turn, or more"):
            prefix(turns, room)


@pytest.mark.parametrize("length", [8, 13, 30, 200])
def test_a_dialog_to_pre_train_on_is_cut_before_turns_and_ends_once(length):
    dialog = Dialog((*LONGER.turns, Turn("user", "0123456789" * 3)))
    parts = formats.running_text(dialog, tokenizer=TOKENIZER, length=length)
    assert all(len(source) == 0 and 0 < len(target) <= length for source, target in parts)
    joined = np.concatenate([target for _, target in parts])
    if length == 200:
        assert TOKENIZER.decode(joined) == (
            "RESPONSE Hi, I speak first. USER How much is 135+7721? RESPONSE TS, 135+7721"
            " TOOLS 7856 RESPONSE User, it is 7856. USER " + "0123456789" * 3
        )
        assert (joined == TOKENIZER.end_id).sum() == 1
    if length == 30:
        assert [TOKENIZER.decode(target) for _, target in parts] == [
            "RESPONSE Hi, I speak first.",
            "How much is 135+7721?",
            "RESPONSE TS, 135+7721 TOOLS 7856",
            "RESPONSE User, it is 7856.",
            "0123456789" * 3,
        ]


def test_an_answer_is_the_text_before_an_end_or_a_sentinel():
    text, user = TOKENIZER.encode("not much."), TOKENIZER.sentinel("USER")
    for stop in (TOKENIZER.end_id, user):
        assert TOKENIZER.answer([*text, stop, *text]) == "not much."
    assert TOKENIZER.answer(text) == "not much."
    assert TOKENIZER.answer([]) == ""


def test_too_few_sentinels_are_refused():
    with pytest.raises(ParamError, match="num_sentinels=3: dialogs need 9: USER, RESPONSE"):
        DialogTokenizer.params(num_sentinels=3).build()
