"""Classification as text to text: snippets of code, each with a word that says what it is.

Sources of one base make a small suite of tasks from real code, for fine-tuning. Every snippet
begins with the name of its task, so that one model learns several. `split=heldout` shares no file
with `split=train`, and no text.
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


class Labelled(NamedTuple):
    """A snippet as a model sees it, and the word it is to answer."""

    text: str
    label: str


class Snippets(PythonPackages, PairSource):
    """Labelled snippets of Python files.

    A subclass says what of a file may be one (`candidates`), and what its label is (`labelled`).
    Of a file, those are taken whose bytes have the smallest hashes, up to `per_label` of each
    label: large files do not count more, nor do frequent labels.

    Attributes:
        task: what every snippet begins with.
        labels: all there are.
    """

    heldout_fraction: float = 0.1  # share that is held out, chosen by a hash
    per_label: int = 4  # snippets of each label that a file gives at most
    unique: bool = True  # leave out every snippet whose text has been before, in any split

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
        """Yields (first byte, byte behind) of what may be a snippet."""
        raise NotImplementedError(f"{type(self).__name__} has no candidates")

    def labelled(self, file: File, data: bytes) -> Labelled | None:
        """Returns a snippet with its label, or None if it has none: a function of the arguments."""
        raise NotImplementedError(f"{type(self).__name__} has no labelled")

    def quota(self, file: File) -> int:
        """Returns how many snippets of each label a file gives at most."""
        del file
        return self.p.per_label

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        data = read(0, file.size)
        if (code := syntax.parsed(data)) is None:
            return iter(())
        found = {(a, b): data[a:b] for a, b in self.candidates(code)}
        left = dict.fromkeys(self.labels, self.quota(file))
        chosen = []
        for begin, end in sorted(found, key=lambda span: (draw(found[span]), span)):
            if not any(left.values()):
                break
            snippet = self.labelled(file, found[begin, end])
            if snippet and left[snippet.label]:
                left[snippet.label] -= 1
                chosen.append((begin, end - begin))
        return iter(sorted(chosen))

    def document(self, file: File, data: bytes, where: str) -> bytes:
        found = self.labelled(file, data)
        if found is None or SEPARATOR in data:  # which no pair can hold
            return b""
        return pair(f"{self.task}: {found.text}", found.label, where)


def draw(data: bytes, name: str = "") -> int:
    """Returns a number below 2**64 that is random, but always the same for the same bytes."""
    return int.from_bytes(hashlib.sha256(name.encode() + b"\0" + data).digest()[:8], "big")
