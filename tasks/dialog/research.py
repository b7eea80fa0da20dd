"""The research loop: a model asks tools before it answers (Thoppilan et al. 2022, sec. 6).

A model writes to a recipient, which is the first token of its text:

    User, It is 7856.       the answer
    TS, 135+7721            a query to the toolset

`Base` reads the conversation. If it writes a query, the query and the tools' results are appended;
`Research` reads all of it, and writes another query or the answer:

    context                                             target
    How much is 135+7721?                               TS, 135+7721
    How much is 135+7721? RESPONSE TS, 135+7721 TOOLS 7856    User, It is 7856.

Base and Research are one model; the context tells it which of the two it is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Literal, NamedTuple, TypeVar, overload

from lingo.config import ranges
from lingo.config.params import Configurable
from tasks.dialog.message import parse_message
from tasks.dialog.tools.tool import Snippet
from tasks.dialog.tools.toolset import ToolCall, Toolset

C = TypeVar("C")
"""The type of a context: a string, turns, tokens."""

_NOTHING = "nothing"  # stands for an empty list of results


class Search(NamedTuple):
    """A query to the toolset and the snippets that it returned; [] if it found nothing."""

    query: str
    snippets: Sequence[str]

    @property
    def request(self) -> str:
        """What the model wrote: `TS, 135+7721`."""
        return f"TS, {_one_line(self.query)}"

    @property
    def result(self) -> str:
        """The line that the model reads: `7856`; semicolons separate several snippets."""
        return "; ".join(map(_one_line, self.snippets)) or _NOTHING


class Citation(NamedTuple):
    """Where a snippet is from."""

    snippet: str
    tool: str  # name of the tool's class
    source: str  # such as a URL; "" if only the tool is known


class Answer(NamedTuple):
    """The text that the user gets, and how the model found it."""

    text: str
    ending: Literal["answered", "malformed", "limit"]  # how the loop ended
    calls: tuple[ToolCall, ...] = ()  # every call of every tool, in order
    outputs: tuple[str, ...] = ()  # everything that the model wrote, in order

    @property
    def citations(self) -> list[Citation]:
        """The sources of all snippets that the model had when it answered, in order."""
        return [
            Citation(snippet, call.tool, snippet.source if isinstance(snippet, Snippet) else "")
            for call in self.calls
            for snippet in call.snippets
        ]


class Research(Configurable):
    """Answers with the help of tools.

    The loop ends when the model writes to the user. A text without a recipient is taken as the
    answer, so that a model that never learned to use tools works, too. If the model still asks the
    toolset after `max_searches` searches, the answer is `fallback`.
    """

    toolset: Toolset = Toolset
    max_searches: int = 4  # as in the example of the paper
    fallback: str = "I could not find that out."

    def check(self) -> None:
        ranges.check_not_negative(self.p, "max_searches")

    def setup(self) -> None:
        self.toolset: Toolset = self.p.toolset.build()

    @overload
    def __call__(self, model: Callable[[str], str], context: str) -> Answer: ...

    @overload
    def __call__(
        self, model: Callable[[C], str], context: C, append: Callable[[C, Search], C]
    ) -> Answer: ...

    def __call__(self, model, context, append=None) -> Answer:
        """Returns the model's answer to a conversation, after at most `max_searches` searches.

        Args:
            model: returns the model's text after a context. It is called with the conversation,
                and again after each search.
            context: the conversation.
            append: returns a context with a search added. None: `append_search`, for a context
                that is a string.

        Exceptions of the model pass through; tools raise none.
        """
        steps = self.steps(context, append or append_search)
        read = next(steps)
        while True:
            try:
                read = steps.send(model(read))
            except StopIteration as end:
                return end.value

    def steps(self, context: C, append: Callable[[C, Search], C]) -> Generator[C, str, Answer]:
        """Yields each context, gets the model's text by `send`, and returns the answer."""
        calls: list[ToolCall] = []
        outputs: list[str] = []
        while True:
            outputs.append((yield context))
            message = parse_message(outputs[-1])
            if message.recipient == "User":
                ending = "answered" if message.is_well_formed else "malformed"
                return Answer(message.text, ending, tuple(calls), tuple(outputs))
            if len(outputs) > self.p.max_searches:
                return Answer(self.p.fallback, "limit", tuple(calls), tuple(outputs))
            query = _one_line(message.text)
            new = self.toolset.run(query)
            calls += new
            snippets = [snippet for call in new for snippet in call.snippets]
            context = append(context, Search(query, snippets))


def append_search(context: str, search: Search) -> str:
    """Returns the context for Research: the old context, the query, and the tools' results.

    >>> append_search("How much?", Search("135+7721", ["7856"]))
    'How much? RESPONSE TS, 135+7721 TOOLS 7856'
    >>> append_search("How much?", Search("?", []))
    'How much? RESPONSE TS, ? TOOLS nothing'
    """
    return f"{context} RESPONSE {search.request} TOOLS {search.result}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
