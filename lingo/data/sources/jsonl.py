"""JSONL: a JSON object a line, a document in one of its fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np

from lingo.config.params import ParamError
from lingo.data.source import DataError, File, MatchingFiles, Read, refuse_gzip

_BLOCK_BYTES = 1 << 20
_NEWLINE = 10


class JsonLines(MatchingFiles):
    """A field of the JSON object in each line of each file; empty lines are passed over."""

    field: str = "text"  # where the text stands; a.b for field b of the object in field a
    split_by: Literal["file", "document"] = "document"  # what is hashed: a file's name, or a text

    decodes: ClassVar[bool] = True
    unit: ClassVar[str] = "line"

    def check(self) -> None:
        super().check()
        if not all(self.p.field.split(".")):
            raise ParamError(f"field={self.p.field!r} has an empty name in it.")

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        refuse_gzip(file, read)
        start = 0
        for begin in range(0, file.size, _BLOCK_BYTES):
            block = np.frombuffer(read(begin, min(begin + _BLOCK_BYTES, file.size)), np.uint8)
            for end in (np.flatnonzero(block == _NEWLINE) + begin + 1).tolist():
                yield start, end - start
                start = end
        if start < file.size:
            yield start, file.size - start

    def text(self, data: bytes, where: str) -> bytes:
        line = data.strip()
        if not line:
            return b""
        try:
            value: Any = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: no JSON: {error}.") from None
        name = ""
        for part in self.p.field.split("."):
            if not isinstance(value, dict) or part not in value:
                raise DataError(f"{where}: {_lacks(value, part, name)}.")
            value, name = value[part], f"{name}.{part}" if name else part
        if not isinstance(value, str):
            raise DataError(f"{where}: {name!r} is {_kind(value)}, no string.")
        return value.encode(errors="surrogatepass")


def _lacks(value: Any, part: str, name: str) -> str:
    """Returns in words that a value has no field of a name."""
    owner = repr(name) if name else "the line"
    if not isinstance(value, dict):
        return f"{owner} is {_kind(value)}, no object with a field {part!r}"
    there = ", ".join(map(repr, list(value)[:5])) or "none"
    return f"{owner} has no field {part!r}; fields: {there}"


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", list: "an array", dict: "an object", str: "a string"}
    return names.get(type(value), "a number")
