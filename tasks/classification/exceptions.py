"""Classifies pieces of code by the exception that they raise."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from typing import ClassVar

from lingo.data.sources import syntax
from lingo.data.sources.files import File
from tasks.classification.snippets import LabelledText, Snippets

_LABELS = ["ValueError", "TypeError", "NotImplementedError", "RuntimeError", "AttributeError"]
_RAISED = re.compile(r"(?s:.*)(?:^|[:;])[ \t]*raise (\w+)", re.MULTILINE)
_LINES_BEFORE, _MAX_BYTES = 4, 320


class Exceptions(Snippets):
    """`exception: if x < 0: raise ...("x is negative")` -> one of five frequent exceptions.

    A snippet is a `raise` with up to four lines before it.
    """

    per_label: int = 2  # snippets of each label that a file gives at most

    task: ClassVar[str] = "exception"

    @property
    def labels(self) -> list[str]:
        return _LABELS

    def candidates(self, code: syntax.Parsed) -> Iterator[tuple[int, int]]:
        for block in syntax.blocks(code.tree):
            for statement in block:
                if isinstance(statement, ast.Raise) and _name(statement.exc) in _LABELS:
                    start = code.lines[max(statement.lineno - 1 - _LINES_BEFORE, 0)]
                    if (stop := code.end(statement)) - start <= _MAX_BYTES:
                        yield start, stop

    def label(self, file: File, data: bytes) -> LabelledText | None:
        del file
        text = textwrap.dedent(data.decode()).strip()
        match = _RAISED.match(text)
        if not match or match[1] not in _LABELS or text.count(match[1]) > 1:
            return None
        return LabelledText(text[: match.start(1)] + "..." + text[match.end(1) :], match[1])


def _name(raised: ast.expr | None) -> str | None:
    """Returns the name of the exception of a `raise`, with or without arguments; else None."""
    called = raised.func if isinstance(raised, ast.Call) else raised
    return called.id if isinstance(called, ast.Name) else None
