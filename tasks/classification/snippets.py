"""Classification as text to text: from a snippet of code to a word, its label.

The sources in this folder are a small suite of tasks from real code, for fine-tuning. Every snippet
begins with the name of its task, so that one model can learn several. `split=heldout` shares
neither a file nor a text with `split=train`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

from lingo.config import ranges
from lingo.data.pairs.pair import SEPARATOR, PairSource, Part, pair
from lingo.data.source import PythonPackages
from lingo.data.sources import syntax
from lingo.data.sources.files import File, Read


class LabelledText(NamedTuple):
    """A snippet, without the name of its task, and the word that the model must answer."""

    text: str
    label: str


class Snippets(PythonPackages, PairSource):
    """Labelled snippets of Python files.

    A subclass finds snippets in a file (`candidates`) and labels them (`label`). From each file it
    takes the snippets whose bytes have the smallest hashes, up to `per_label` of each label, so
    that neither large files nor frequent labels dominate.

    Attributes:
        task: name of the task, with which every snippet begins.
        labels: all answers.
    """

    heldout_fraction: float = 0.1  # share that is held out, chosen by a hash
    per_label: int = 4  # snippets of each label that a file gives at most
    unique: bool = True  # leave out a snippet whose text has come before, in any split

    unit: ClassVar[str] = "snippet"
    identified_by: ClassVar[Part] = "source"
    task: ClassVar[str]

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "per_label")

    @property
    def labels(self) -> list[str]:
        """All answers, one word each."""
        raise NotImplementedError(f"{type(self).__name__} has no labels")

    def candidates(self, code: syntax.Parsed) -> Iterable[tuple[int, int]]:
        """Returns the (start, end) byte offsets of the parts of a file that may be snippets."""
        raise NotImplementedError(f"{type(self).__name__} has no candidates")

    def label(self, file: File, data: bytes) -> LabelledText | None:
        """Returns a snippet with its label, or None to skip it; depends on the arguments only."""
        raise NotImplementedError(f"{type(self).__name__} has no label")

    def quota(self, file: File) -> int:
        """Returns the largest number of snippets of each label from a file."""
        del file
        return self.p.per_label

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        data = read(0, file.size)
        if (code := syntax.parse(data)) is None:
            return iter(())
        snippets = {(a, b): data[a:b] for a, b in self.candidates(code)}
        left = dict.fromkeys(self.labels, self.quota(file))
        spans = []
        for begin, end in sorted(snippets, key=lambda span: (draw(snippets[span]), span)):
            if not any(left.values()):
                break
            example = self.label(file, snippets[begin, end])
            if example and left[example.label]:
                left[example.label] -= 1
                spans.append((begin, end - begin))
        return iter(sorted(spans))

    def document(self, file: File, data: bytes, where: str) -> bytes:
        example = self.label(file, data)
        if example is None or SEPARATOR in data:  # a pair cannot hold a separator
            return b""
        return pair(f"{self.task}: {example.text}", example.label, where)


def draw(data: bytes, name: str = "") -> int:
    """Returns a pseudo-random int below 2**64 that depends on the bytes and the name only."""
    return int.from_bytes(hashlib.sha256(name.encode() + b"\0" + data).digest()[:8], "big")
