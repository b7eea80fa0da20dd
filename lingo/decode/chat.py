"""A conversation with a model, and the interface for ways to answer it.

    turns -> Responder.respond -> pieces of the answer, then a Reply with its details

`lingo chat`, `Trained.chat` and the server's `:chat` hold a `Chat`. `Experiment.chat` chooses the
responder: `ContinueText`, unless a task has one of its own, which may use tools, or choose among
several candidates.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from lingo.config.options import option, option_class
from lingo.config.params import Configurable, ParamError, Params
from lingo.data.prompt import Prompt
from lingo.decode.settings import SamplingOptions
from lingo.decode.text import Continuation
from lingo.storage.files import refuse_address, write_text


class Turn(NamedTuple):
    """What one speaker says."""

    speaker: Literal["user", "model", "tools"]  # tools: their results, for a task's own responder
    text: str


class Reply(NamedTuple):
    """An answer, and how it came about."""

    text: str
    details: Mapping[str, Any] = {}
    """By name: a text, a number, a list of pairs, or a list of rows {column: value}, such as
    candidates with their scores. JSON can hold all of them."""


@option_class
class ChatOptions(SamplingOptions):
    """How a model answers a conversation."""

    tools: Literal["on", "off"] = option("Whether a model that has tools uses them.", default="on")

    def check(self) -> None:
        """Raises ParamError for values that are not valid."""
        if self.tools not in ("on", "off"):
            raise ParamError(f"tools={self.tools!r:.80} is not one of on, off")
        if type(self.seed) is not int:
            raise ParamError(f"seed={self.seed!r:.80} ({type(self.seed).__name__}) is not an int")
        self.decoding().build()


class ChatModel(Protocol):
    """The methods of a model that a responder may use; `Trained` has them."""

    @property
    def experiment(self) -> Any:
        """The `Experiment`, with `train_input`, its tokenizer, and `task`."""
        ...

    def stream(
        self, prompt: Prompt, decoding: Params, *, seed: int = 0
    ) -> Generator[str, None, list[Continuation]]:
        """As `Trained.stream`."""
        ...

    def predict(self, inputs: Mapping[str, Any], *, batch_size: int | None = None) -> Any:
        """As `Trained.predict` for arrays."""
        ...


class Responder(Configurable, interface=True):
    """Answers conversations with a model. Several threads may call it at a time."""

    def respond(
        self, model: ChatModel, turns: Sequence[Turn], options: ChatOptions
    ) -> Generator[str, None, Reply]:
        """Yields the answer in pieces, and returns the whole answer.

        `close` can stop an answer only where it yields, so it yields "" now and then while it has
        no text. `yield from model.stream(...)` does so, too.

        Args:
            model: the model that computes the answer.
            turns: the conversation; the last turn is the user's.
            options: the user's choices; None is the responder's own default.

        Raises:
            ParamError: for turns or options that the model cannot take.
        """
        raise self._missing_method("respond", "it yields texts and returns a Reply")


class ContinueText(Responder):
    """Lets a language model continue the conversation, or answer its last turn.

    A model of running text continues the turns of both speakers; each turn of the user begins a
    line. Early turns are left out so that the rest and the answer fit into the length of a training
    row. At least half of this length is for the turns, even if the answer may be longer than the
    other half. A model that answers texts (`Prompt.is_answered`) gets the last turn alone.
    """

    def respond(
        self, model: ChatModel, turns: Sequence[Turn], options: ChatOptions
    ) -> Generator[str, None, Reply]:
        data, decoding = model.experiment.train_input, options.decoding()
        prompt, num_kept = _cut_prompt(model.experiment, turns, max_tokens=options.max_tokens)
        texts = yield from model.stream(prompt, decoding, seed=options.seed)
        answer, tokenizer = texts[0], data.tokenizer
        settings = {name: getattr(decoding, name) for name in ("temperature", "top_k", "top_p")}
        return Reply(
            answer.text,
            {
                "turns in the context": f"{num_kept} of {len(turns)}",
                "tokens of the context": prompt.size,
                "max_tokens": options.max_tokens,
                **{name: value for name, value in settings.items() if value is not None},
                "seed": options.seed,
                "ended by the model": answer.is_ended,
                "probability of each token": [
                    [repr(tokenizer.decode([token])), round(math.exp(log_prob), 3)]
                    for token, log_prob in zip(answer.tokens, answer.log_probs, strict=False)
                ],
            },
        )


def _cut_prompt(experiment: Any, turns: Sequence[Turn], *, max_tokens: int) -> tuple[Prompt, int]:
    """Returns the prompt of as many of the last turns as fit, and the number of these turns."""
    data = experiment.train_input
    prompt, num_kept = data.prompt(turns[-1].text), 1
    if prompt.is_answered or "tokens" not in (specs := data.specs()):
        return prompt, num_kept
    length = specs["tokens"][0][1]
    reserved = min(max_tokens, length // 2)
    for begin in range(len(turns) - 2, -1, -1):
        if turns[begin].speaker == "user":
            longer = data.prompt(_join(turns[begin:]))
            if longer.num_positions(reserved) > length or not _fits(experiment, longer, max_tokens):
                break
            prompt, num_kept = longer, len(turns) - begin
    return prompt, num_kept


def _fits(experiment: Any, prompt: Prompt, max_tokens: int) -> bool:
    try:
        experiment.task.check_positions(prompt.num_positions(max_tokens))
    except ParamError:
        return False
    return True


def _join(turns: Sequence[Turn]) -> str:
    """Returns the text of turns; an answer follows its turn directly, as it was decoded."""
    texts = [f"\n{turn.text}" if turn.speaker == "user" else turn.text for turn in turns]
    return "".join(texts).removeprefix("\n")


class Chat:
    """A conversation: its `turns` so far, and the last `reply`, None before the first reply."""

    def __init__(self, model: ChatModel, responder: Responder, options: ChatOptions) -> None:
        """Begins without turns; a caller may set `turns`."""
        options.check()  # a mistake shows before anything is computed
        self.turns: list[Turn] = []
        self.reply: Reply | None = None
        self.options = options
        self._model, self._responder = model, responder

    def say(self, text: str) -> str:
        """Returns the answer to a text; raises ParamError as `stream` does."""
        return "".join(self.stream(text))

    def stream(self, text: str) -> Generator[str, None, None]:
        """Yields the answer to a text in pieces; some may be "".

        Closing the generator, or an interrupt, stops the answer. The text until then becomes the
        model's turn, unless it is empty. Any other error leaves the conversation as it was.

        Raises:
            ParamError: for a text that is not a str, or that is too long for the model.
            ProgramError: if a device fails.
        """
        if not isinstance(text, str):
            raise ParamError(f"a turn is {text!r:.80} ({type(text).__name__}), not a str")
        user, said = Turn("user", text), []
        pieces = self._responder.respond(self._model, (*self.turns, user), self.options)
        try:
            while True:
                piece = next(pieces)
                said.append(piece)
                yield piece
        except StopIteration as end:
            self._end(user, end.value)
        except (GeneratorExit, KeyboardInterrupt):
            pieces.close()
            if text := "".join(said):
                self._end(user, Reply(text, {"stopped": True}))
            raise

    def reset(self) -> None:
        """Forgets all turns."""
        self.turns, self.reply = [], None

    def set_tools(self, tools: Literal["on", "off"]) -> None:
        """Sets whether the model may use its tools, from the next answer on."""
        self.options = dataclasses.replace(self.options, tools=tools)

    def save(self, file: str | Path) -> None:
        """Writes the turns into a new JSONL file, as one line.

        The line is `{"turns": [{"speaker": "user", "text": "..."}, ...]}`. Raises ParamError if the
        file exists, StorageError if it cannot be written.
        """
        refuse_address(file)
        if os.path.lexists(file):
            raise ParamError(f"{file} exists: name another file, or remove it")
        turns = [turn._asdict() for turn in self.turns]
        write_text(Path(file), json.dumps({"turns": turns}) + "\n")

    def _end(self, user: Turn, reply: Reply) -> None:
        self.turns += [user, Turn("model", reply.text)]
        self.reply = reply
