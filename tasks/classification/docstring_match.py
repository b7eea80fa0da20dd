"""Classifies whether a docstring belongs to a function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from lingo.data.sources import syntax
from lingo.data.sources.docstrings import summary
from lingo.data.sources.files import File
from tasks.classification.snippets import LabelledText, Snippets


class DocstringMatch(Snippets):
    """`docstring: def mean(x)`, and on the next line `Adds two numbers.` -> `differ`.

    A snippet is a signature and the first paragraph of a docstring.

    Of the functions and classes of a block that have docstrings, the second, fourth, ... is paired
    with the docstring of the next one. The next one is also paired with its own, so that a
    docstring alone does not reveal the label. A span with one docstring is a match, a span with two
    is not.
    """

    task: ClassVar[str] = "docstring"

    @property
    def labels(self) -> list[str]:
        return ["match", "differ"]

    def candidates(self, code: syntax.Parsed) -> Iterator[tuple[int, int]]:
        for block in syntax.blocks(code.tree):
            nodes = syntax.documented_among(block)
            for other, own in zip(nodes[1::2], nodes[2::2], strict=False):
                for shown in (other, own):
                    yield code.line(shown.owner), code.end(own.literal)

    def label(self, file: File, data: bytes) -> LabelledText | None:
        del file
        nodes = syntax.excerpt(data)
        if not nodes:
            return None
        own, shown = summary(nodes[0].docstring), summary(nodes[-1].docstring)
        label = "match" if len(nodes) == 1 else "differ"
        if not shown or (label == "differ" and own == shown):
            return None
        return LabelledText(f"{nodes[0].signature}\n{shown}", label)
