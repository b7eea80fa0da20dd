"""Signatures of functions and classes of installed packages, each with its description.

From `def clip(x, low, high)`, "Limits the values of an array." is predicted. A pair's span in its
file goes from `def` or `class` to the end of the docstring; these lines alone are valid Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from lingo.config import ranges
from lingo.data.files import File, Read
from lingo.data.pairs.pair import PairSource, Part, pair
from lingo.data.record_source import PythonPackages
from lingo.datasets import syntax
from lingo.datasets.docstrings import prose, summary


class Signatures(PythonPackages, PairSource):
    """Pairs of a signature and its docstring's first paragraph, which has at least three words.

    Pairs with equal descriptions are in the same split, because copies of a function with another
    signature are common.
    """

    split_by: Literal["file", "document"] = "document"  # what is hashed: a file's name, or a text
    unique: bool = True  # leave out every pair whose description occurred before, in any split

    identified_by: ClassVar[Part] = "target"

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        if (code := syntax.parse(read(0, file.size))) is None:
            return
        for owner, literal in syntax.documented_nodes(code.tree):
            if isinstance(owner, syntax.Definition):
                start = code.line(owner)
                yield start, code.end(literal) - start

    def text(self, data: bytes, where: str) -> bytes:
        nodes = syntax.excerpt(data)
        return pair(nodes[0].signature, summary(nodes[0].docstring), where) if nodes else b""


class FirstParagraphs(Signatures):
    """Pairs for summaries: a docstring without its first paragraph, and this first paragraph.

    Both are prose, without examples and fenced code; the rest has at least `min_words` words.
    """

    min_words: int = 12  # least number of words after the first paragraph
    max_bytes: int = 2000  # most bytes after the first paragraph; longer text is cut

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "min_words", "max_bytes")

    def text(self, data: bytes, where: str) -> bytes:
        nodes = syntax.excerpt(data)
        if not nodes:
            return b""
        docstring = nodes[0].docstring
        rest = prose(docstring).partition("\n\n")[2].strip()
        if len(rest.split()) < self.p.min_words:
            return b""
        return pair(
            rest.encode()[: self.p.max_bytes].decode(errors="ignore"), summary(docstring), where
        )
