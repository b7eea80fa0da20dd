"""Catalogs: both formats give the same messages; what is damaged is one sentence."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile

import pytest

from lingo.data.record_source import CorruptRecord
from tasks.mt.catalogs import Catalog, Member, Message, language_code, read_catalog, wheel_catalogs
from tests.tasks.mt.catalog_files import compiled_catalog, header, text_catalog, wheel

MESSAGES = {"Open the file": "Öffne die Datei", 'A "quoted"\n\tline': "Zeile \\ »x«"}


def read(data: bytes | str) -> Catalog:
    return read_catalog(data.encode() if isinstance(data, str) else data, "de.po")


@pytest.mark.parametrize("order", "<>")
def test_both_formats_give_the_same_messages_and_header(order):
    text, compiled = read(text_catalog(MESSAGES)), read(compiled_catalog(MESSAGES, order=order))
    assert text == compiled
    assert [(m.english, m.translations) for m in text.messages] == [
        (english, (translation,)) for english, translation in MESSAGES.items()
    ]
    assert text.header == header()


@pytest.mark.parametrize(
    ("charset", "word"),
    [
        *(("ISO-8859-1", "größer"), ("koi8-r", "больше"), ("EUC-JP", "日本語"), ("GB2312", "中文")),
        *(("Shift_JIS", "表示"), ("BIG5", "功能"), ("windows-1250", "větší"), ("tis-620", "ไทย")),
    ],
)
def test_a_charset_is_the_one_of_the_header(charset, word):
    """Of Shift-JIS and Big5 the second byte of a character may be a backslash, as in these."""
    head = header(charset)
    for data in (
        text_catalog({"a word": word}, head).encode(charset),
        compiled_catalog({"a word": word}, head, charset=charset),
    ):
        assert list(read(data).pairs()) == [(word, "a word")]


def test_without_a_charset_a_catalog_is_utf_8():
    for head in ("", "Content-Type: text/plain; charset=CHARSET\n", header("US-ASCII")):
        assert list(read(text_catalog({"a": "ä"}, head)).pairs()) == [("ä", "a")]
    assert list(read("\ufeff" + text_catalog({"a": "ä"})).pairs()) == [("ä", "a")]


def test_fuzzy_obsolete_and_untranslated_messages_are_left_out():
    body = """
#, fuzzy
msgid "guessed"
msgstr "geraten"

#, c-format
#| msgid "as it was before"
msgid "kept"
msgstr ""
"be"
"halten"

msgid "untranslated"
msgstr ""

#~ msgid "obsolete"
#~ msgstr "veraltet"
"""
    assert list(read(text_catalog({}) + body).pairs()) == [("behalten", "kept")]
    assert list(read(compiled_catalog({"a": "", "b": "c"})).pairs()) == [("c", "b")]


def test_a_context_is_no_part_of_the_english():
    body = 'msgctxt "menu"\nmsgid "Open"\nmsgstr "Öffnen"\nmsgctxt "x"\nmsgid ""\nmsgstr "leer"\n'
    pairs = [("Öffnen", "Open")]
    assert [p for p in read(text_catalog({}) + body).pairs() if p[1]] == pairs
    assert list(read(compiled_catalog({"menu\4Open": "Öffnen"})).pairs()) == pairs


@pytest.mark.parametrize(
    ("plurals", "forms", "singular"),
    [
        ("nplurals=2; plural=(n != 1)", ["a", "b"], 0),
        (
            "nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 ? 3 : 0)",
            ["a", "b", "c", "d"],
            1,
        ),
        ("nplurals=1; plural=0", ["a"], None),
        ("nplurals=2; plural=__import__('os')", ["a", "b"], 0),
        ("nplurals=2; plural=n/(n-1)", ["a", "b"], 0),
        ("nplurals=2; plural=" + "(" * 500 + "n" + ")" * 500, ["a", "b"], 0),
    ],
)
def test_the_form_of_one_thing_goes_with_the_singular(plurals, forms, singular):
    """A language with one form has it with the plural; a rule that is none counts as the first."""
    head = header(plurals=plurals)
    body = 'msgid "one file"\nmsgid_plural "%d files"\n'
    body += "".join(f'msgstr[{i}] "{form}"\n' for i, form in enumerate(forms))
    expected = [(f, "one file" if i == singular else "%d files") for i, f in enumerate(forms)]
    assert list(read(text_catalog({}, head) + body).pairs()) == expected
    compiled = compiled_catalog({"one file\0%d files": "\0".join(forms)}, head)
    assert list(read(compiled).pairs()) == expected


def test_english_is_in_a_comment_where_the_message_is_only_a_name():
    body = '#. Default: "Show the \\"old\\" "\n#. "and new items"\n#: a.pt:3\n'
    body += 'msgid "label_show"\nmsgstr "x"\n'
    body += '#. Default: not quoted\nmsgid "plain"\nmsgstr "y"\n'
    assert list(read(text_catalog({}) + body).pairs()) == [
        ("x", 'Show the "old" and new items'),
        ("y", "plain"),
    ]


def test_escapes_are_those_of_c():
    body = r'msgid "a"' + "\n" + r'msgstr "\t\"\\\n\101\x42\q"' + "\r\n"
    assert read(text_catalog({}) + body).messages == [Message("a", "", ('\t"\\\nABq',))]


def test_a_language_is_a_line_of_the_header():
    assert read(text_catalog({}, header(language="pt_BR"))).language == "pt_BR"
    assert read(text_catalog({}, header(language="Brazilian Portuguese"))).language == ""
    assert read(text_catalog({}, "")).language == ""


def compiled(count: int, tables: tuple[int, int] = (28, 28), *, version: int = 0) -> bytes:
    return struct.pack("<7I", 0x950412DE, version, count, *tables, 0, 0)


GOOD = compiled_catalog(MESSAGES)
# Each of 20,000 messages is the whole file of 320 kB: 13 GB, if they were read.
OVERLAPPING = compiled(20_000) + struct.pack("<2I", 320_028, 0) * 40_000
DAMAGED = {
    "magic alone": (GOOD[:4], "cut short: it has 4 bytes, and no table"),
    "half a table": (GOOD[:40], "its tables of 3 messages do not end in its 40 bytes"),
    "half a message": (GOOD[:-30], "a message ends after its"),
    "countless messages": (compiled(0xFFFFFFFF), "its tables of 4,294,967,295 messages"),
    "table outside": (compiled(1, (28, 0xFFFFFFF0)), "its tables of 1 messages"),
    "message outside": (compiled(1) + struct.pack("<2I", 5, 0xFFFFFFF0), "a message ends after"),
    "overlapping messages": (OVERLAPPING, "its messages overlap"),
    "version": (compiled(0, version=9 << 16), "version 9 of its format"),
    "compiled, not UTF-8": (
        compiled_catalog({"a": "ä"}, charset="latin-1"),
        "not utf-8, its charset",
    ),
    "not UTF-8": (text_catalog({"a": "ä"}).encode("latin-1"), "not utf-8, its charset: invalid"),
    "unknown charset": (
        text_catalog({}, header("klingon")),
        "the charset 'klingon': none is known",
    ),
    "no charset": (text_catalog({}, header("zip")), "the charset 'zip': none is known"),
    "quadratic codec": (text_catalog({}, header("punycode")), "the charset 'punycode'"),
    "code as charset": (text_catalog({}, header("unicode_escape")), "the charset 'unicode_escape'"),
    "binary": (b"\x7fELF\0\0\0", "neither a compiled gettext catalog nor text"),
    "prose": ("It was a dark night.", "line 1: neither a keyword nor a string: 'It was"),
    "open quote": ('msgid "a\nmsgstr "b"', "line 1: a string without its closing quote"),
    "open escape": ('msgid "a\\"\nmsgstr "b"', "line 1: a string without its closing quote"),
    "no translation": ('msgid "a"\n\nmsgid "b"\nmsgstr "c"', "line 3: a second msgid"),
    "no message": ('msgstr "a"', "line 1: the message before has no msgid"),
    "cut short": ('msgid "a"\nmsgstr "b"\n\nmsgid "c"\n', "the message before has no msgstr"),
    "string alone": ('"a"\n', "line 1: neither a keyword nor a string"),
    "long line": ('msgid "' + "\\" * 1_000_001, "line 1: a string without its closing quote"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_or_hostile_file_is_one_sentence_and_takes_little_memory(name):
    data, said = DAMAGED[name]
    data = data.encode() if isinstance(data, str) else data
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecord) as caught:
            read_catalog(data, "x/de.po")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert message.startswith("x/de.po")
    assert said in message
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 200
    assert peak < 30 * len(data) + 1_000_000


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *(("de", "de"), ("de_DE.UTF-8", "de"), ("pt-BR", "pt_BR"), ("pt_PT", "pt"), ("no", "nb")),
        *(("zh_Hans", "zh_CN"), ("zh-Hant-HK", "zh_TW"), ("zh_HK", "zh_TW"), ("zh_CN", "zh_CN")),
        *(("sr_Latn", "sr@latin"), ("sr@latin", "sr@latin"), ("sr_Cyrl", "sr"), ("iw", "he")),
        *(("ca@valencia", "ca@valencia"), ("es_419", "es"), ("German", ""), ("", ""), ("../x", "")),
    ],
)
def test_a_code_has_no_region_but_for_chinese_and_brazil(name, code):
    assert language_code(name) == code


def in_wheel(data: bytes) -> list[Member]:
    return list(wheel_catalogs(io.BytesIO(data), "a.whl"))


def test_the_catalogs_of_a_wheel_are_read_by_name_and_none_twice():
    names = ["b/x.po", "b/x.mo", "a/y.mo", "a/code.py"]
    assert in_wheel(wheel({name: name.encode() for name in names})) == [
        Member("a/y.mo", b"a/y.mo"),
        Member("b/x.po", b"b/x.po"),
    ]


WHEEL = wheel({"a.po": b"some text of a catalog" * 9}, zipfile.ZIP_STORED)
BOMB = wheel({"a.mo": bytes(20_000_000)})


def lie(data: bytes, size: int) -> bytes:
    """Returns a wheel of one file whose directory tells another size of it."""
    at = data.rindex(b"PK\x01\x02") + 24
    return data[:at] + size.to_bytes(4, "little") + data[at + 4 :]


DAMAGED_WHEELS = {
    "empty": (b"", "not a wheel, or damaged: "),
    "no zip": (b"PK\3\4" + bytes(1000), "not a wheel, or damaged: "),
    "cut short": (WHEEL[:-30], "not a wheel, or damaged: "),
    "directory outside": (WHEEL[:-6] + b"\xff\xff\xff\x7f\0\0", "damaged: negative seek"),
    "other bytes": (WHEEL.replace(b"catalog", b"CATALOG", 1), "a.po: damaged: Bad CRC-32"),
    "bomb": (BOMB, "bytes unpack to 20,000,000: no catalog"),
    "bomb that lies": (lie(BOMB, 1000), "a.mo: damaged: Bad CRC-32"),
    "too large": (lie(WHEEL, (1 << 30) + 1), "its catalogs have more than 1,073,741,824 bytes"),
    "other method": (wheel({"a.po": b"x"}, zipfile.ZIP_BZIP2), "packed by another method"),
    "encrypted": (
        WHEEL.replace(b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1"),
        "a.po: damaged: ",
    ),
}


@pytest.mark.parametrize("name", DAMAGED_WHEELS)
def test_a_damaged_or_hostile_wheel_is_one_sentence_and_takes_little_memory(name):
    data, said = DAMAGED_WHEELS[name]
    tracemalloc.start()
    try:
        (member,) = in_wheel(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert member.data == b""
    assert member.damage.startswith("a.whl")
    assert said in member.damage
    assert member.damage.endswith(".")
    assert "\n" not in member.damage
    assert peak < 3_000_000
