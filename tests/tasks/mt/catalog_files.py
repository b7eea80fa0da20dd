"""Catalogs that tests write: as text, compiled, and in wheels."""

from __future__ import annotations

import io
import pathlib
import struct
import zipfile
from collections.abc import Mapping

HEADER = (
    "Content-Type: text/plain; charset={charset}\nPlural-Forms: {plurals};\nLanguage: {language}\n"
)
PLURALS = "nplurals=2; plural=(n != 1)"


def header(charset: str = "UTF-8", plurals: str = PLURALS, language: str = "") -> str:
    return HEADER.format(charset=charset, plurals=plurals, language=language)


def text_catalog(messages: Mapping[str, str], head: str | None = None) -> str:
    """Returns a .po file of some translations by their English; None: the usual header."""
    entries = {"": header() if head is None else head} | dict(messages)
    return "\n".join(f"msgid {quote(e)}\nmsgstr {quote(t)}\n" for e, t in entries.items())


def quote(text: str) -> str:
    for character, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t")):
        text = text.replace(character, escape)
    return f'"{text}"'


def compiled_catalog(
    messages: Mapping[str, str],
    head: str | None = None,
    *,
    charset: str = "utf-8",
    order: str = "<",
) -> bytes:
    """Returns a .mo file: contexts end in U+0004, plural forms in U+0000."""
    entries = {"": header() if head is None else head} | dict(messages)
    sides = [[text.encode(charset) for text in side] for side in (entries, entries.values())]
    at = 28 + 16 * len(entries)
    tables, content = b"", b""
    for side in sides:
        for text in side:
            tables += struct.pack(f"{order}2I", len(text), at + len(content))
            content += text + b"\0"
    starts = (28, 28 + 8 * len(entries), 0, 0)
    return struct.pack(f"{order}7I", 0x950412DE, 0, len(entries), *starts) + tables + content


def wheel(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Returns a wheel with some files."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def write(folder: pathlib.Path, files: Mapping[str, str | bytes]) -> pathlib.Path:
    """Writes files by their paths below a folder, and returns the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder
