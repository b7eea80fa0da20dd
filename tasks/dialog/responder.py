"""Answers a conversation with the help of tools: the research loop as a `Responder`.

`lingo chat --set=chat=ResearchResponder` and the server's `:chat` answer by it; `--tools=off` and
`/tools off` leave the loop out.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from lingo.config.params import ParamError
from lingo.decode.chat import ChatModel, ChatOptions, Reply, Responder, Turn
from lingo.decode.text import Continuation
from tasks.dialog.research import Answer, Research, Search, parse_message

Turns = tuple[Turn, ...]


class ResearchResponder(Responder):
    """Lets a model of dialogs ask tools before it answers.

    The model's input, or one of its mixture, has `dialog_prompt(turns)`, as `DialogInput` has: the
    prompt of turns of the speakers `user`, `model` and `tools`. An answer appears as a whole, since
    its beginning may be a query to the tools.
    """

    research: Research = Research  # the tools, and how often the model may ask them

    def setup(self) -> None:
        self.research: Research = self.p.research.build()

    def respond(
        self, model: ChatModel, turns: Sequence[Turn], options: ChatOptions
    ) -> Generator[str, None, Reply]:
        context = tuple(turns)
        if options.tools == "off":
            output = yield from _decode(model, context, options)
            answer = Answer(parse_message(output).text, "answered", outputs=(output,))
        else:
            answer = yield from self._research(model, context, options)
        yield answer.text
        return Reply(answer.text, _details(answer))

    def _research(
        self, model: ChatModel, context: Turns, options: ChatOptions
    ) -> Generator[str, None, Answer]:
        steps = self.research.steps(context, _append)
        read = next(steps)
        while True:
            output = yield from _decode(model, read, options)
            try:
                read = steps.send(output)
            except StopIteration as end:
                return end.value


def _append(context: Turns, search: Search) -> Turns:
    return (*context, Turn("model", search.request), Turn("tools", search.result))


def _decode(model: ChatModel, turns: Turns, options: ChatOptions) -> Generator[str, None, str]:
    """Yields "" for each token, and returns what the model writes after turns."""
    prompt = _dialog_input(model.experiment.train_input).dialog_prompt(turns)
    stream = model.stream(prompt, options.decoding(), seed=options.seed)
    texts: list[Continuation] = yield from _silence(stream)
    return texts[0].text


def _dialog_input(data: Any) -> Any:
    """Returns the input, or the first one of a mixture, that has prompts of dialogs."""
    parts = [data, *getattr(data, "inputs", {}).values()]
    found = next((part for part in parts if hasattr(part, "dialog_prompt")), None)
    if found is None:
        raise ParamError(f"ResearchResponder needs a DialogInput, got {type(data).__name__}")
    return found


def _silence(
    stream: Generator[str, None, list[Continuation]],
) -> Generator[str, None, list[Continuation]]:
    """Yields "" for each piece; a close reaches the stream."""
    try:
        while True:
            try:
                next(stream)
            except StopIteration as end:
                return end.value
            yield ""
    finally:
        stream.close()


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
        "written by the model": [[output] for output in answer.outputs],
        "calls of tools": calls,
        "citations": citations,
    }
