"""Your own pairs: each line has two fields of a JSON object, or two columns of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from lingo.config import ranges
from lingo.config.params import ParamError
from lingo.data.files import File, Read
from lingo.data.pairs.pair import PairSource, pair
from lingo.data.record_source import CorruptRecord, DecodedRecords, MatchingFiles
from lingo.data.sources.jsonl import check_field, json_value, lines, text_of


class PairLines(DecodedRecords, MatchingFiles, PairSource):
    """A pair in each line of each file; empty lines, and pairs with an empty side, are left out."""

    unit: ClassVar[str] = "line"

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        return lines(file, read)


class JsonlPairs(PairLines):
    """Pairs from two fields of the JSON object in each line of each file."""

    source_field: str = "source"  # field of the source; a.b for field b of the object in field a
    target_field: str = "target"  # field of the target

    def check(self) -> None:
        super().check()
        check_field(self.p, "source_field")
        check_field(self.p, "target_field")
        if self.p.source_field == self.p.target_field:
            raise ParamError(f"source_field and target_field are both {self.p.source_field!r}")

    def text(self, data: bytes, where: str) -> bytes:
        line = data.strip()
        if not line:
            return b""
        value = json_value(line, where)
        source, target = (
            text_of(value, field, where) for field in (self.p.source_field, self.p.target_field)
        )
        return pair(source, target, where)


class TsvPairs(PairLines):
    """Pairs from two tab-separated columns of each line; nothing is quoted or escaped."""

    source_column: int = 0  # column of the source, from 0
    target_column: int = 1  # column of the target

    def check(self) -> None:
        super().check()
        ranges.check_not_negative(self.p, "source_column", "target_column")
        if self.p.source_column == self.p.target_column:
            raise ParamError(f"source_column and target_column are both {self.p.source_column}")

    def text(self, data: bytes, where: str) -> bytes:
        try:
            line = data.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise CorruptRecord(f"{where}: not UTF-8: {error.reason}.") from None
        if not line:
            return b""
        columns, source, target = line.split("\t"), self.p.source_column, self.p.target_column
        if (last := max(source, target)) >= len(columns):
            raise CorruptRecord(f"{where}: it has {len(columns)} columns, no column {last}.")
        return pair(columns[source], columns[target], where)
