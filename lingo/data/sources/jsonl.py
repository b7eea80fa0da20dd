"""JSONL: one JSON object per line, with a document in one of its fields."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from lingo.config.params import ParamError
from lingo.data.files import File, Read, open_file, refuse_empty
from lingo.data.record_source import CorruptRecord, DecodedRecords, MatchingFiles

_BLOCK_BYTES = 1 << 20
_NEWLINE = 10


class JsonLines(DecodedRecords, MatchingFiles):
    """A field of the JSON object in each line of each file; empty lines are skipped.

    A line that is not JSON, lacks the field, or has an object with a duplicate field is a damaged
    record: its error names file, line and byte.
    """

    field: str = "text"  # where the text is; a.b for field b of the object in field a

    unit: ClassVar[str] = "line"

    def check(self) -> None:
        super().check()
        check_field(self.p, "field")

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        return lines(file, read)

    def text(self, data: bytes, where: str) -> bytes:
        line = data.strip()
        if not line:
            return b""
        return text_of(json_value(line, where), self.p.field, where).encode(errors="surrogatepass")


def read_objects(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (where, object) for each non-empty line of a file; `where` is for errors.

    Raises DataError, which names file and line, for a file that cannot be read, and for a line that
    is not a JSON object.
    """
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            where = f"{path}, line {number}"
            if line.strip():
                value = json_value(line, where)
                if not isinstance(value, dict):
                    raise CorruptRecord(f"{where}: it is {_kind(value)}, not an object.")
                yield where, value


def check_field(p: Any, name: str) -> None:
    """Raises ParamError if the value of params field `name` has an empty part (`a..b`)."""
    if not all(getattr(p, name).split(".")):
        raise ParamError(f"{name}={getattr(p, name)!r} has an empty name in it")


def lines(file: File, read: Read) -> Iterator[tuple[int, int]]:
    """Yields (first byte, number of bytes) of each line of a file, its newline included.

    Raises DataError if the file is empty.
    """
    refuse_empty(file)
    start = 0
    for begin in range(0, file.size, _BLOCK_BYTES):
        block = np.frombuffer(read(begin, min(begin + _BLOCK_BYTES, file.size)), np.uint8)
        for end in (np.flatnonzero(block == _NEWLINE) + begin + 1).tolist():
            yield start, end - start
            start = end
    if start < file.size:
        yield start, file.size - start


def json_value(line: bytes, where: str) -> Any:
    """Returns the value of a line of JSON; raises CorruptRecord if it is not JSON."""
    try:
        return _DECODER.decode(line.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise CorruptRecord(f"{where}: not JSON: {error.msg} (character {error.colno}).") from None
    except (ValueError, RecursionError) as error:
        raise CorruptRecord(f"{where}: not JSON: {error}.") from None


def text_of(value: Any, field: str, where: str) -> str:
    """Returns the string in a field; raises CorruptRecord if it is missing or not a string."""
    name = ""
    for part in field.split("."):
        if not isinstance(value, dict) or part not in value:
            raise CorruptRecord(f"{where}: {_missing_field(value, part, name)}.")
        value, name = value[part], f"{name}.{part}" if name else part
    if not isinstance(value, str):
        raise CorruptRecord(f"{where}: {name!r} is {_kind(value)}, not a string.")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object as a dict; raises ValueError for a repeated name (RFC 8259, sec. 4)."""
    value = dict(pairs)
    if len(value) < len(pairs):
        ((name, _),) = collections.Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"an object has two fields {name!r}")
    return value


def _missing_field(value: Any, part: str, name: str) -> str:
    """Returns a sentence that says that a value has no field `part`."""
    owner = repr(name) if name else "the line"
    if not isinstance(value, dict):
        return f"{owner} is {_kind(value)}, not an object with a field {part!r}"
    fields = ", ".join(map(repr, list(value)[:5])) or "none"
    return f"{owner} has no field {part!r}; fields: {fields}"


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", list: "an array", dict: "an object", str: "a string"}
    return names.get(type(value), "a number")


# Creating a decoder costs as much as decoding a short line.
_DECODER = json.JSONDecoder(object_pairs_hook=_object)
