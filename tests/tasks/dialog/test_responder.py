"""The research loop as a responder of conversations."""

from __future__ import annotations

import types
from typing import Any

import pytest

from lingo.config.params import ParamError
from lingo.decode.chat import Chat, ChatOptions, Reply, Turn
from lingo.decode.text import Continuation
from tasks.dialog import ranking
from tasks.dialog.ranking import Ranking
from tasks.dialog.research import Research
from tasks.dialog.responder import DialogResponder
from tasks.dialog.tools.calculator import Calculator
from tasks.dialog.tools.toolset import Toolset
from tasks.dialog.turns import ATTRIBUTES


class Model:
    """Asks the toolset once about the user's turn, then says what it was told; it writes bits."""

    others: tuple[str, ...] = ()  # what it also writes

    def __init__(self) -> None:
        self.read: list[tuple[Turn, ...]] = []
        self.decodings: list[Any] = []
        self.num_closed = 0
        self.experiment = types.SimpleNamespace(
            train_input=types.SimpleNamespace(
                dialog_prompt=lambda turns: turns,
                tokenizer=types.SimpleNamespace(answer=lambda ids: "".join(map(chr, ids))),
            )
        )

    def stream(self, prompt: Any, decoding: Any, *, seed: int = 0) -> Any:
        self.read.append(prompt)
        self.decodings.append(decoding)
        last = prompt[-1]
        text = f"User, It is {last.text}." if last.speaker == "tools" else f"TS, {last.text}"
        try:
            yield from text
        except GeneratorExit:
            self.num_closed += 1
            raise
        texts = [text, *self.others]
        return [Continuation(text, [*map(ord, text)], [], 0.0, is_ended=True) for text in texts]

    def predict(self, inputs: Any, *, batch_size: int | None = None) -> Any:
        raise NotImplementedError


@pytest.fixture
def model() -> Model:
    return Model()


def begin(model: Model, **options: Any) -> Chat:
    research = Research.params(toolset=Toolset.params(tools=[Calculator]))
    responder = DialogResponder.params(research=research).build()
    return Chat(model, responder, ChatOptions(**options))


def test_an_answer_is_that_of_research_and_has_calls_and_citations(model: Model) -> None:
    chat = begin(model)
    assert chat.say("135+7721") == "It is 7856."
    user = Turn("user", "135+7721")
    asked = Turn("model", "TS, 135+7721"), Turn("tools", "7856")
    assert model.read == [(user,), (user, *asked)]
    assert chat.turns == [user, Turn("model", "It is 7856.")]
    assert isinstance(chat.reply, Reply)
    (call,) = chat.reply.details["calls of tools"]
    assert (call["tool"], call["query"], call["found"]) == ("Calculator", "135+7721", "7856")
    assert chat.reply.details["ending"] == "answered"
    assert chat.reply.details["citations"] == [{"source": "Calculator", "snippet": "7856"}]


def test_without_tools_the_first_text_is_the_answer(model: Model) -> None:
    chat = begin(model, tools="off")
    assert chat.say("135+7721") == "135+7721"
    assert len(model.read) == 1
    assert chat.reply is not None
    assert chat.reply.details["calls of tools"] == []


def test_a_stop_reaches_the_decoding(model: Model) -> None:
    pieces = begin(model).stream("135+7721")
    assert [next(pieces) for _ in range(3)] == [""] * 3
    pieces.close()
    assert model.num_closed == 1


def test_a_mixture_has_the_prompts_of_its_dialogs_and_other_data_is_refused(model: Model) -> None:
    dialogs = model.experiment.train_input
    model.experiment.train_input = types.SimpleNamespace(inputs={"web": object(), "chat": dialogs})
    assert begin(model).say("1+1") == "It is 2."
    model.experiment.train_input = object()
    with pytest.raises(ParamError, match="DialogResponder needs a DialogInput, got object"):
        begin(model).say("1+1")


RATINGS = {
    "good": dict(zip(ATTRIBUTES, (0.9, 0.9, 0.1, 0.1), strict=True)),
    "rude": dict(zip(ATTRIBUTES, (1.0, 1.0, 1.0, 0.9), strict=True)),
}


@pytest.fixture
def ranked(model: Model, rated: DialogResponder) -> Chat:
    return Chat(model, rated, ChatOptions())


@pytest.fixture
def rated(monkeypatch: pytest.MonkeyPatch) -> DialogResponder:
    monkeypatch.setattr(
        ranking,
        "rate",
        lambda model, responses, *, batch_size: [RATINGS.get(one.turn.text) for one in responses],
    )
    research = Research.params(toolset=Toolset.params(tools=[Calculator]))
    return DialogResponder.params(research=research, ranking=Ranking).build()


def test_the_best_candidate_is_the_answer(model: Model, ranked: Chat) -> None:
    model.others = ("User, rude", "User, good", "User, good", "rude")
    assert ranked.say("135+7721") == "good"
    (decoding,) = model.decodings
    assert (decoding.num_samples, decoding.top_k, decoding.temperature) == (16, 40, 1.0)
    assert ranked.reply is not None
    assert [
        (row["text"], row["drawn"], row["quality"]) for row in ranked.reply.details["candidates"]
    ] == [("good", 2, 3.7), ("rude", 2, "left out")]


def test_if_most_candidates_are_queries_the_most_frequent_one_is_asked(
    model: Model, ranked: Chat
) -> None:
    model.others = ("TS, 135+7721", "TS, 1+1", "TS, 1+1", "TS, 135+7721", "User, good")
    ranked.say("135+7721")
    assert model.read[1][-2:] == (Turn("model", "TS, 135+7721"), Turn("tools", "7856"))


def test_without_tools_the_text_of_a_query_is_a_candidate(
    model: Model, rated: DialogResponder
) -> None:
    model.others = ("TS, good",)
    assert Chat(model, rated, ChatOptions(tools="off")).say("135+7721") == "good"


def test_why_shows_what_the_model_wrote(model: Model, ranked: Chat) -> None:
    model.others = ("good", "good", "good")
    ranked.say("135+7721")
    assert ranked.reply is not None
    assert ranked.reply.details["written by the model"] == [{"text": "good"}]
    assert ranked.reply.details["ending"] == "malformed"  # it names no recipient


def test_if_all_candidates_are_left_out_a_plain_reply_is_the_answer(
    model: Model, ranked: Chat
) -> None:
    model.others = ("User, rude", "User, rude")
    assert ranked.say("135+7721") == Ranking.params().fallback
