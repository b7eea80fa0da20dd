"""Classifies a marked token in a line of code by its kind."""

from __future__ import annotations

import io
import keyword
import token
import tokenize
from collections.abc import Iterator
from typing import ClassVar

from lingo.data.sources import syntax
from lingo.data.sources.files import File
from tasks.classification.snippets import LabelledText, Snippets, draw

_KINDS = {
    token.COMMENT: "comment",
    token.NUMBER: "number",
    token.STRING: "string",
    token.OP: "operator",
    token.NAME: "name",
}
_LABELS = ["comment", "number", "string", "keyword", "operator", "name"]  # the rarest first
_MAX_BYTES = 120


class TokenKinds(Snippets):
    """`kind: x = «len»(y)` -> `name`: the kind of the token between « and », by `tokenize`.

    Kinds are comment, number, string, keyword, operator and name. The hash of a line chooses the
    first of these that the line has with probability 1/2, the next with 1/4 and so on, and then a
    token of that kind. So rare kinds are asked for more often than they occur.
    """

    task: ClassVar[str] = "kind"

    @property
    def labels(self) -> list[str]:
        return _LABELS

    def candidates(self, code: syntax.Parsed) -> Iterator[tuple[int, int]]:
        for block in syntax.blocks(code.tree):
            for statement in block:
                if statement.lineno != statement.end_lineno:
                    continue
                start, stop = code.start(statement), code.lines[statement.lineno]
                if stop - start <= _MAX_BYTES:
                    yield start, stop

    def label(self, file: File, data: bytes) -> LabelledText | None:
        del file
        line = data.decode().strip()
        if "«" in line or "»" in line:
            return None
        try:
            tokens = list(tokenize.generate_tokens(io.StringIO(line).readline))
        except (tokenize.TokenError, SyntaxError):  # a part of a line need not be code by itself
            return None
        present = {_kind(t) for t in tokens}
        kinds = [label for label in _LABELS if label in present]
        if not kinds:
            return None
        number = draw(data, "kind")
        skipped = (number & -number).bit_length() - 1  # 0 with probability 1/2, 1 with 1/4, ...
        wanted = kinds[min(skipped, len(kinds) - 1)]
        places = [(t.start[1], t.end[1]) for t in tokens if _kind(t) == wanted]
        begin, end = places[draw(data, "place") % len(places)]
        return LabelledText(f"{line[:begin]}«{line[begin:end]}»{line[end:]}", wanted)


def _kind(info: tokenize.TokenInfo) -> str | None:
    if info.type == token.NAME and keyword.iskeyword(info.string):
        return "keyword"
    return _KINDS.get(info.type)
