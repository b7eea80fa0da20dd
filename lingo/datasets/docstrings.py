"""Docstrings of installed Python packages: their English text, or their examples.

Files are parsed, never imported. A document is one docstring; its span is the docstring's literal.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from collections.abc import Iterator
from typing import ClassVar, Literal

from lingo.config.base.ast_lock import AST_LOCK
from lingo.data.files import File, Read
from lingo.data.record_source import PythonPackages
from lingo.datasets import syntax

_ESCAPE = re.compile(rb"\\([4-7][0-7][0-7]|.)", re.DOTALL)
_KNOWN_ESCAPES = rb"\"'abfnrtvxuUN01234567" + b"\\\r\n"

_FENCED = re.compile(r"^( *)```.*?^\1```[^\n]*$|^ *```.*\Z", re.DOTALL | re.MULTILINE)
_EXAMPLE = re.compile(r"^ *>>>.*(?:\n(?! *$).+)*", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n){2,}")
_WORD = re.compile(r"[A-Za-z]+")
_FUNCTION_WORDS = frozenset(
    _WORD.findall(
        "a an and are as be by can for from if in is it not of on or that the this to will with"
    )
)
_MIN_WORDS = 3
_MIN_FUNCTION_WORDS = 0.1  # least share; about 0.35 in running English, 0.01 in lists of names
_MAX_FOREIGN = 0.02  # largest share of characters beyond ASCII


class Docstrings(PythonPackages):
    """The English text of docstrings of some packages, without examples and fenced code."""

    split_by: Literal["file", "document"] = "document"  # what is hashed: a file's name, or a text
    unique: bool = True  # leave out every document whose text occurred before, in any split

    decodes: ClassVar[bool] = True
    unit: ClassVar[str] = "docstring"

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        return literals(read(0, file.size))

    def text(self, data: bytes, where: str) -> bytes:
        del where
        return encode_text(english(docstring(data)))


class Doctests(Docstrings):
    """The examples of docstrings: prompts and answers, as an interpreter shows them.

    A document has all examples of one docstring, because later examples build on earlier ones.
    """

    def text(self, data: bytes, where: str) -> bytes:
        del where
        return encode_text(examples(docstring(data)))


def literals(code: bytes) -> Iterator[tuple[int, int]]:
    """Yields (first byte, number of bytes) of every docstring literal; no literal if not Python."""
    if (file := syntax.parse(code)) is None:
        return
    for _, literal in syntax.documented_nodes(file.tree):
        start = file.start(literal)
        yield start, file.end(literal) - start


def docstring(literal: bytes) -> str:
    """Returns the text of a docstring literal, without its indentation."""
    if b"r" not in literal[:2].lower():
        literal = _ESCAPE.sub(_rewrite_escape, literal)
    with AST_LOCK:
        text = ast.literal_eval(f"({literal.decode()})")
    return inspect.cleandoc(text)


def _rewrite_escape(escape: re.Match[bytes]) -> bytes:
    r"""Returns `\d` as `\\d` and `\777` as `\u01ff`: the same text, but Python does not warn."""
    if len(escape[1]) == 3:
        return b"\\u%04x" % int(escape[1], 8)
    return escape[0] if escape[1] in _KNOWN_ESCAPES else b"\\" + escape[0]


def english(text: str) -> str:
    """Returns the prose of a docstring, or "" if it is not English."""
    text = prose(text)
    words = _WORD.findall(text.lower())
    num_foreign = len(text) - len(text.encode("ascii", "ignore"))
    num_common = sum(word in _FUNCTION_WORDS for word in words)
    is_english = (
        len(words) >= _MIN_WORDS
        and num_common >= _MIN_FUNCTION_WORDS * len(words)
        and num_foreign <= _MAX_FOREIGN * len(text)
    )
    return text + "\n" if is_english else ""


def prose(text: str) -> str:
    """Returns a docstring without its examples and fenced code."""
    return _BLANK_LINES.sub("\n\n", _EXAMPLE.sub("", _FENCED.sub("", text))).strip()


def summary(text: str) -> str:
    """Returns the first paragraph of a docstring as one line; "" if it has too few words."""
    first = " ".join(prose(text).partition("\n\n")[0].split())
    return first if len(_WORD.findall(first)) >= _MIN_WORDS else ""


def examples(text: str) -> str:
    """Returns the examples of a docstring, or "" if none of them has an answer."""
    try:
        parts = doctest.DocTestParser().get_examples(text)
    except ValueError:  # the docstring's indentation is inconsistent
        return ""
    if not any(part.want for part in parts):
        return ""
    return "".join(_prompt(part.source) + part.want for part in parts)


def _prompt(source: str) -> str:
    """Returns the source of an example with its prompts, as it was typed."""
    first, *others = source.splitlines(keepends=True)
    return f">>> {first}" + "".join(f"... {line}" if line.strip() else "...\n" for line in others)


def encode_text(text: str) -> bytes:
    """Returns a text in UTF-8; lone surrogates, which a literal may hold, become question marks."""
    return text.encode(errors="replace")
