"""Conversations: turns and answers, what a stop keeps, which turns a model reads."""

from __future__ import annotations

import json
import types
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.prompt import Prompt
from lingo.data.tokenizer import ByteTokenizer
from lingo.decode.chat import Chat, ChatOptions, ContinueText, Reply, Responder, Turn
from lingo.decode.text import Continuation


class Echo(Responder):
    """Answers a turn by its letters, in capitals, one at a time; refuses turns with a digit."""

    def respond(
        self, model: Any, turns: Sequence[Turn], options: ChatOptions
    ) -> Generator[str, None, Reply]:
        if any(c.isdigit() for c in turns[-1].text):
            raise ParamError("a digit")
        for letter in turns[-1].text:
            yield letter.upper()
        calls = [{"tool": "Echo", "query": turns[-1].text}] if options.tools == "on" else []
        return Reply(turns[-1].text.upper(), {"turns": len(turns), "tool calls": calls})


MODEL: Any = None  # Echo needs none


@pytest.fixture
def chat() -> Chat:
    return Chat(MODEL, Echo.params().build(), ChatOptions())


def test_an_answer_is_a_turn_and_has_details(chat: Chat) -> None:
    assert list(chat.stream("ab")) == ["A", "B"]
    assert chat.say("c") == "C"
    assert chat.turns == [
        Turn("user", "ab"),
        Turn("model", "AB"),
        Turn("user", "c"),
        Turn("model", "C"),
    ]
    assert chat.reply == Reply("C", {"turns": 3, "tool calls": [{"tool": "Echo", "query": "c"}]})
    chat.set_tools("off")
    assert chat.say("d") == "D"
    assert chat.reply is not None
    assert chat.reply.details["tool calls"] == []
    chat.reset()
    assert (chat.turns, chat.reply) == ([], None)


def test_a_stopped_answer_keeps_what_it_has_said(chat: Chat) -> None:
    for said in ("", "A", "AB"):
        chat.reset()
        pieces = chat.stream("abc")
        assert "".join(next(pieces) for _ in said) == said
        pieces.close()
        expected = [Turn("user", "abc"), Turn("model", said)] if said else []
        assert chat.turns == expected
        assert chat.reply == (Reply(said, {"stopped": True}) if said else None)


def test_an_interrupt_inside_a_responder_stops_it(chat: Chat) -> None:
    class Interrupted(Responder):
        def respond(self, model, turns, options):
            yield "a"
            raise KeyboardInterrupt

    chat = Chat(MODEL, Interrupted.params().build(), ChatOptions())
    with pytest.raises(KeyboardInterrupt):
        chat.say("x")
    assert chat.turns == [Turn("user", "x"), Turn("model", "a")]


def test_after_an_error_the_conversation_is_as_before(chat: Chat) -> None:
    chat.say("a")
    before = list(chat.turns)
    with pytest.raises(ParamError, match="a digit"):
        chat.say("1")
    with pytest.raises(ParamError, match=r"a turn is 7 \(int\), not a str"):
        chat.say(7)  # pyright: ignore[reportArgumentType]
    assert chat.turns == before


def test_a_conversation_is_saved_in_a_line_of_a_new_file(chat: Chat, tmp_path) -> None:
    chat.say("ü\n")
    chat.save(tmp_path / "chat.jsonl")
    (line,) = (tmp_path / "chat.jsonl").read_text().splitlines()
    turns = [{"speaker": "user", "text": "ü\n"}, {"speaker": "model", "text": "Ü\n"}]
    assert json.loads(line) == {"turns": turns}
    with pytest.raises(ParamError, match="exists: name another file, or remove it"):
        chat.save(tmp_path / "chat.jsonl")


def test_a_wrong_setting_is_refused_before_the_first_turn() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"top_p": 2.0}, r"top_p=2.0 is not in \(0, 1\]"),
        ({"max_tokens": "all"}, r"max_tokens takes int, got 'all'"),
        ({"seed": 0.5}, r"seed=0.5 \(float\) is not an int"),
        ({"tools": "maybe"}, r"tools='maybe' is not one of on, off"),
    ]
    for values, message in wrong:
        with pytest.raises(ParamError, match=message):
            Chat(MODEL, Echo.params().build(), ChatOptions(**values))


class Reader:
    """A model of 20 bytes a row that says what it reads; it has `max_positions`."""

    def __init__(self, *, is_answered: bool = False, max_positions: int = 999) -> None:
        self.prompts: list[str] = []
        tokenizer = ByteTokenizer.params().build()

        def prompt(text: str) -> Prompt:
            return Prompt(tokenizer.encode(text), is_answered=is_answered)

        def check_positions(num: int) -> None:
            if num > max_positions:
                raise ParamError("too long")

        data = types.SimpleNamespace(
            prompt=prompt, tokenizer=tokenizer, specs=lambda: {"tokens": ((2, 20), "int32")}
        )
        task = types.SimpleNamespace(check_positions=check_positions)
        self.experiment = types.SimpleNamespace(train_input=data, task=task)

    def stream(self, prompt: Prompt, decoding: Any, *, seed: int = 0) -> Any:
        text = self.experiment.train_input.tokenizer.decode(prompt.tokens)
        self.prompts.append(text)
        yield "!"
        tokens = (np.frombuffer(b"!", np.uint8) + 3).tolist()
        return [Continuation("!", tokens, [-0.25, -1.0], -1.25, is_ended=True)]


def read(*texts: str, max_tokens: int = 200, **model: Any) -> list[str]:
    reader = Reader(**model)
    chat = Chat(reader, ContinueText.params().build(), ChatOptions(max_tokens=max_tokens))
    for text in texts:
        chat.say(text)
    return reader.prompts


def test_a_model_continues_the_turns_that_fit_and_always_the_last() -> None:
    assert read("a", "bc", "de") == ["a", "a!\nbc", "a!\nbc!\nde"]
    assert read("abcdef", "g", "h") == ["abcdef", "abcdef!\ng", "g!\nh"]  # 11 leave 9 for 10
    assert read("abcdef", "g", "h", max_tokens=4)[-1] == "abcdef!\ng!\nh"
    assert read("a", 30 * "b", "c") == ["a", 30 * "b", "c"]
    assert read("a", "b", "c", max_tokens=4, max_positions=7)[1:] == ["a!\nb", "b!\nc"]


def test_a_model_that_answers_texts_gets_the_last_turn() -> None:
    assert read("a", "b", is_answered=True) == ["a", "b"]


def test_details_of_a_plain_model_are_settings_and_probabilities() -> None:
    chat = Chat(Reader(), ContinueText.params().build(), ChatOptions(top_k=5, seed=2))
    chat.say("a")
    assert chat.reply is not None
    assert chat.reply.details == {
        "turns in the context": "1 of 1",
        "tokens of the context": 1,
        "max_tokens": 200,
        "temperature": 0.8,
        "top_k": 5,
        "seed": 2,
        "ended by the model": True,
        "probability of each token": [["'!'", 0.779]],
    }
