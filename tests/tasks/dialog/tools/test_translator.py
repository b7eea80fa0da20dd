"""The translator: names as CLDR has them, greetings as the table has them, and nothing else."""

from __future__ import annotations

import csv
import importlib.util

import pytest

from lingo.config.base.errors import MissingPackage
from tasks.dialog.tools.tool import Snippet
from tasks.dialog.tools.translator import MAX_CHARS, PHRASES, Translator

TRANSLATOR = Translator.params().build()


@pytest.mark.parametrize(
    ("query", "answers"),
    [
        ("hello in French", ["Bonjour"]),
        ("Hello in french?", ["Bonjour"]),
        ("'thank you' in Traditional Chinese", ["\u8b1d\u8b1d"]),
        ("How do you say goodbye in Norwegian?", ["Ha det"]),
        ("thanks in Brazilian Portuguese", ["Obrigado"]),
        ("yes to German", ["Ja"]),
        ("Germany in Japanese", ["\u30c9\u30a4\u30c4"]),
        ("the United States in Spanish", ["Estados Unidos"]),
        ("German in French", ["allemand"]),
        ("Japanese yen in German", ["Japanischer Yen"]),
        ("march in Italian", ["marzo"]),
        ("Monday in Swedish", ["m\u00e5ndag"]),
        ("meter in French", ["m\u00e8tre"]),
        ("meters in French", ["m\u00e8tres"]),
        ("translate hours into German", ["Stunden"]),
        ("day in Finnish", ["p\u00e4iv\u00e4"]),
    ],
)
def test_a_term_is_translated(query: str, answers: list[str]) -> None:
    assert TRANSLATOR(query) == answers


@pytest.mark.parametrize(
    "query",
    [
        "",
        "in",
        " in French",
        "135+7721",
        "How old is Rafael Nadal?",
        "hello in Klingon",
        "blue in French",
        "\u6771\u4eac in French",
        "bonjour en anglais",
        "hello",
        "month in Afar",  # of which CLDR knows no word: that of its root would be English
        "x" * MAX_CHARS + " in French",
    ],
)
def test_what_is_in_no_table_has_no_answer(query: str) -> None:
    assert TRANSLATOR(query) == []


def test_an_answer_says_which_table_it_is_from() -> None:
    (greeting,), (name,) = TRANSLATOR("hello in French"), TRANSLATOR("Germany in French")
    assert isinstance(greeting, Snippet)
    assert isinstance(name, Snippet)
    assert (greeting.source, name.source) == ("lingo's table of phrases", "Unicode CLDR")


def test_every_phrase_is_there_in_every_language_of_the_table() -> None:
    from babel import Locale

    with PHRASES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert len(rows) >= 30
    for row in rows:
        language = Locale("en").languages[row.pop("language")]
        for phrase, text in row.items():
            assert text == text.strip()
            assert text
            assert TRANSLATOR(f"{phrase} in {language}")[0] == text


def test_without_babel_one_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "babel" else find(name)
    )
    with pytest.raises(MissingPackage, match=r"pip install 'lingo-tf\[dialog\]'"):
        Translator.params().build()
