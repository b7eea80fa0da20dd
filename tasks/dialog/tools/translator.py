"""A translator of names and greetings.

Names are from Unicode CLDR's tables, which come with Babel. CLDR has no greetings: `phrases.tsv`
has some, written by hand for lingo, one usual form each. Wikivoyage's phrasebooks
(https://en.wikivoyage.org/wiki/Phrasebooks) have further forms.
"""

from __future__ import annotations

import csv
import functools
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lingo.config.base.errors import check_package
from tasks.dialog.tools.tool import Snippet, Tool

MAX_CHARS = 120  # of a query

_QUERY = re.compile(
    r"(?:translate |how do you say |how to say |say |what is |what's )?(?:the word )?"
    r"(?P<term>.+) (?:in|into|to) (?P<language>[^?.!]+)[?.!]*",
    re.IGNORECASE,
)
_QUOTES = "\"' \u2018\u2019\u201c\u201d\u201e\u00ab\u00bb"
PHRASES = pathlib.Path(__file__).with_name("phrases.tsv")
_SYNONYMS = {"hi": "hello", "good day": "hello", "bye": "goodbye", "thanks": "thank you"}


class Translator(Tool):
    """Answers `hello in French` with `Bonjour`, `Germany in Japanese` with `ドイツ`.

    A query is a term in English and the English name of a language; Babel knows 340 languages.
    Terms are Unicode CLDR's names of languages, territories, currencies, units, months and days of
    the week, and the greetings of `phrases.tsv`. A term in several tables has an answer for each.
    The answer is [] for everything else.

    Raises MissingPackage without Babel.
    """

    def check(self) -> None:
        check_package("babel", "the tool Translator", extra="dialog")

    def __call__(self, query: str) -> list[str]:
        match = _QUERY.fullmatch(query.strip()) if len(query) <= MAX_CHARS else None
        code = _languages().get(match["language"].strip(_QUOTES).casefold()) if match else None
        if match is None or code is None:
            return []
        term = match["term"].strip(_QUOTES).casefold()
        terms = (term, term.removeprefix("the "))
        return list(dict.fromkeys(answer for term in terms for answer in _translate(term, code)))


def _translate(term: str, code: str) -> Iterator[str]:
    """Yields translations into the language with a code; `term` is in lower case."""
    phrases = _phrases().get(code) or _phrases().get(code.partition("_")[0], {})
    if phrase := phrases.get(_SYNONYMS.get(term, term)):
        yield Snippet(phrase, "lingo's table of phrases")
    for table, key in _english_terms().get(term, {}).items():
        if name := _name(table, key, code):
            yield Snippet(name, "Unicode CLDR")


@functools.cache
def _phrases() -> Mapping[str, Mapping[str, str]]:
    """Returns `phrases.tsv` as language code -> {English phrase: phrase in the language}."""
    with PHRASES.open(encoding="utf-8", newline="") as file:
        return {row.pop("language"): row for row in csv.DictReader(file, delimiter="\t")}


@functools.cache
def _languages() -> Mapping[str, str]:
    """Returns the languages that Babel knows: English name in lower case -> CLDR's code."""
    from babel import Locale, localedata

    names = Locale("en").languages
    known = {name.casefold(): code for code, name in names.items() if localedata.exists(code)}
    return known | {"norwegian": "nb", "mandarin": "zh"}


_Key = str | int  # of an entry of a table: "de", "JPY", "length-meter", 1


@functools.cache
def _english_terms() -> Mapping[str, Mapping[str, _Key]]:
    """Returns CLDR's English names in lower case: name -> {table: key of the entry}."""
    from babel import Locale

    english = Locale("en")
    keys: dict[str, Iterable[_Key]] = {
        "language": english.languages,
        "territory": english.territories,
        "currency": english.currencies,
        "month": range(1, 13),
        "day": range(7),
        "unit": english.unit_display_names,
        "units": english.unit_display_names,
    }
    terms: dict[str, dict[str, _Key]] = {}
    for table in keys:
        for key in keys[table]:
            terms.setdefault(_name(table, key, "en").casefold(), {}).setdefault(table, key)
    return terms


def _name(table: str, key: Any, code: str) -> str:
    """Returns the name of an entry in the language with a code; "" if CLDR has none."""
    from babel import Locale
    from babel.units import format_unit, get_unit_name

    locale, root = Locale.parse(code), Locale.parse("root")
    match table:
        case "language":
            return locale.languages.get(key, "")
        case "territory":
            return locale.territories.get(key, "")
        case "currency":
            return locale.currencies.get(key, "")
        case "month":
            name, code_name = (it.months["stand-alone"]["wide"][key] for it in (locale, root))
        case "day":
            name, code_name = (it.days["stand-alone"]["wide"][key] for it in (locale, root))
        case _:
            name, code_name = (format_unit(1, key, "long", locale=it) for it in (locale, root))
    if name == code_name:  # the language has no word: this is CLDR's code, "M01"
        return ""
    if table == "units":
        return get_unit_name(key, "long", locale) or ""
    return name.replace("1", "").strip() if table == "unit" else name
