"""Classification as text to text: a snippet of code, and the word that is its label.

The sources here are a small suite of tasks from real code, for fine-tuning. Every snippet begins
with the name of its task, so that one model learns several. `split=heldout` shares neither a file
nor a text with `split=train`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

from lingo.config import ranges
from lingo.data.pairs.pair import SEPARATOR, PairSource, Part, pair
from lingo.data.sources import syntax
from lingo.data.sources.files import File, Read
from lingo.data.sources.packages import PythonPackages


class LabelledText(NamedTuple):
    """A snippet as a model reads it, and the word that it has to answer."""

    text: str
    label: str


class Snippets(PythonPackages, PairSource):
    """LabelledText snippets of Python files.

    A subclass finds snippets in a file (`candidates`) and labels them (`label`). A file gives those
    whose bytes have the smallest hashes, up to `per_label` of each label, so that neither large
    files nor frequent labels count more.

    Attributes:
        task: what every snippet begins with.
        labels: every word that is an answer.
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
        """The words that are answers."""
        raise NotImplementedError(f"{type(self).__name__} has no labels")

    def candidates(self, code: syntax.Parsed) -> Iterable[tuple[int, int]]:
        """Yields (first byte, end byte) of each part of a file that may be a snippet."""
        raise NotImplementedError(f"{type(self).__name__} has no candidates")

    def label(self, file: File, data: bytes) -> LabelledText | None:
        """Returns a snippet with its label, or None; depends on nothing but the arguments."""
        raise NotImplementedError(f"{type(self).__name__} has no label")

    def quota(self, file: File) -> int:
        """Returns how many snippets of each label a file gives at most."""
        del file
        return self.p.per_label

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        data = read(0, file.size)
        if (code := syntax.parsed(data)) is None:
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
    """Returns a random number below 2**64 that depends on the bytes and the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode() + b"\0" + data).digest()[:8], "big")
