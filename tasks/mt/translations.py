"""Translations into English, from the catalogs of programs or your own tables.

A program's messages exist in up to a hundred languages, so one English string is the target of many
pairs. The English alone decides a pair's split; case, punctuation, digits and placeholders are
ignored. So neither a held-out string nor a similar one is in any language's training data.

Each catalog is read once, as a whole. The pairs are kept in the user's cache directory, in one
table per language.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from lingo.config import ranges
from lingo.config.params import ParamError, suggest
from lingo.data.files import DataError, File, FilePattern, Read, describe_place, list_files
from lingo.data.index_cache import cache_folder
from lingo.data.pairs.pair import SEPARATOR, Part, pair
from lingo.data.record_source import CorruptRecord
from lingo.data.sources.jsonl import json_value, text_of
from lingo.data.sources.pair_files import PairLines
from lingo.storage.files import StorageError, explain_write_errors, new_folder
from tasks.mt.catalogs import folder_language, language_code, read_catalog, wheel_catalogs

_FORMAT = 1  # of the tables: raised when the same files give other pairs
_IN_A_FOLDER = ("**/LC_MESSAGES/*.mo", "**/*.po", "**/*.whl")
_LARGEST = {  # bytes of the largest file that is read, by extension
    **dict.fromkeys((".mo", ".po"), 1 << 25),
    **dict.fromkeys((".whl", ".tsv", ".jsonl"), 1 << 30),
}
_UNREADABLE = "unreadable"  # table of damaged files whose language is unknown
_KEPT_SECONDS = 90 * 86400

_PLACEHOLDER = re.compile(
    r"""
    \$\{ [^{}\s]{1,60} \}                                    # ${name}, of Zope
  | \{ [\w.\[\]]{0,60} (?: ![rsa] )? (?: :[^{}\s]{0,20} )? \}  # {name}, {0:d}, of Python and others
  | % (?: \( [\w. -]{1,60} \) | (?P<position> \d{1,2}\$ ) )?   # %(name)s, %1$s, %d, %-5.2f, of C
      [-+0\#']{0,5} (?: \d{1,4} | \* )? (?: \.(?: \d{1,4} | \* ) )?
      (?: hh? | ll? | [qjztL] )? [diouxXeEfFgGaAcspnm@%]
  | %L?\d{1,2}                                               # %1, of Qt
  | </? (?P<tag> [A-Za-z][\w-]{0,20} ) [^<>]{0,500} >          # <b>, <a href="...">
    """,
    re.VERBOSE,
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffd]")
_MARKS = {"&": re.compile(r"&(?!\w+;)(?=\w)"), "_": re.compile(r"_(?=[^\W_])")}
_MARK_AFTER = {"&": re.compile(r"\s*\(&\w\)"), "_": re.compile(r"\s*\(_\w\)")}  # 打开(_O)
_NO_LETTERS = re.compile(r"[\W\d_]+")
_PLURAL = re.compile(r"(?<=\w{3})s\b")


class Translations(PairLines):
    """Pairs of a text in another language and its English: programs' messages, or your own texts.

    `pattern` is a folder with catalogs and wheels below it, or a path or glob of:
    gettext catalogs (.mo, .po); a .mo next to its .po is not read;
    wheels (.whl) with such catalogs;
    tables (.tsv) with the columns language, text, English; objects (.jsonl) with the fields
    `language`, `source` and `target`, the English.

    A catalog's language comes from the folder above LC_MESSAGES, else from its header, else from
    its name. Regions are ignored, except for Chinese and Brazilian Portuguese. English catalogs are
    left out. A catalog that cannot be read counts as one damaged record. With `unique`, one pair
    per English string remains.
    """

    languages: list[str] | None = None  # codes such as de, pt_BR, sr@latin; None: all
    min_words: int = 4  # of the English text
    max_words: int = 40
    equal_sides: Literal["keep", "leave_out"] = "keep"  # pairs whose two texts are equal

    unit: ClassVar[str] = "pair"
    identified_by: ClassVar[Part] = "target"

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "min_words", "max_words")
        if self.p.min_words > self.p.max_words:
            raise ParamError(f"min_words={self.p.min_words} is above max_words={self.p.max_words}")
        if self.p.languages is not None and not self.p.languages:
            raise ParamError("languages is empty: name one, such as de, or None for all")

    def identity(self, read: Read, size: int) -> Iterable[bytes]:
        english = read(0, size).partition(SEPARATOR)[2]
        return [likeness(english.decode()).encode()]

    def places(self) -> list[FilePattern]:
        """Returns a table per language; raises DataError if a language has no pair."""
        folder = write_tables(self._inputs())
        names = {path.stem for path in folder.iterdir()}
        damaged, known = names & {_UNREADABLE}, sorted(names - {_UNREADABLE})
        languages = known if self.p.languages is None else self.p.languages
        for language in languages:
            if language not in known:
                raise DataError(
                    f"{self.p.pattern} has no translations from {language!r}."
                    f"{suggest(language, known)} Languages: {', '.join(known) or 'none'}."
                )
        if not languages and not damaged:
            raise DataError(f"{self.p.pattern} has no translations from any language.")
        return [FilePattern(str(folder), f"{name}.tsv") for name in [*languages, *damaged]]

    def text(self, data: bytes, where: str) -> bytes:
        columns = data.decode().rstrip("\n").split("\t")
        if len(columns) == 1:
            raise CorruptRecord(columns[0])
        translation, english = columns
        is_right_size = self.p.min_words <= len(english.split()) <= self.p.max_words
        is_left_out = translation == english and self.p.equal_sides == "leave_out"
        return pair(translation, english, where) if is_right_size and not is_left_out else b""

    def _inputs(self) -> list[File]:
        root = os.path.expanduser(self.p.pattern)
        if os.path.isdir(root):
            places = [FilePattern(root, pattern) for pattern in _IN_A_FOLDER]
        else:
            places = super().places()
        files = list_files(places)
        if not files:
            hint = "" if os.path.isdir(root) else f" {describe_place(places[0])}"
            raise DataError(f"{self.p.pattern} holds no catalog, wheel or table.{hint}")
        return files


# ---- tables --------------------------------------------------------------------------------------


class _Pairs(NamedTuple):
    """The pairs of a catalog, or why it cannot be read."""

    language: str  # "" if not known
    pairs: Iterable[tuple[str, str]]  # (translation, English), as they are in the file
    damage: str = ""


def write_tables(files: Sequence[File]) -> Path:
    """Returns a folder with a table of each language's pairs, which it makes if missing.

    A line is a text, a tab and its English; a line without a tab describes damage. A language's
    table has each pair once. Raises DataError if a file cannot be read, StorageError if the tables
    cannot be written.
    """
    key = hashlib.sha256(json.dumps([_FORMAT, files]).encode()).hexdigest()
    folder = cache_folder("translations") / key
    with explain_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.is_dir():
            os.utime(folder)  # marks it as used
            return folder
    _clear_unused(folder.parent)
    try:
        with new_folder(folder) as partial:
            _write(partial, files)
    except (ParamError, StorageError):
        if not folder.is_dir():  # otherwise another process has made it meanwhile
            raise
    return folder


def _clear_unused(folder: Path) -> None:
    oldest = time.time() - _KEPT_SECONDS
    for other in folder.iterdir():
        if other.stat().st_mtime < oldest:
            shutil.rmtree(other, ignore_errors=True)


def _write(folder: Path, files: Sequence[File]) -> None:
    paths, seen = {file.path for file in files}, set[int]()  # hashes take less memory than lines
    for file in files:
        if file.path.endswith(".mo") and f"{file.path[:-2]}po" in paths:
            continue
        for pairs in _read(file):
            if pairs.language.partition("@")[0] != "en":
                _append(folder, pairs, seen)


def _append(folder: Path, catalog: _Pairs, seen: set[int]) -> None:
    """Appends the pairs of a catalog that its language's table does not have yet."""
    lines = [" ".join(catalog.damage.split())] if catalog.damage else []
    for translation, english in catalog.pairs:
        cleaned = clean_pair(translation, english)
        if cleaned and all(cleaned):
            line = "\t".join(cleaned)
            if (mark := hash((catalog.language, line))) not in seen:
                seen.add(mark)
                lines.append(line)
    if lines:
        path = folder / f"{catalog.language or _UNREADABLE}.tsv"
        with explain_write_errors(path), path.open("ab") as table:
            table.write("".join(f"{line}\n" for line in lines).encode(errors="replace"))


def _read(file: File) -> Iterator[_Pairs]:
    """Yields the pairs of a file, or of each catalog in a wheel."""
    kind = os.path.splitext(file.path)[1]
    if kind not in _LARGEST:
        raise DataError(
            f"{file.path} ends in none of {', '.join(_LARGEST)}: leave it out of the pattern, or"
            " rename it."
        )
    if file.size > _LARGEST[kind]:
        damage = f"{file.path}: it has more than the {_LARGEST[kind]:,} bytes that are read."
        yield _Pairs("", [], damage)
    elif kind == ".whl":
        with file.open_stream() as stream:
            for name, data, damage in wheel_catalogs(stream, file.path):
                if damage:
                    yield _Pairs(folder_language(name), [], damage)
                else:
                    yield _read_catalog(name, data, f"{file.path}, {name}")
    elif kind in (".mo", ".po"):
        yield _read_catalog(file.name, file.read(0, file.size), file.path)
    else:
        yield from _read_lines(file.read(0, file.size), kind, file.path)


def _read_catalog(name: str, data: bytes, where: str) -> _Pairs:
    language = folder_language(name)
    try:
        catalog = read_catalog(data, where)
    except CorruptRecord as error:
        return _Pairs(language, [], str(error))
    stem = os.path.splitext(os.path.basename(name))[0]
    language = language or language_code(catalog.language) or language_code(stem)
    if language:
        return _Pairs(language, catalog.pairs())
    return _Pairs("", [], f"{where}: neither its folder, its header nor its name is a language.")


def _read_lines(data: bytes, kind: str, path: str) -> Iterator[_Pairs]:
    """Yields a table's pairs by language, and the damage of each line without a pair."""
    pairs: dict[str, list[tuple[str, str]]] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                name, *sides = _columns(line, where) if kind == ".tsv" else _fields(line, where)
                if not (language := language_code(name)):
                    raise CorruptRecord(f"{where}: {name[:40]!r} is no code of a language.")
                pairs.setdefault(language, []).append((sides[0], sides[1]))
            except CorruptRecord as error:
                yield _Pairs("", [], str(error))
    yield from (_Pairs(language, some) for language, some in pairs.items())


def _columns(line: bytes, where: str) -> list[str]:
    try:
        columns = line.decode("utf-8-sig").rstrip("\r").split("\t")
    except UnicodeDecodeError as error:
        raise CorruptRecord(f"{where}: not UTF-8: {error.reason}.") from None
    if len(columns) != 3:
        raise CorruptRecord(
            f"{where}: it has {len(columns)} columns, not 3: language, text and English."
        )
    return columns


def _fields(line: bytes, where: str) -> list[str]:
    value = json_value(line, where)
    return [text_of(value, field, where) for field in ("language", "source", "target")]


# ---- wording -------------------------------------------------------------------------------------


def clean_pair(translation: str, english: str) -> tuple[str, str] | None:
    """Returns a pair, each text in one line without access-key marks; None for a useless pair.

    A pair is useless if its texts differ in their placeholders, or have control characters.
    """
    sides = [" ".join(side.split()) for side in (translation, english)]
    if any(map(_CONTROL.search, sides)):
        return None
    translation, english = sides
    for mark in _MARKS:
        translation, english = _remove_mark(mark, translation, english)
    if placeholders(translation) != placeholders(english):
        return None
    return translation, english


def placeholders(text: str) -> Counter[str]:
    """Returns how often a text has each placeholder: `%s` for `%1$s`, `<a>` for any link."""
    counts = Counter[str]()
    for match in _PLACEHOLDER.finditer(text):
        whole, position, tag = match[0], match["position"], match["tag"]
        if tag:
            whole = f"{whole[: 1 + (whole[1] == '/')]}{tag.lower()}"
        counts[whole.replace(position, "", 1) if position else whole] += 1
    return counts


def likeness(english: str) -> str:
    """Returns a text without case, marks, digits, placeholders and final s, to compare texts."""
    text = unicodedata.normalize("NFKC", _PLACEHOLDER.sub(" ", english)).casefold()
    letters = _PLURAL.sub("", _NO_LETTERS.sub(" ", text)).strip()
    return letters or english


def _remove_mark(mark: str, translation: str, english: str) -> tuple[str, str]:
    """Returns both texts without the mark of an access key: `&Save`, `Save _As`.

    A word with the mark that both texts have is a name, such as `AT&T` or `max_size`.
    """
    marks = list(_MARKS[mark].finditer(english))
    if len(marks) != 1:
        return translation, english
    at = marks[0].start()
    word = english[:at].rpartition(" ")[2] + english[at:].partition(" ")[0]
    if word in translation:
        return translation, english
    if (without := _MARK_AFTER[mark].sub("", translation)) == translation:
        without = _MARKS[mark].sub("", translation, count=1)
    return without, english[:at] + english[at + 1 :]
