"""Docstrings of installed Python packages: their English, or their examples.

Files are parsed, never imported. A document is one docstring: its span is the literal in the file.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import warnings
from collections.abc import Iterator
from typing import ClassVar, Literal

from lingo.config.params import ParamError
from lingo.data.source import File, Place, Read, Source, check_package, package_directory

_Owner = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")

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
_MIN_FUNCTION_WORDS = 0.1  # share; about 0.35 in running English, 0.01 in lists of names
_MAX_FOREIGN = 0.02  # share of characters beyond ASCII


class Docstrings(Source):
    """The English of the docstrings of some packages, without examples and fenced code."""

    packages: list[str] = ["tensorflow", "keras", "numpy"]  # top-level import names
    split_by: Literal["file", "document"] = "document"  # what is hashed: a file's name, or a text
    unique: bool = True  # leave out every document whose text has been before

    decodes: ClassVar[bool] = True
    unit: ClassVar[str] = "docstring"

    def check(self) -> None:
        super().check()
        if not self.p.packages:
            raise ParamError("packages is empty: name one that is installed, such as numpy.")
        for package in self.p.packages:
            check_package(package)

    def places(self) -> list[Place]:
        return [Place(package_directory(p), "**/*.py", f"{p}/") for p in self.p.packages]

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        return literals(read(0, file.size))

    def text(self, data: bytes, where: str) -> bytes:
        del where
        return encoded(english(docstring(data)))


class Doctests(Docstrings):
    """The examples of docstrings: prompts and answers, as an interpreter shows them.

    A document is the examples of one docstring, whose later ones build on the earlier.
    """

    def text(self, data: bytes, where: str) -> bytes:
        del where
        return encoded(examples(docstring(data)))


def literals(code: bytes) -> Iterator[tuple[int, int]]:
    """Yields (first byte, number of bytes) of every docstring literal, in order.

    Files that are no Python in UTF-8 have none.
    """
    try:
        code.decode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings, which are not ours
            tree = ast.parse(code)
    except (ValueError, SyntaxError, RecursionError):
        return
    mark = 3 if code.startswith(b"\xef\xbb\xbf") else 0  # which ast does not count
    lines = [mark]
    for line in code[mark:].splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    for node in sorted(_docstrings(tree), key=lambda node: node.lineno):
        start = lines[node.lineno - 1] + node.col_offset
        yield start, lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0) - start


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yields the docstrings of a module and of everything defined in it."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        for block in _BLOCKS:
            waiting += getattr(node, block, ())
        if isinstance(node, _Owner) and node.body and isinstance(node.body[0], ast.Expr):
            value = node.body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def docstring(literal: bytes) -> str:
    """Returns the text of a docstring literal, without its indentation."""
    if b"r" not in literal[:2].lower():
        literal = _ESCAPE.sub(_unambiguous, literal)
    return inspect.cleandoc(ast.literal_eval(f"({literal.decode()})"))


def _unambiguous(escape: re.Match[bytes]) -> bytes:
    r"""Returns `\d` as `\\d` and `\777` as `\u01ff`: what they mean; Python warns of these two."""
    if len(escape[1]) == 3:
        return b"\\u%04x" % int(escape[1], 8)
    return escape[0] if escape[1] in _KNOWN_ESCAPES else b"\\" + escape[0]


def english(text: str) -> str:
    """Returns the prose of a docstring, or "" if it is not English."""
    prose = _EXAMPLE.sub("", _FENCED.sub("", text))
    prose = _BLANK_LINES.sub("\n\n", prose).strip()
    words = _WORD.findall(prose.lower())
    foreign = len(prose) - len(prose.encode("ascii", "ignore"))
    common = sum(word in _FUNCTION_WORDS for word in words)
    is_english = (
        len(words) >= _MIN_WORDS
        and common >= _MIN_FUNCTION_WORDS * len(words)
        and foreign <= _MAX_FOREIGN * len(prose)
    )
    return prose + "\n" if is_english else ""


def examples(text: str) -> str:
    """Returns the examples of a docstring, or "" if none of them has an answer."""
    try:
        found = doctest.DocTestParser().get_examples(text)
    except ValueError:  # its indentation is inconsistent
        return ""
    if not any(example.want for example in found):
        return ""
    return "".join(_prompt(example.source) + example.want for example in found)


def _prompt(source: str) -> str:
    """Returns the lines of a prompt as they were typed."""
    first, *others = source.splitlines(keepends=True)
    return f">>> {first}" + "".join(f"... {line}" if line.strip() else "...\n" for line in others)


def encoded(text: str) -> bytes:
    """Returns a text in UTF-8; a literal may hold half a surrogate pair."""
    return text.encode(errors="replace")
