"""The records of a run: rows of JSON Lines, one per step, and the one line of STATUS.

    {"step": 10, "time": 1700000000.0, "loss/total": 2.5}

Rows are appended, and cut when steps are redone. A crash may cut the last line short, and a full
disk may delay rows; neither damages rows that are written. Lines that are not rows are ignored.
STATUS has a line such as this:

    done (early) at step 200
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

from lingo.config.base import regular_file
from lingo.storage.files import append, write_text

MAX_BYTES = 2**30
"""Size of the largest file that is read: about ten million training reports."""

Row = dict[str, Any]

State = Literal["running", "done", "done (early)", "stopped", "failed"]

_STATES = "|".join(map(re.escape, get_args(State)))
_STATUS = re.compile(rf"({_STATES}) at step (\d{{1,18}})\n", re.ASCII)

_REMEMBERED = 1000  # rows; each row is written at once, so few can be missing

_log = logging.getLogger(__name__)


class Rows:
    """The rows of a file, by increasing step, one per step."""

    def __init__(self, path: Path, *, root: Path | None = None, enabled: bool = True) -> None:
        """Touches no file yet.

        `root` is as for `open_folder`. With `enabled=False` another process writes the file: the
        last rows are only remembered for `write_missed`, and `read` returns [].
        """
        self.path = path
        self._root, self._enabled = root, enabled
        self._unwritten: list[Row] = []
        self._last_step: int | None = None  # the file's last step, as far as this object knows

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row, or merges it into the last row if the last row has the same step.

        A number that is not finite becomes null. Raises StorageError if the row cannot be written
        now; `read` returns it nevertheless, and the next call writes it.
        """
        self._unwritten.append({key: _as_json(value) for key, value in row.items()})
        if not self._enabled:
            del self._unwritten[:-_REMEMBERED]
            return
        first = self._unwritten[0]["step"]
        written = self._read_written() if first == self._last_step else []
        if written and written[-1]["step"] == first:
            new = _lines(_merge_steps([*written, *self._unwritten]))
            write_text(self.path, new, root=self._root)
        else:
            append(self.path, _lines(_merge_steps(self._unwritten)).encode(), root=self._root)
        self._last_step = self._unwritten[-1]["step"]
        self._unwritten.clear()

    @property
    def num_unwritten(self) -> int:
        """The number of steps whose row is not written yet."""
        return len(_merge_steps(self._unwritten)) if self._enabled else 0

    def read(self) -> list[Row]:
        """Returns the rows, without a last line that a crash cut short."""
        return _merge_steps([*self._read_written(), *self._unwritten]) if self._enabled else []

    def cut(self, step: int) -> None:
        """Removes rows after `step`, as these steps are done again, and lines that are not rows.

        A last line that a crash cut short is removed silently, other lines with a warning.
        """
        if self._enabled:
            self._cut_file(step)
        self._unwritten = [row for row in self._unwritten if row["step"] <= step]

    def _cut_file(self, step: int) -> None:
        text = self._read_text()
        lines = text.splitlines()
        rows = [_row(line) for line in lines]
        if damaged := [str(i) for i, row in enumerate(rows[:-1], start=1) if row is None]:
            _log.warning(
                "%s: dropped lines that are not rows: line %s", self.path, ", ".join(damaged)
            )
        kept = [line for line, row in zip(lines, rows, strict=True) if row and row["step"] <= step]
        if (new := "".join(f"{line}\n" for line in kept)) != text:
            write_text(self.path, new, root=self._root)
        self._last_step = max(
            (row["step"] for row in rows if row and row["step"] <= step), default=None
        )

    def write_missed(self) -> None:
        """Writes the rows that a lost writing process did not write."""
        rows = Rows(self.path)
        last = max(rows.read(), key=lambda row: row["step"], default={"step": -1})
        rows.cut(last["step"])  # removes a line that was cut short
        for row in self._unwritten:
            is_there = row["step"] == last["step"] and row.items() <= last.items()
            if row["step"] >= last["step"] and not is_there:  # evaluations may be missing
                rows.append(row)

    def _read_written(self) -> list[Row]:
        return parse_rows(self._read_text())

    def _read_text(self) -> str:
        try:
            content = regular_file.read(self.path, max_bytes=MAX_BYTES)
        except OSError:
            return ""
        return content.decode(errors="replace") if len(content) <= MAX_BYTES else ""


def parse_rows(text: str) -> list[Row]:
    """Returns the rows in the text of a file, in its order; other lines are left out."""
    rows = map(_row, text.splitlines())
    return [row for row in rows if row is not None]


def format_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns rows as the text of a file; a number that is not finite becomes null."""
    return _lines({key: _as_json(value) for key, value in row.items()} for row in rows)


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


# ---- STATUS --------------------------------------------------------------------------------------


class Status(NamedTuple):
    """The state of a run."""

    # "running" also if the process was killed; "done (early)" if evaluations ended it.
    state: State
    step: int  # steps done when the status was written

    @property
    def is_done(self) -> bool:
        """Whether the run has finished."""
        return self.state in ("done", "done (early)")

    @property
    def is_over(self) -> bool:
        """Whether the run has finished or failed, and does not continue by itself."""
        return self.is_done or self.state == "failed"

    @property
    def line(self) -> str:
        """The text of the file STATUS."""
        return f"{self.state} at step {self.step}\n"


def parse_status(text: str) -> Status | None:
    """Returns the status in the text of the file STATUS, or None if the text has no status."""
    match = _STATUS.fullmatch(text)
    return Status(cast(State, match[1]), int(match[2])) if match else None
