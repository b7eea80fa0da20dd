"""gettext catalogs: a program's messages in another language, as text (.po) or compiled (.mo).

The manual of GNU gettext defines both formats (sec. "MO Files", "PO Files"). Python's standard
library reads only .mo, and a hostile file of a megabyte makes it take gigabytes. Here a file never
takes more memory than a few times its size.
"""

from __future__ import annotations

import codecs
import gettext
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from lingo.data.record_source import CorruptRecord

_MAGIC = 0x950412DE
_HEADER = 20  # bytes of a .mo file before its tables
_MAX_SHARED = 4  # bytes of all strings per byte of the file; 1 where no two strings overlap
_CONTEXT, _NEXT = b"\x04", b"\0"  # ends a context; separates plural forms

_CHARSET = re.compile(rb"Content-Type:[^\n\"]{0,200}?charset=([\w.:-]+)", re.IGNORECASE)
_TEXT_CODECS = re.compile(
    r"utf-8|ascii|iso8859-\d+|koi8-[rtu]|cp\d+|euc_\w+|gb\w+|big5\w*|shift_ji.*|tis-620"
)
_KEYWORD = re.compile(r"(msgctxt|msgid|msgid_plural|msgstr(?:\[\d{1,3}\])?)\s*(?=\")")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)"')  # possessive: little memory for a long line
_DEFAULT = re.compile(r'#\.\s*Default:\s*(?=")')
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)")
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_PLURALS = re.compile(r"plural\s*=\s*([^;\n]+)")

_CODE = re.compile(
    r"([a-z]{2,3})(?:[_-]([A-Z][a-z]{3}))?(?:[_-]([A-Z]{2}|\d{3}))?(?:\.[\w-]+)?(?:@([A-Za-z0-9]{1,16}))?"
)
_NEWER = {"iw": "he", "in": "id", "ji": "yi", "no": "nb", "mo": "ro", "tl": "fil"}
_SCRIPTS = {"latn": "latin", "cyrl": "cyrillic", "arab": "arabic", "deva": "devanagari"}
_CHINESE = {"Hans": "zh_CN", "Hant": "zh_TW", "TW": "zh_TW", "HK": "zh_TW", "MO": "zh_TW"}

_MAX_MEMBER = 1 << 25  # bytes of a catalog, unpacked
_MAX_TOTAL = 1 << 30  # bytes of all catalogs of a wheel
_MAX_RATIO = 200  # of content to compressed bytes; about 4 for catalogs
_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError),
)


class Message(NamedTuple):
    """An English message and its translations into another language."""

    english: str  # the singular, if there are plural forms
    plural: str  # the English plural; "" without plural forms
    translations: tuple[str, ...]  # one per plural form of the other language, or just one


class Catalog(NamedTuple):
    """The messages of a program in another language."""

    header: str  # lines such as "Language: de"; "" without a header
    messages: list[Message]

    @property
    def language(self) -> str:
        """The language in the header; "" if the header names none."""
        match = re.search(r"^Language:[ \t]*(\S+)[ \t]*$", self.header, re.MULTILINE)
        return match[1] if match else ""

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yields (translation, English); the form for one thing goes with the English singular."""
        singular = self._singular_form()
        for message in self.messages:
            for form, translation in enumerate(message.translations):
                is_plural = message.plural and (form != singular or len(message.translations) == 1)
                if translation:
                    yield translation, message.plural if is_plural else message.english

    def _singular_form(self) -> int:
        """Returns the index of the plural form for one thing; 0 if the header's rule is wrong."""
        match = _PLURALS.search(self.header)
        try:
            return gettext.c2py(match[1].strip())(1) if match else 0
        except (ValueError, ArithmeticError, RecursionError):
            return 0


def read_catalog(data: bytes, where: str) -> Catalog:
    """Returns the catalog in a file of either format.

    Fuzzy, obsolete and untranslated messages are left out. Raises CorruptRecord, which begins with
    `where`, if the file is damaged, or has an unknown charset.
    """
    magic = data[:4]
    if _MAGIC in (int.from_bytes(magic, "little"), int.from_bytes(magic, "big")):
        return _read_compiled(data, where)
    if b"\0" in data:
        raise CorruptRecord(f"{where}: neither a compiled gettext catalog nor text.")
    return _PoReader(_decode(data, _codec(data, where), where), where).read()


def _codec(header: bytes, where: str) -> str:
    """Returns the codec name of the charset in a header; UTF-8 for a header without a charset."""
    match = _CHARSET.search(header)
    charset = match[1].decode("ascii", "replace") if match else "CHARSET"
    if charset in ("CHARSET", "ASCII", "US-ASCII"):  # CHARSET: a template that was not filled in
        return "utf-8"
    try:
        name = codecs.lookup(charset).name
    except (LookupError, ValueError):
        name = ""
    if not _TEXT_CODECS.fullmatch(name):  # Python also has codecs that are not charsets
        raise CorruptRecord(f"{where}: its header has the charset {charset[:40]!r}: none is known.")
    return name


def _decode(data: bytes, codec: str, where: str) -> str:
    try:
        return data.decode(codec).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise CorruptRecord(
            f"{where}: not {codec}, its charset: {error.reason}, after {error.start:,} bytes."
        ) from None


def language_code(name: str) -> str:
    """Returns the code of a language's name, `de` for de_AT.UTF-8, `zh_CN` for zh-Hans; else ""."""
    if not (match := _CODE.fullmatch(name)):
        return ""
    language, script, region, variant = match.groups()
    if language == "zh":
        return _CHINESE.get(script or region, "zh_CN")
    if (language, region) == ("pt", "BR"):
        return "pt_BR"
    language, variant = _NEWER.get(language, language), (script or variant or "").lower()
    variant = _SCRIPTS.get(variant, variant)
    is_usual = (language, variant) == ("sr", "cyrillic")
    return f"{language}@{variant}" if variant and not is_usual else language


def folder_language(path: str) -> str:
    """Returns the language code of the folder above LC_MESSAGES in a path; "" without it."""
    parts = path.split("/")
    return language_code(parts[-3]) if len(parts) > 2 and parts[-2] == "LC_MESSAGES" else ""


# ---- compiled ------------------------------------------------------------------------------------


def _read_compiled(data: bytes, where: str) -> Catalog:
    texts = list(_compiled_strings(data, where))
    originals, translations = texts[: len(texts) // 2], texts[len(texts) // 2 :]
    header = next((t for o, t in zip(originals, translations, strict=True) if not o), b"")
    codec = _codec(header, where)
    messages = []
    for original, translation in zip(originals, translations, strict=True):
        english, _, plural = original.rpartition(_CONTEXT)[2].partition(_NEXT)
        if english:
            sides = [english, plural, *translation.split(_NEXT)]
            english, plural, *forms = (_decode(side, codec, where) for side in sides)
            messages.append(Message(english, plural, tuple(forms if plural else forms[:1])))
    return Catalog(_decode(header, codec, where), messages)


def _compiled_strings(data: bytes, where: str) -> Iterator[bytes]:
    """Yields the English strings of a .mo file, then all translations."""
    if len(data) < _HEADER:
        raise CorruptRecord(f"{where}: cut short: it has {len(data)} bytes, and no table.")
    order = "<" if int.from_bytes(data[:4], "little") == _MAGIC else ">"
    version, count, *tables = struct.unpack_from(f"{order}4I", data, 4)
    if version >> 16 > 1:
        raise CorruptRecord(
            f"{where}: version {version >> 16} of its format: only 0 and 1 are known."
        )
    if max(tables) + 8 * count > len(data):
        raise CorruptRecord(
            f"{where}: cut short: its tables of {count:,} messages do not end in its"
            f" {len(data):,} bytes."
        )
    spans = [
        span
        for at in tables
        for span in struct.iter_unpack(f"{order}2I", data[at : at + 8 * count])
    ]
    if any(start + size > len(data) for size, start in spans):
        raise CorruptRecord(f"{where}: cut short: a message ends after its {len(data):,} bytes.")
    if sum(size for size, _ in spans) > _MAX_SHARED * len(data):
        raise CorruptRecord(f"{where}: damaged: its messages overlap.")
    return (data[start : start + size] for size, start in spans)


# ---- text ----------------------------------------------------------------------------------------


class _PoReader:
    """Reads a .po file line by line."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where = text, where
        self._catalog = Catalog("", [])
        self._line = 0
        self._start()

    def read(self) -> Catalog:
        """Returns the catalog; raises CorruptRecord, which names the line."""
        for line in self._text.split("\n"):
            self._line += 1
            self._read_line(line.strip())
        self._finish()
        return self._catalog

    def _start(self) -> None:
        self._fields: dict[str, list[str]] = {}
        self._field = ""  # the last keyword
        self._default: list[str] = []  # Zope: the English, if the message is only a key
        self._is_fuzzy = False

    def _read_line(self, line: str) -> None:
        if line.startswith("#"):
            if self._has_translation:
                self._finish()
            self._read_comment(line)
        elif match := _KEYWORD.match(line):
            is_next = match[1] in ("msgctxt", "msgid") and self._has_translation
            if is_next:
                self._finish()
            if match[1] in self._fields:
                raise self._error(f"a second {match[1]}")
            self._field = match[1]
            self._fields[self._field] = [self._string(line[match.end() :])]
        elif line.startswith('"') and self._field:
            self._fields[self._field].append(self._string(line))
        elif line:
            raise self._error(f"neither a keyword nor a string: {line[:40]!r}")

    @property
    def _has_translation(self) -> bool:
        return self._field.startswith("msgstr")

    def _read_comment(self, line: str) -> None:
        if line.startswith("#,"):
            self._is_fuzzy |= "fuzzy" in line
        elif match := _DEFAULT.match(line):
            self._default = self._default_part(line[match.end() :])
        elif line.startswith("#.") and self._default:
            self._default += self._default_part(line[2:].strip())

    def _default_part(self, text: str) -> list[str]:
        match = _STRING.fullmatch(text)
        return [_unescape(match[1])] if match else []

    def _string(self, text: str) -> str:
        if not (match := _STRING.fullmatch(text)):
            raise self._error(
                f"a string without its closing quote, or with more after it: {text[:40]!r}"
            )
        return _unescape(match[1])

    def _finish(self) -> None:
        """Adds the message whose lines have been read."""
        fields = {name: "".join(parts) for name, parts in self._fields.items()}
        default, is_fuzzy = "".join(self._default), self._is_fuzzy
        self._start()
        if not fields:
            return
        translations = tuple(text for name, text in fields.items() if name.startswith("msgstr"))
        if "msgid" not in fields or not translations:
            missing = "msgstr" if "msgid" in fields else "msgid"
            raise self._error(f"the message before has no {missing}")
        if not fields["msgid"] and "msgctxt" not in fields:
            self._catalog = self._catalog._replace(header=translations[0])
        elif not is_fuzzy:
            english, plural = default or fields["msgid"], fields.get("msgid_plural", "")
            self._catalog.messages.append(Message(english, plural, translations))

    def _error(self, problem: str) -> CorruptRecord:
        return CorruptRecord(f"{self._where}, line {self._line:,}: {problem}.")


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(escape: re.Match[str]) -> str:
    code = escape[1]
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    return chr(int(code, 8) & 0xFF) if code[0] in "01234567" else _ESCAPES.get(code, code)


# ---- wheels --------------------------------------------------------------------------------------


class Member(NamedTuple):
    """A catalog in a wheel, or why it cannot be read."""

    name: str  # its path in the wheel; "" for the wheel itself
    data: bytes
    damage: str = ""


def wheel_catalogs(stream: BinaryIO, path: str) -> Iterator[Member]:
    """Yields the catalogs of a wheel, sorted by name; a .mo next to its .po is left out."""
    try:
        wheel = zipfile.ZipFile(stream)
    except _ERRORS as error:
        yield Member("", b"", f"{path}: not a wheel, or damaged: {error or type(error).__name__}.")
        return
    with wheel:
        members = {member.filename: member for member in wheel.infolist()}
        names = sorted(name for name in members if name.endswith((".po", ".mo")))
        names = [n for n in names if n.endswith(".po") or f"{n[:-2]}po" not in members]
        if sum(members[name].file_size for name in names) > _MAX_TOTAL:
            yield Member("", b"", f"{path}: its catalogs have more than {_MAX_TOTAL:,} bytes.")
            return
        for name in names:
            yield _member(wheel, members[name], f"{path}, {name}")


def _member(wheel: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> Member:
    name, size = member.filename, member.file_size
    if size > min(_MAX_MEMBER, _MAX_RATIO * member.compress_size + 1000):
        return Member(
            name, b"", f"{where}: {member.compress_size:,} bytes unpack to {size:,}: no catalog."
        )
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return Member(name, b"", f"{where}: packed by another method than deflate.")
    try:
        with wheel.open(member) as content:
            return Member(name, content.read(size))  # `wheel.read` may unpack more
    except _ERRORS as error:
        return Member(name, b"", f"{where}: damaged: {error or type(error).__name__}.")
