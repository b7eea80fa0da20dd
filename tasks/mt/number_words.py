"""Number words, English to Esperanto: a small translation task that needs no files.

    four hundred thirty-two thousand one    ->    kvarcent tridek du mil unu

Esperanto's number words have no exceptions (Zamenhof 1905, rule 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from lingo.config import ranges
from lingo.config.params import ParamError
from lingo.data.epoch_order import permutation
from lingo.data.files import File, FilePattern, Read
from lingo.data.index_cache import cache_folder
from lingo.data.pairs.pair import PairSource, pair
from lingo.data.record_source import CorruptRecord, DecodedRecords
from lingo.data.sources.jsonl import lines
from lingo.storage.files import explain_write_errors, write_bytes

LIMIT = 1_000_000
"""All numbers are below this limit."""

_ENGLISH = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ESPERANTO = ["nul", "unu", "du", "tri", "kvar", "kvin", "ses", "sep", "ok", "naŭ"]


class NumberWords(DecodedRecords, PairSource):
    """Pairs of number words: English, and the same number in Esperanto.

    The numbers are drawn below a million, without repetition; they are always the same. They are
    the lines of a file in the user's cache directory.
    """

    num_numbers: int = 20_000  # in all splits together

    unit: ClassVar[str] = "line"

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "num_numbers")
        if self.p.num_numbers > LIMIT:
            raise ParamError(f"num_numbers={self.p.num_numbers}: there are only {LIMIT:,} numbers")

    def places(self) -> list[FilePattern]:
        """Returns the file of numbers; writes it if it does not exist."""
        path = cache_folder("number_words") / f"{self.p.num_numbers}.txt"
        with explain_write_errors(path):
            if not path.is_file():
                numbers = permutation(LIMIT, seed=0, epoch=0, name="numbers")[: self.p.num_numbers]
                path.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(path, "".join(f"{number}\n" for number in numbers.tolist()).encode())
        return [FilePattern(str(path.parent), path.name)]

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        return lines(file, read)

    def text(self, data: bytes, where: str) -> bytes:
        try:
            number = int(data)
        except ValueError:
            raise CorruptRecord(f"{where}: {data[:40]!r} is not a number.") from None
        return self.document_of(number, where)

    def document_of(self, number: int, where: str) -> bytes:
        """Returns the document for a number; `where` is for errors."""
        return pair(english(number), esperanto(number), where)


class NumberTexts(NumberWords):
    """Texts of two sentences: the words of a number in English, then in Esperanto."""

    def document_of(self, number: int, where: str) -> bytes:
        del where
        return f"{english(number)}. {esperanto(number)}.".encode()


class EnglishNumbers(NumberWords):
    """Texts of one sentence: the words of a number in English."""

    def document_of(self, number: int, where: str) -> bytes:
        del where
        return f"{english(number)}.".encode()


def english(number: int) -> str:
    """Returns the words of a number from 0 to 999,999.

    >>> english(432_001), english(17)
    ('four hundred thirty-two thousand one', 'seventeen')
    """
    thousands, rest = divmod(number, 1000)
    words = [*([english(thousands), "thousand"] if thousands else [])]
    hundreds, small = divmod(rest, 100)
    words += [_ENGLISH[hundreds], "hundred"] if hundreds else []
    tens, ones = divmod(small, 10)
    if small >= 20:
        words.append(f"{_TENS[tens - 2]}-{_ENGLISH[ones]}" if ones else _TENS[tens - 2])
    elif small or not words:
        words.append(_ENGLISH[small])
    return " ".join(words)


def esperanto(number: int) -> str:
    """Returns the words of a number from 0 to 999,999.

    >>> esperanto(432_001), esperanto(1000), esperanto(17)
    ('kvarcent tridek du mil unu', 'mil', 'dek sep')
    """
    thousands, rest = divmod(number, 1000)
    words = [*([esperanto(thousands)] if thousands > 1 else []), *(["mil"] if thousands else [])]
    hundreds, small = divmod(rest, 100)
    tens, ones = divmod(small, 10)
    for digit, power in ((hundreds, "cent"), (tens, "dek")):
        if digit:
            words.append(power if digit == 1 else _ESPERANTO[digit] + power)
    if ones or not words:
        words.append(_ESPERANTO[ones])
    return " ".join(words)
