"""A file of rows, one JSON object per step and line: rows are added, and cut when steps are redone.

    {"step": 10, "time": 1700000000.0, "loss/total": 2.5}

A crash may cut the last line short, and a full disk may delay rows; neither damages rows that are
there. A line that somebody else wrote is ignored.
"""

from __future__ import annotations

import collections
import json
import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lingo.config import regular_file
from lingo.storage.files import append, write_text

MAX_BYTES = 2**30
"""Size of the largest file that is read: ten million reports of training."""

Row = dict[str, Any]

_REMEMBERED = 1000  # rows; the writer writes each at once, so few can be missing

_log = logging.getLogger(__name__)


class Rows:
    """The rows of a file, by increasing step, one per step. The constructor touches no file.

    Attributes:
        path: of the file, which is created with its first row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unwritten: list[Row] = []
        self._last_step: int | None = None  # in the file, as far as this object knows

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row, or adds to the last row if that is of the same step.

        A number that is not finite becomes null. A row that cannot be written waits: it counts in
        `read` as if it were there, and is written with the next.

        Args:
            row: with `step`; JSON values, or lists of numbers.

        Raises:
            StorageError: if it cannot be written now.
        """
        self._unwritten.append({key: _as_json(value) for key, value in row.items()})
        first = self._unwritten[0]["step"]
        written = self._read_written() if first == self._last_step else []
        if written and written[-1]["step"] == first:
            write_text(self.path, _lines(_merge_steps([*written, *self._unwritten])))
        else:
            append(self.path, _lines(_merge_steps(self._unwritten)).encode())
        self._last_step = self._unwritten[-1]["step"]
        self._unwritten.clear()

    @property
    def num_unwritten(self) -> int:
        """Number of steps whose row waits to be written."""
        return len(_merge_steps(self._unwritten))

    def read(self) -> list[Row]:
        """Returns the rows, without a last line that a crash cut short."""
        return _merge_steps([*self._read_written(), *self._unwritten])

    def cut(self, step: int) -> None:
        """Removes the rows of later steps, which will be done again, and lines that are not rows.

        A last line that a crash cut short is removed silently, any other with a warning.

        Raises:
            StorageError: if that cannot be done.
        """
        text = self._read_text()
        lines = text.splitlines()
        rows = [_row(line) for line in lines]
        if damaged := [str(i) for i, row in enumerate(rows[:-1], start=1) if row is None]:
            _log.warning("%s: dropped what is no row: line %s", self.path, ", ".join(damaged))
        kept = [line for line, row in zip(lines, rows, strict=True) if row and row["step"] <= step]
        if (left := "".join(f"{line}\n" for line in kept)) != text:
            write_text(self.path, left)
        self._unwritten = [row for row in self._unwritten if row["step"] <= step]
        self._last_step = max(
            (row["step"] for row in rows if row and row["step"] <= step), default=None
        )

    def _read_written(self) -> list[Row]:
        rows = (_row(line) for line in self._read_text().splitlines())
        return [row for row in rows if row is not None]

    def _read_text(self) -> str:
        try:
            content = regular_file.read(self.path, max_bytes=MAX_BYTES)
        except OSError:
            return ""
        return content.decode(errors="replace") if len(content) <= MAX_BYTES else ""


class SilentRows(Rows):
    """The rows of a file that another process writes; remembers the last of them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._rows: collections.deque[Row] = collections.deque(maxlen=_REMEMBERED)

    def append(self, row: Mapping[str, Any]) -> None:
        """Remembers a row, in case this process has to write it."""
        self._rows.append(dict(row))

    def read(self) -> list[Row]:
        """Returns nothing: the process that writes the rows decides what depends on them."""
        return []

    def cut(self, step: int) -> None:
        kept = (row for row in self._rows if row["step"] <= step)
        self._rows = collections.deque(kept, maxlen=_REMEMBERED)

    def write_missed(self) -> None:
        """Writes the rows that a lost process did not write.

        Raises:
            StorageError: if they cannot be written.
        """
        rows = Rows(self.path)
        last = max(rows.read(), key=lambda row: row["step"], default={"step": -1})
        rows.cut(last["step"])  # a line that was cut short
        for row in self._rows:
            is_there = row["step"] == last["step"] and row.items() <= last.items()
            if row["step"] >= last["step"] and not is_there:  # its evaluation may be missing
                rows.append(row)


def _row(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _merge_steps(rows: Iterable[Row]) -> list[Row]:
    """Returns rows with neighbours of the same step merged into one."""
    merged: list[Row] = []
    for row in rows:
        if merged and merged[-1]["step"] == row["step"]:
            merged[-1] = {**merged[-1], **row}
        else:
            merged.append(row)
    return merged


def _lines(rows: Iterable[Row]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _as_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
