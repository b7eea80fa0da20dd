"""Retrieval of facts and passages by BM25 (Robertson and Zaragoza 2009, sec. 3.4).

It has its own inverted index instead of `bm25s`: importing that package runs a JAX program if JAX
is installed, and JAX would claim the GPU that TensorFlow uses.

Axes: N texts, L tokens of all texts, P pairs of a token and a text with it, V different tokens.
"""

from __future__ import annotations

import functools
import itertools
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.base.types import FilePath
from lingo.data.files import DataError
from lingo.data.record_source import CorruptRecord
from lingo.data.sources.jsonl import read_objects
from tasks.dialog.tools.tool import Snippet, Tool

MAX_CHARS = 1000  # of a query

_STOP_WORDS = """
a about an and are at be been by can could did do does for from had has have how i in is it its many
me much my of on or please s tell that the their there this to was were what when where which who
whom whose why will with would you your
"""
_IGNORED = frozenset(_STOP_WORDS.split())
_SYNONYMS = {
    "big": ("area", "size"),
    "born": ("birth", "birthday", "birthplace"),
    "called": ("name",),
    "cost": ("price",),
    "died": ("death",),
    "high": ("height",),
    "large": ("area", "size"),
    "long": ("length",),
    "money": ("currency",),
    "old": ("age",),
    "tall": ("height",),
}
"""Word in a question -> words in the keys of the facts that it asks for."""

_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
"""Prefixes of character names in scripts without spaces between words."""


class Entry(NamedTuple):
    """A fact, `Rafael Nadal / Age / 35`, or a passage of a document, whose key is ""."""

    title: str
    key: str
    value: str
    source: str = ""  # such as a URL

    @property
    def text(self) -> str:
        """The fact in one line."""
        return " / ".join(" ".join(part.split()) for part in self[:3] if part)


class Retrieval(Tool):
    """Answers `How old is Rafael Nadal?` with `Rafael Nadal / Age / 35`, if it has this fact.

    A line of a JSONL file is a fact: `{"title": "Rafael Nadal", "key": "Age", "value": "35",
    "source": "https://..."}`. `key` and `source` may be missing. A subclass has other facts:

        class Mine(Retrieval):
            def entries(self):
                return [Entry("Rafael Nadal", "Age", "35")]

    The answers are the facts with the most words of the question; ties are ordered by BM25. Stop
    words, such as `is`, do not count. A fact must have more than `min_share` of the other words.
    The answer is [] if no fact has enough, or if the query has over 1,000 characters.

    Raises DataError at construction if the file has no facts, or a bad line.
    """

    file: FilePath | None = None  # JSONL; None: no facts
    max_answers: int = 1
    min_share: float = 0.5  # share of the query's words that a fact must exceed

    def check(self) -> None:
        ranges.check_positive(self.p, "max_answers")
        ranges.check_fraction(self.p, "min_share")

    def setup(self) -> None:
        if self.p.file is not None and not self._known:
            raise DataError(f"{self.p.file}: it has no facts.")

    def prepare(self) -> None:
        _ = self._index

    def entries(self) -> Iterable[Entry]:
        """Returns all facts; called once."""
        return [] if self.p.file is None else read_entries(self.p.file)

    def __call__(self, query: str) -> list[str]:
        terms = query_terms(query) if len(query) <= MAX_CHARS else []
        hits = self._index.search(terms, limit=self.p.max_answers, min_share=self.p.min_share)
        entries = (self._known[number] for number, _ in hits)
        return [Snippet(entry.text, entry.source) for entry in entries]

    @functools.cached_property
    def _known(self) -> list[Entry]:
        return list(self.entries())

    @functools.cached_property
    def _index(self) -> Bm25:
        return Bm25(entry.text for entry in self._known)


def query_terms(query: str) -> list[tuple[str, ...]]:
    """Returns a question's terms: a tuple for each word, with the word and its synonyms.

    >>> query_terms("How old is Rafael Nadal?")
    [('old', 'age'), ('rafael',), ('nadal',)]
    """
    words = dict.fromkeys(word for word in tokenize(query) if word not in _IGNORED)
    return [(word, *_SYNONYMS.get(word, ())) for word in words]


def read_entries(path: str) -> Iterator[Entry]:
    """Yields the facts of a JSONL file; raises DataError, which names the line, for a bad one."""
    for where, value in read_objects(path):
        yield Entry(**{name: _string(value, name, where) for name in Entry._fields})


def _string(value: dict[str, Any], name: str, where: str) -> str:
    """Returns a field of a line; "" for an optional field that is missing."""
    is_optional = name in ("key", "source")
    text = value.get(name, "" if is_optional else None)
    if not isinstance(text, str) or not (text.strip() or is_optional):
        raise CorruptRecord(f"{where}: {name!r} is {text!r:.60}, not a text.")
    return text


# ---- the index -----------------------------------------------------------------------------------


class Bm25:
    """An inverted index of texts, which ranks them by BM25."""

    def __init__(self, texts: Iterable[str], *, k1: float = 1.2, b: float = 0.75) -> None:
        """Reads all texts once.

        Args:
            texts: N strings.
            k1: weight of further occurrences of a token in a text.
            b: penalty for long texts, in 0..1.
        """
        self._ids: dict[str, int] = {}
        tokens, lengths = [], []
        for text in texts:
            ids = [self._ids.setdefault(token, len(self._ids)) for token in tokenize(text)]
            tokens += ids
            lengths.append(len(ids))
        self.num_texts = len(lengths)
        length = np.array(lengths, np.float32)
        owners = np.repeat(np.arange(self.num_texts), lengths)
        pairs = np.array(tokens, np.int64) * max(self.num_texts, 1) + owners  # int64 [L]
        pairs, counts = np.unique(pairs, return_counts=True)
        token_ids, self._texts = np.divmod(pairs, max(self.num_texts, 1))  # int64 [P]
        self._starts = np.searchsorted(token_ids, np.arange(len(self._ids) + 1))  # int64 [V + 1]
        frequency = np.diff(self._starts)
        idf = np.log1p((self.num_texts - frequency + 0.5) / (frequency + 0.5))
        damping = k1 * (1 - b + b * length / max(length.mean(), 1.0)) if lengths else length
        self._weights = idf[token_ids] * counts / (counts + damping[self._texts])  # float64 [P]

    def search(
        self, terms: Sequence[Collection[str]], *, limit: int, min_share: float
    ) -> list[tuple[int, float]]:
        """Returns at most `limit` pairs (number of a text, score), the best first.

        Texts are ordered by the number of terms they have, then by score, then by number.

        Args:
            terms: the terms to find; each is a collection of tokens with the same meaning.
            limit: the largest number of texts to return.
            min_share: a text must have more than this share of the terms.
        """
        scores = np.zeros(self.num_texts)
        matches = np.zeros(self.num_texts, np.int32)
        for term in terms:
            has_term = np.zeros(self.num_texts, bool)
            for token in term:
                if (number := self._ids.get(token)) is not None:
                    span = slice(self._starts[number], self._starts[number + 1])
                    scores[self._texts[span]] += self._weights[span]
                    has_term[self._texts[span]] = True
            matches += has_term
        numbers = np.flatnonzero(matches > min_share * len(terms))
        order = np.lexsort((-scores[numbers], -matches[numbers]))  # stable
        best = numbers[order[:limit]]
        return list(zip(best.tolist(), scores[best].tolist(), strict=True))


def tokenize(text: str) -> list[str]:
    """Returns the words of a text in lower case, also of scripts other than Latin.

    In a script without spaces each character is a token, and so is each pair of neighbours.

    >>> tokenize("Zürich's lake: 88 km²"), tokenize("東京都")
    (['zürich', 's', 'lake', '88', 'km2'], ['東', '京', '都', '東京', '京都'])
    """
    words = unicodedata.normalize("NFKC", text).casefold().translate(_SEPARATORS).split()
    pairs = itertools.pairwise(words)
    return words + [a + b for a, b in pairs if a in _SEPARATORS.alone and b in _SEPARATORS.alone]


class _Separators(dict[int, str]):
    """Maps a character's code to the text that replaces it before the split; filled on demand."""

    def __init__(self) -> None:
        self.alone: set[str] = set()  # characters that are tokens

    def __missing__(self, code: int) -> str:
        character = chr(code)
        self[code] = " "
        if unicodedata.category(character)[0] in "LMN":  # letters, their marks, digits
            self[code] = character
            if unicodedata.name(character, "").startswith(_UNSPACED):
                self.alone.add(character)
                self[code] = f" {character} "
        return self[code]


_SEPARATORS = _Separators()
