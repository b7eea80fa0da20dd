"""Translations: pairs of all languages, and no English string of the test side in training."""

from __future__ import annotations

import os
import pathlib
import re

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.index import open_index
from lingo.data.index_cache import cache_folder
from lingo.data.mixture import Mixture
from lingo.data.pairs.pair_input import PairInput
from tasks.mt import translations
from tasks.mt.translations import Translations, clean_pair, likeness, placeholders
from tests.tasks.mt.catalog_files import compiled_catalog, header, text_catalog, wheel, write

INSTALLED = pathlib.Path("/usr/share/locale")


def pairs(pattern: pathlib.Path | str, **fields) -> list[list[str]]:
    fields = {"min_words": 1} | fields
    index = open_index(Translations.params(pattern=str(pattern), **fields).build())
    texts = index.texts(np.arange(len(index.units)))
    return [text.decode().split("\x1e") for text in texts]


def installed(language: str, domain: str = "program") -> str:
    return f"locale/{language}/LC_MESSAGES/{domain}"


def test_a_folder_gives_the_pairs_of_its_catalogs_and_wheels(tmp_path):
    inside = {
        f"app/{installed('de', 'x')}.po": text_catalog({"In a wheel": "In einem Rad"}).encode()
    }
    write(
        tmp_path,
        {
            f"{installed('de')}.mo": compiled_catalog({"Open": "Öffnen", "Close": "Schließen"}),
            f"{installed('fr')}.po": text_catalog({"Open": "Ouvrir"}),
            f"{installed('en_GB')}.po": text_catalog({"Color": "Colour"}),
            "a-1.whl": wheel(inside),
            "notes.txt": "no catalog",
        },
    )
    german = [["In einem Rad", "In a wheel"], ["Öffnen", "Open"], ["Schließen", "Close"]]
    assert pairs(tmp_path) == [*german, ["Ouvrir", "Open"]]
    assert pairs(tmp_path, languages=["de"]) == german
    assert pairs(tmp_path / "*.whl") == german[:1]


def test_a_compiled_catalog_next_to_its_text_is_not_read(tmp_path):
    name = installed("de")
    write(
        tmp_path,
        {f"{name}.po": text_catalog({"a": "neu"}), f"{name}.mo": compiled_catalog({"a": "alt"})},
    )
    assert pairs(tmp_path) == [["neu", "a"]]


def test_a_language_is_the_folder_else_the_header_else_the_name(tmp_path):
    of_france = header(language="fr")
    write(
        tmp_path,
        {
            f"{installed('de_AT')}.po": text_catalog({"a": "1"}, of_france),
            "es.po": text_catalog({"a": "2"}, of_france),
            "it.po": text_catalog({"a": "3"}),
        },
    )
    assert pairs(tmp_path) == [["1", "a"], ["2", "a"], ["3", "a"]]
    assert pairs(tmp_path, languages=["it", "de"]) == [["1", "a"], ["3", "a"]]


def test_tables_of_ones_own_have_languages(tmp_path):
    write(
        tmp_path,
        {
            "a.tsv": "\ufeffde\tÖffnen\tOpen\r\n\nfr\tOuvrir\tOpen\n",
            "b.jsonl": '{"language": "de", "source": "Zu\\n", "target": "Close"}\n',
        },
    )
    assert pairs(tmp_path / "*.*") == [["Öffnen", "Open"], ["Zu", "Close"], ["Ouvrir", "Open"]]


def test_pairs_are_chosen_by_words_and_equal_sides(tmp_path):
    messages = {"one": "eins", "one two": "one two", "a b c": "d", "a b c d": "e"}
    write(tmp_path, {"de.po": text_catalog(messages)})
    found = pairs(tmp_path, min_words=2, max_words=3)
    assert found == [["one two", "one two"], ["d", "a b c"]]
    assert pairs(tmp_path, min_words=2, max_words=3, equal_sides="leave_out") == found[1:]


def test_a_pair_that_a_language_has_twice_is_there_once(tmp_path):
    messages = {"Open a file": "öffnen", "menu\4Open a  file": "öffnen", "x\4Open a file": "auf"}
    write(tmp_path, {f"{installed('de', d)}.mo": compiled_catalog(messages) for d in "ab"})
    assert sorted(pairs(tmp_path)) == [["auf", "Open a file"], ["öffnen", "Open a file"]]


def test_unique_leaves_one_pair_of_each_english_string_and_what_is_like_it(tmp_path):
    for language in ("de", "fr"):
        messages = {"Open a file": f"{language} 1", "open a file!": f"{language} 2"}
        write(tmp_path, {f"{language}.po": text_catalog(messages)})
    assert len(pairs(tmp_path)) == 4
    assert pairs(tmp_path, unique=True) == [["de 1", "Open a file"]]


def check_splits(pattern: pathlib.Path, **fields) -> tuple[int, int]:
    """Checks that nothing in training is like English that is held out; returns both numbers."""
    train, heldout = (pairs(pattern, split=split, **fields) for split in ("train", "heldout"))
    alike = [{likeness(english) for _, english in part} for part in (train, heldout)]
    assert not alike[0] & alike[1]
    assert sorted(train + heldout) == sorted(pairs(pattern, **fields))
    return len(train), len(heldout)


def test_no_english_that_is_held_out_or_like_it_is_in_training_in_any_language(tmp_path):
    english = [f"{verb} the {noun}" for verb in "abcdefghij" for noun in ("file", "folder", "disk")]
    for language in ("de", "fr", "sr@latin", "zh_TW"):
        messages = {text: f"{language} {text}" for text in english}
        near = {f"{text.upper()}s: {language}%d 7!": f"{language} {text} %d" for text in english}
        near = {text.replace(language, ""): translation for text, translation in near.items()}
        write(tmp_path, {f"{installed(language)}.mo": compiled_catalog(messages | near)})
    num_train, num_heldout = check_splits(tmp_path, heldout_fraction=0.3)
    assert num_train + num_heldout == 4 * 60
    assert num_heldout % 8 == 0  # a text, with what is like it, in all four languages
    assert 0 < num_heldout < num_train
    one = pairs(tmp_path, split="heldout", heldout_fraction=0.3, languages=["de"])
    assert 4 * len(one) == num_heldout


def test_no_english_that_is_held_out_is_in_training_in_real_catalogs():
    if len(list(INSTALLED.glob("*/LC_MESSAGES/*.mo"))) < 100:
        pytest.skip(f"{INSTALLED} has no catalogs here")
    num_train, num_heldout = check_splits(INSTALLED, min_words=4, max_damaged=100)
    assert num_train > 10_000
    assert 0.03 < num_heldout / (num_train + num_heldout) < 0.07


def test_languages_are_mixed_by_temperature(tmp_path):
    for language, count in (("de", 64), ("fr", 4)):
        messages = {f"message {'x' * i} of a program": language for i in range(count)}
        write(tmp_path, {f"{installed(language)}.mo": compiled_catalog(messages)})
    inputs = {
        language: PairInput.params(
            source=Translations.params(pattern=str(tmp_path), languages=[language]),
            packing="none",
            source_length=16,
            target_length=16,
        )
        for language in ("de", "fr")
    }
    mixture = Mixture.params(inputs=inputs, temperature=2.0, batch_size=10).build()
    mixture.prepare()
    np.testing.assert_allclose(mixture.shares, [0.8, 0.2])
    parts = [origin.partition("/")[0] for origin in mixture.origins(np.arange(100))]
    assert parts.count("de") == 80


def test_damaged_catalogs_are_errors_that_name_them_or_are_left_out(tmp_path):
    write(
        tmp_path,
        {
            f"{installed('de')}.mo": b"\xde\x12\x04\x95",
            f"{installed('fr')}.mo": compiled_catalog({"a": "b"}),
            "a.whl": b"no zip",
            "README.po": text_catalog({"a": "b"}),
        },
    )
    for languages, name in (
        (["de"], installed("de") + ".mo: cut short: it has 4 bytes"),
        (["fr"], "README.po: neither its folder, its header nor its name is a language"),
    ):
        with pytest.raises(DataError, match=rf"^{re.escape(str(tmp_path))}/{name}.*max_damaged=N"):
            pairs(tmp_path, languages=languages)
    assert pairs(tmp_path, max_damaged=3) == [["b", "a"]]
    index = open_index(
        Translations.params(pattern=str(tmp_path), min_words=1, max_damaged=3).build()
    )
    assert index.damage.records == 3


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.tsv",
            "de\tÖffnen",
            "a.tsv, line 1: it has 2 columns, not 3: language, text and English",
        ),
        ("a.tsv", b"de\t\xff\tx", "a.tsv, line 1: not UTF-8"),
        ("a.tsv", "\nGerman\ta\tb", "a.tsv, line 2: 'German' is no code of a language"),
        ("a.jsonl", '{"language": "de"}', "a.jsonl, line 1: the line has no field 'source'"),
        ("a.jsonl", "{", "a.jsonl, line 1: not JSON"),
    ],
)
def test_a_line_without_a_pair_is_named(tmp_path, name, content, said):
    write(tmp_path, {name: content})
    with pytest.raises(DataError, match=said):
        pairs(tmp_path / name)


def test_what_is_no_catalog_or_is_not_there_is_refused(tmp_path):
    write(
        tmp_path,
        {
            "x/de.po": text_catalog({"a": "b"}),
            "x/a.deb": "!<arch>",
            "y/z": "",
            "z/en.po": text_catalog({"a": "b"}),
        },
    )
    for pattern, fields, said in (
        ("x/*", {}, r"a\.deb ends in none of \.mo, \.po, \.whl, \.tsv, \.jsonl: "),
        ("x", {"languages": ["dee"]}, r"no translations from 'dee'\. .*'de'\?.* Languages: de\."),
        ("y", {}, r"/y holds no catalog, wheel or table\."),
        ("z", {}, "/z has no translations from any language"),
        ("none", {}, "/none holds no catalog, wheel or table. "),
        ("x", {"min_words": 5}, "there is no text in the 1 files"),
    ):
        with pytest.raises(DataError, match=said):
            pairs(tmp_path / pattern, **fields)
    for fields, said in (
        ({"min_words": 9, "max_words": 8}, "min_words=9 is above max_words=8"),
        ({"languages": []}, "languages is empty"),
        ({"min_words": 0}, "min_words=0"),
    ):
        with pytest.raises(ParamError, match=said):
            Translations.params(pattern="x", **fields).build()


def test_catalogs_are_read_again_only_when_they_change(tmp_path):
    path = write(tmp_path, {"x/de.po": text_catalog({"a": "b"})}) / "x" / "de.po"
    tables = cache_folder("translations")
    assert pairs(path) == [["b", "a"]]
    (first,) = tables.iterdir()
    assert pairs(path) == [["b", "a"]]
    assert list(tables.iterdir()) == [first]
    os.utime(first, (0, 0))  # not used for 90 days
    path.write_text(text_catalog({"a": "other"}))
    assert pairs(path) == [["other", "a"]]
    assert first not in tables.iterdir()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("%s of %d, %-5.2f, %lu and %%", ["%%", "%-5.2f", "%d", "%lu", "%s"]),
        ("%2$s then %1$s", ["%s", "%s"]),
        (
            "%(name)s has {n}, {0:>3}, {} and ${user_name}",
            ["${user_name}", "%(name)s", "{0:>3}", "{n}", "{}"],
        ),
        ("copy %1 to %2", ["%1", "%2"]),
        ('<a href="x">here</A> <br/>', ["</a", "<a", "<br"]),
        ("100% of a < b and c > d, {in two words}", []),
    ],
)
def test_placeholders_are_those_of_c_python_qt_zope_and_html(text, found):
    assert sorted(placeholders(text).elements()) == found


@pytest.mark.parametrize(
    ("translation", "english", "cleaned"),
    [
        ("Datei\n  öffnen ", " Open\ta  file", ("Datei öffnen", "Open a file")),
        ("&Speichern", "Save &As", ("Speichern", "Save As")),
        ("另存为(&A)...", "Save &As...", ("另存为...", "Save As...")),
        ("打开 (_O)", "_Open", ("打开", "Open")),
        ("Sichern", "E_xit", ("Sichern", "Exit")),
        ("AT&T rufen", "Call AT&T", ("AT&T rufen", "Call AT&T")),
        (
            "setze max_size hoch",
            "raise max_size now",
            ("setze max_size hoch", "raise max_size now"),
        ),
        ("a&nbsp;b", "c&nbsp;d", ("a&nbsp;b", "c&nbsp;d")),
        ("%2$s von %1$s", "%s of %s", ("%2$s von %1$s", "%s of %s")),
        ("eine Datei", "%d file", None),
        ("<b>a", "<b>a</b>", None),
        ("a\x07b", "c", None),
        ("a\ufffd", "c", None),
    ],
)
def test_a_pair_is_cleaned_or_of_no_use(translation, english, cleaned):
    assert clean_pair(translation, english) == cleaned


def test_texts_are_alike_that_differ_in_case_marks_digits_placeholders_or_a_final_s():
    alike = [
        *("Cannot open file %s.", "cannot open FILE {name}!", "Cannot open 3 files: <b>%(x)d</b>"),
        *("Cannot open “file” ${path} …", "Cannot open ﬁle"),
    ]
    assert {likeness(text) for text in alike} == {"cannot open file"}
    assert likeness("Cannot open folder") != likeness(alike[0])
    assert likeness("%d: %s") == "%d: %s"


def test_a_large_file_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setitem(translations._LARGEST, ".po", 10)
    write(tmp_path, {"de.po": text_catalog({"a": "b"})})
    with pytest.raises(DataError, match=r"de\.po: it has more than the 10 bytes that are read\."):
        pairs(tmp_path)


def test_tables_that_another_process_has_made_meanwhile_are_taken(tmp_path, monkeypatch):
    path = write(tmp_path, {"de.po": text_catalog({"a": "b"})}) / "de.po"
    assert pairs(path) == [["b", "a"]]
    (tables,) = cache_folder("translations").iterdir()
    other = tables.rename(tmp_path / "other")
    write_slowly = translations._write

    def write_after_another(folder, files):
        write_slowly(folder, files)
        other.rename(tables)

    monkeypatch.setattr(translations, "_write", write_after_another)
    assert pairs(path) == [["b", "a"]]
    assert list(tables.parent.iterdir()) == [tables]
