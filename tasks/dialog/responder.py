"""Answers a conversation as LaMDA does: with tools, and with the best of several candidates.

`lingo chat --set=chat=DialogResponder` and the server's `:chat` use it; `--tools=off` and
`/tools off` answer without tools. A query that the model still writes is then taken as its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

from lingo.config.params import ParamError, Params
from lingo.decode.chat import ChatModel, ChatOptions, Reply, Responder, Turn
from lingo.decode.text import Continuation
from tasks.dialog.message import parse_message
from tasks.dialog.ranking import Candidate, Ranking
from tasks.dialog.research import Answer, Research, Search

Turns = tuple[Turn, ...]


class DialogResponder(Responder):
    """Lets a model of dialogs ask tools before it answers, and choose among candidates.

    The model's input, or one input of its mixture, has `dialog_prompt(turns)`, like `DialogInput`:
    it returns the prompt for turns of the speakers `user`, `model` and `tools`. An answer appears
    as a whole, since its beginning may be a query to the tools. With `ranking`, candidates are
    drawn for everything that the model writes. If most of them are queries, the most frequent query
    is asked. Otherwise the best answer to the user is taken.
    """

    research: Research = Research  # the tools, and how often the model may ask them
    ranking: Ranking | None = None  # of candidates, by a model that rates; None: a single answer

    def setup(self) -> None:
        self.research: Research = self.p.research.build()
        self.ranking = self.p.ranking and self.p.ranking.build()

    def respond(
        self, model: ChatModel, turns: Sequence[Turn], options: ChatOptions
    ) -> Generator[str, None, Reply]:
        draft = _Draft(model, tuple(turns), options, self.ranking)
        if options.tools == "off":
            output = yield from draft.write(draft.seen)
            message = parse_message(output)
            ending = "answered" if message.is_well_formed else "malformed"
            answer = Answer(message.text, ending, outputs=(output,))
        else:
            answer = yield from self._research(draft)
        yield answer.text
        candidates = {"candidates": draft.candidates} if draft.candidates else {}
        return Reply(answer.text, _details(answer) | candidates)

    def _research(self, draft: _Draft) -> Generator[str, None, Answer]:
        steps = self.research.steps(draft.seen, _append)
        read = next(steps)
        while True:
            output = yield from draft.write(read)
            try:
                read = steps.send(output)
            except StopIteration as end:
                return end.value


class _Draft:
    """A model's texts up to its answer to the user."""

    def __init__(
        self, model: ChatModel, seen: Turns, options: ChatOptions, ranking: Ranking | None
    ) -> None:
        self.seen = seen  # turns that the user has seen
        self.candidates: list[dict[str, Any]] = []  # for `/why`, the best first
        self._model, self._options, self._ranking = model, options, ranking

    def write(self, turns: Turns) -> Generator[str, None, str]:
        """Yields "" for each token, and returns the model's text after turns."""
        decoding, options = self._options.decoding(), self._options
        if (ranking := self._ranking) is None:
            return (yield from _decode(self._model, turns, decoding, options.seed))[0]
        p = ranking.p
        decoding.num_samples = p.num_candidates
        decoding.top_k = options.top_k or p.top_k
        if options.temperature is None:
            decoding.temperature = p.temperature
        texts = yield from _decode(self._model, turns, decoding, options.seed)
        can_ask = options.tools == "on"
        queries = [text for text in texts if can_ask and parse_message(text).recipient == "TS"]
        if 2 * len(queries) > len(texts):
            return Counter(queries).most_common(1)[0][0]
        drafts = [text for text in texts if text not in queries]
        answers = [parse_message(draft).text for draft in drafts]
        best = self._best(ranking, answers)
        return f"User, {ranking.p.fallback}" if best is None else drafts[answers.index(best)]

    def _best(self, ranking: Ranking, texts: Sequence[str]) -> str | None:
        """Returns the best of some answers, or None if all are left out.

        They are rated as if there had been no searches.
        """
        candidates = ranking.candidates(self._model, self.seen, texts)
        ranked = ranking.sort(candidates)
        unsafe = [candidate for candidate in candidates if candidate not in ranked]
        self.candidates = [_row(safe, ranking.quality(safe.ratings)) for safe in ranked]
        self.candidates += [_row(candidate, None) for candidate in unsafe]
        return ranked[0].text if ranked else None


def _append(context: Turns, search: Search) -> Turns:
    return (*context, Turn("model", search.request), Turn("tools", search.result))


def _decode(
    model: ChatModel, turns: Turns, decoding: Params, seed: int
) -> Generator[str, None, list[str]]:
    """Yields "" for each token, and returns the model's texts after turns."""
    data = _dialog_input(model.experiment.train_input)
    stream = model.stream(data.dialog_prompt(turns), decoding, seed=seed)
    texts: list[Continuation] = yield from _silence(stream)
    return [data.tokenizer.answer(text.tokens) for text in texts]


def _dialog_input(data: Any) -> Any:
    """Returns the input with prompts of dialogs: `data`, or the first such input of a mixture."""
    parts = [data, *getattr(data, "inputs", {}).values()]
    dialogs = next((part for part in parts if hasattr(part, "dialog_prompt")), None)
    if dialogs is None:
        raise ParamError(f"DialogResponder needs a DialogInput, got {type(data).__name__}")
    return dialogs


def _silence(
    stream: Generator[str, None, list[Continuation]],
) -> Generator[str, None, list[Continuation]]:
    """Yields "" for each piece of the stream; closing this generator closes the stream."""
    try:
        while True:
            try:
                next(stream)
            except StopIteration as end:
                return end.value
            yield ""
    finally:
        stream.close()


def _row(candidate: Candidate, quality: float | None) -> dict[str, Any]:
    """Returns a candidate's row for `/why`; `quality` is None if the candidate was left out."""
    return {
        "quality": "left out" if quality is None else round(quality, 3),
        **{name: round(value, 3) for name, value in candidate.ratings.items()},
        "drawn": candidate.times,
        "text": candidate.text,
    }


def _details(answer: Answer) -> dict[str, Any]:
    calls = [
        {
            "tool": call.tool,
            "query": call.query,
            "seconds": round(call.seconds, 3),
            "found": "; ".join(call.snippets) or call.error or "nothing",
        }
        for call in answer.calls
    ]
    citations = [
        {"source": one.source or one.tool, "snippet": one.snippet} for one in answer.citations
    ]
    return {
        "ending": answer.ending,
        "written by the model": [{"text": output} for output in answer.outputs],
        "calls of tools": calls,
        "citations": citations,
    }
