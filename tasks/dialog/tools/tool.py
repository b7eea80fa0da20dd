"""A tool: a string in, a list of strings out (Thoppilan et al. 2022, sec. 6.2).

    class Length(Tool):
        \"\"\"Answers `length of tensor` with `6`.\"\"\"

        def __call__(self, query: str) -> list[str]:
            head, _, word = query.partition("length of ")
            return [] if head or not word else [str(len(word))]

A tool is configured like everything else: annotated attributes are its parameters, `setup` runs
when it is built, and `prepare` before its first call.
"""

from __future__ import annotations

from lingo.config.params import Configurable


class Snippet(str):
    """A tool's answer: a string that also names its source."""

    __slots__ = ("source",)
    source: str  # such as a URL; "" if only the tool is known

    def __new__(cls, text: str, source: str = "") -> Snippet:
        snippet = super().__new__(cls, text)
        snippet.source = source
        return snippet

    def __getnewargs__(self) -> tuple[str, str]:
        return str(self), self.source


class Tool(Configurable, interface=True):
    """Answers queries.

    Several threads may call a tool at a time, so a call changes no state.
    """

    def prepare(self) -> None:
        """Loads the data for calls. A toolset calls it before the first call, and waits for it."""

    def __call__(self, query: str) -> list[str]:
        """Returns the answers to a query; [] if the tool cannot parse it.

        An answer may be a `Snippet`, which names its source.
        """
        raise self._missing_method("__call__", "it returns a list of strings for a query")
