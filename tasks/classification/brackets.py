"""Classifies whether the brackets of a statement match."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from lingo.data.sources import syntax
from lingo.data.sources.files import File
from tasks.classification.snippets import LabelledText, Snippets, draw

_CLOSES = {")": "(", "]": "[", "}": "{"}
_BRACKETS = "()[]{}"
_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Assert)
_MIN_BRACKETS, _MAX_BYTES = 4, 160


class Brackets(Snippets):
    """`brackets: f(x[0)` -> `differ`: whether brackets match; those in strings count, too.

    In half of the statements, chosen by their hash, one bracket is removed or replaced.
    """

    task: ClassVar[str] = "brackets"

    @property
    def labels(self) -> list[str]:
        return ["match", "differ"]

    def candidates(self, code: syntax.Parsed) -> Iterator[tuple[int, int]]:
        for block in syntax.blocks(code.tree):
            for statement in block:
                start, stop = code.start(statement), code.end(statement)
                if _is_simple(statement) and stop - start <= _MAX_BYTES:
                    yield start, stop

    def label(self, file: File, data: bytes) -> LabelledText | None:
        del file
        text = data.decode()
        places = [i for i, character in enumerate(text) if character in _BRACKETS]
        if len(places) < _MIN_BRACKETS or not brackets_match(text):
            return None
        if draw(data, "label") % 2:
            return LabelledText(text, "match")
        place = places[draw(data, "place") % len(places)]
        others = ["", *_BRACKETS.replace(text[place], "")]
        other = others[draw(data, "other") % len(others)]
        return LabelledText(text[:place] + other + text[place + 1 :], "differ")


def brackets_match(text: str) -> bool:
    """Returns whether each closing bracket matches the last open one, and none stays open."""
    opened: list[str] = []
    for character in text:
        if character in _CLOSES:
            if not opened or opened.pop() != _CLOSES[character]:
                return False
        elif character in _BRACKETS:
            opened.append(character)
    return not opened


def _is_simple(statement: ast.stmt) -> bool:
    """Returns whether a statement contains no other and is not a docstring."""
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    return isinstance(statement, _SIMPLE)
