"""Whether a docstring is that of a function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from lingo.data.sources import syntax
from lingo.data.sources.classification.snippets import Labelled, Snippets
from lingo.data.sources.docstrings import summary
from lingo.data.sources.files import File


class DocstringMatch(Snippets):
    """`docstring: def mean(x)`, and in the next line `Adds two numbers.`: these differ.

    A snippet is a signature, and the first paragraph of a docstring.

    Of the functions and classes of a block that have docstrings, the second, fourth, ... is shown
    with the docstring of the next, which is shown with its own, too: no docstring by itself tells
    anything. A span has one docstring or two, and so says which of the two it is.
    """

    task: ClassVar[str] = "docstring"

    @property
    def labels(self) -> list[str]:
        return ["match", "differ"]

    def candidates(self, code: syntax.Parsed) -> Iterator[tuple[int, int]]:
        for block in syntax.blocks(code.tree):
            there = syntax.documented_among(block)
            for other, own in zip(there[1::2], there[2::2], strict=False):
                for shown in (other, own):
                    yield code.line(shown.owner), code.end(own.literal)

    def labelled(self, file: File, data: bytes) -> Labelled | None:
        del file
        there = syntax.excerpt(data)
        if not there:
            return None
        own, shown = summary(there[0].docstring), summary(there[-1].docstring)
        label = "match" if len(there) == 1 else "differ"
        if not shown or (label == "differ" and own == shown):
            return None
        return Labelled(f"{there[0].signature}\n{shown}", label)
