"""Real facts: from CLDR (by the package Babel), from installed docstrings, from arithmetic.

CLDR (Unicode's tables for programs in all languages) knows the currencies and official languages of
territories, the names of languages and territories in other languages, and words for units, days,
months and large numbers. A fact is about a subject. A tenth of all subjects, chosen by the hash of
their names, is held out.
"""

from __future__ import annotations

import datetime
import functools
import operator
import random
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import numpy as np

from lingo.config.base.errors import check_package
from lingo.data.index import Progress, open_index
from lingo.data.pairs.pair import SEPARATOR
from lingo.data.record_source import split_hash
from lingo.datasets.signatures import Signatures

Kind = Literal["currency", "language", "code", "own_name", "word", "purpose", "result"]
"""The kind of a fact: a territory's currency or official language, a currency's code, a language's
name in that language, a word or name in another language, a function's purpose, the result of an
expression.
"""

FUNCTIONS = Signatures.params(packages=["keras", "numpy"])
"""The functions that are asked about by default."""

KINDS: tuple[Kind, ...] = get_args(Kind)
LANGUAGES = ("cs", "da", "de", "es", "fi", "fr", "hu", "id", "it", "nl", "pl", "pt", "sv", "tr")
"""Languages in Latin script into which words are translated."""

_RELATIONS = {
    "currency": "currency",
    "language": "official language",
    "code": "ISO 4217 code",
    "own_name": "name in the language itself",
    "purpose": "purpose",
    "result": "result",
}
_DATE = datetime.date(2025, 1, 1)  # the day whose currencies are taken
_UNIT_NAME = re.compile(r"(?:duration|length|mass|volume|speed|angle|power|energy)-\w+")
_NUMBERS = {"thousand": "1000", "million": "1000000", "billion": "1000000000"}
_PLAIN = re.compile(r"[A-Za-z][A-Za-z .'-]{1,19}")
_FUNCTION = re.compile(r"def (?!test_)([a-z]\w{2,23})\(")
_MAX_BYTES = 60  # of a fact's value
_HELDOUT_FRACTION = 0.1
_OPERATIONS = {"+": (operator.add, 9999), "-": (operator.sub, 9999), "*": (operator.mul, 99)}
"""Sign -> operation, and the largest operand."""
_EXPRESSION = re.compile(r"(\d{1,9})([-+*])(\d{1,9})")
_NUM_EXPRESSIONS = 10_000


class Fact(NamedTuple):
    """A true statement, such as that the currency of Japan is the Japanese Yen."""

    kind: Kind
    subject: str  # Japan
    value: str  # Japanese Yen
    language: str = ""  # the English name of the value's language; only for the kind `word`

    @property
    def relation(self) -> str:
        """The relation of the value to the subject."""
        return f"word in {self.language}" if self.kind == "word" else _RELATIONS[self.kind]

    @property
    def line(self) -> str:
        """The fact as an entry of an index: `Japan / currency / Japanese Yen`."""
        return f"{self.subject} / {self.relation} / {self.value}"

    @property
    def is_heldout(self) -> bool:
        """Whether facts about the subject are held out."""
        return split_hash(self.subject.encode()) >= (1 - _HELDOUT_FRACTION) * 2.0**64


def all_facts(functions: Signatures, *, progress: Progress | None = None) -> list[Fact]:
    """Returns the facts of CLDR, of documented functions, and of arithmetic.

    Raises MissingPackage without Babel, and DataError if a package is not installed.
    """
    documented = documented_facts(functions, progress=progress)
    return [*cldr_facts(), *documented, *arithmetic_facts()]


@functools.cache
def cldr_facts() -> tuple[Fact, ...]:
    """Returns the facts of CLDR, sorted; raises MissingPackage without Babel."""
    check_package("babel", "facts of CLDR", extra="dialog")
    found = {*_territory_facts(), *_own_names(), *_words()}
    return tuple(sorted(fact for fact in found if fact.subject != fact.value))


def documented_facts(
    functions: Signatures, *, progress: Progress | None = None
) -> tuple[Fact, ...]:
    """Returns the purposes of functions, from the first sentences of their docstrings.

    A function's subject is its unqualified name; a name with several purposes is left out.
    Raises DataError if a package is not installed.
    """
    index = open_index(functions, progress=progress)
    purposes: dict[str, set[str]] = {}
    for text in index.texts(np.arange(len(index.units))):
        signature, purpose = (part.decode() for part in text.split(SEPARATOR))
        if match := _FUNCTION.match(signature):
            purposes.setdefault(match[1], set()).add(purpose)
    return tuple(
        Fact("purpose", name, purpose)
        for name, (purpose, *others) in sorted(purposes.items())
        if not others and purpose.isascii() and len(purpose) <= _MAX_BYTES
    )


@functools.cache
def arithmetic_facts() -> tuple[Fact, ...]:
    """Returns 10,000 facts about expressions of two numbers, always the same facts, sorted."""
    rng, found = random.Random("arithmetic"), set[Fact]()
    while len(found) < _NUM_EXPRESSIONS:
        sign = "+-*"[int(rng.random() * 3)]
        apply, largest = _OPERATIONS[sign]
        smaller, larger = sorted(1 + int(rng.random() * largest) for _ in range(2))
        found.add(Fact("result", f"{larger}{sign}{smaller}", str(apply(larger, smaller))))
    return tuple(sorted(found))


def result(expression: str) -> str | None:
    """Returns the result of an expression of two numbers, such as `135+7721`; else None."""
    if (match := _EXPRESSION.fullmatch(expression)) is None:
        return None
    apply, _ = _OPERATIONS[match[2]]
    return str(apply(int(match[1]), int(match[3])))


def _territory_facts() -> Iterator[Fact]:
    """Yields facts about currencies, and about territories with just one currency or language."""
    from babel import Locale
    from babel.languages import get_official_languages
    from babel.numbers import get_territory_currencies

    english = Locale("en")
    for code in sorted(english.territories):
        name = english.territories[code]
        if not re.fullmatch("[A-Z]{2}", code) or not _PLAIN.fullmatch(name):
            continue
        currencies = get_territory_currencies(code, _DATE, _DATE)
        if len(currencies) == 1 and currencies[0] in english.currencies:
            currency = english.currencies[currencies[0]]
            yield Fact("currency", name, currency)
            yield Fact("code", currency, currencies[0])
        languages = get_official_languages(code)
        if len(languages) == 1 and languages[0] in english.languages:
            yield Fact("language", name, english.languages[languages[0]])


def _own_names() -> Iterator[Fact]:
    """Yields the name of each language in that language."""
    from babel import Locale
    from babel.localedata import locale_identifiers

    english = Locale("en")
    for code in locale_identifiers():
        if re.fullmatch("[a-z]{2}", code) and code in english.languages:
            own = Locale(code).languages.get(code, "")
            if _is_short(own) and _PLAIN.fullmatch(english.languages[code]):
                yield Fact("own_name", english.languages[code], own)


def _words() -> Iterator[Fact]:
    """Yields facts that translate words, and names of languages and territories."""
    from babel import Locale

    english = Locale("en")
    subjects = _vocabulary("en")
    for code in LANGUAGES:
        words = _vocabulary(code)
        for key, subject in subjects.items():
            word = words.get(key, "")
            if _PLAIN.fullmatch(subject) and _is_short(word) and word.lower() != subject.lower():
                yield Fact("word", subject, word, english.languages[code])


def _vocabulary(code: str) -> dict[tuple[str, str], str]:
    """Returns CLDR's names of units, days, languages, ... in a language: (table, key) -> name."""
    from babel import Locale

    locale, units = Locale(code), {}
    for unit, names in locale._data["unit_display_names"].items():  # Babel's API has no such list
        if _UNIT_NAME.fullmatch(unit) and "long" in names:
            units[unit] = names["long"]
    formats = locale.compact_decimal_formats["long"]
    patterns = formats.get("one", formats["other"])
    tables = {
        "unit": units,
        "day": locale.days["stand-alone"]["wide"],
        "month": locale.months["stand-alone"]["wide"],
        "number": {name: _number_word(patterns[size]) for name, size in _NUMBERS.items()},
        "territory": {k: v for k, v in locale.territories.items() if len(k) == 2},
        "language": {k: v for k, v in locale.languages.items() if len(k) == 2},
    }
    return {(table, str(key)): word for table, rows in tables.items() for key, word in rows.items()}


def _number_word(pattern: object) -> str:
    """Returns the word in CLDR's pattern for large numbers, `Millionen` for `0 Millionen`."""
    return str(getattr(pattern, "pattern", pattern)).replace("0", "").strip("\u00a0 '.")


def _is_short(value: str) -> bool:
    return 0 < len(value.encode()) <= _MAX_BYTES and "(" not in value
