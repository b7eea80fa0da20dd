"""The audit log records the examples and the exact loss of every step.

    {"step": 7, "batch": 6, "loss": "0x1.62fp+2", "digest": "9c1b...", "examples": [24, 25],
     "origins": ["3:1", "3:0"]}

`loss` is exact; `digest` covers all arrays of the batch; `origins` identify the examples in the
data: each pass over the data has each example once. Two runs that do the same have the same file,
byte for byte, even if one of them was interrupted. `not_finite` names the quantity that was
not finite, so that the update was not applied. If processes share a batch, no process has all of
its arrays, so `digest` is missing; the other fields describe the whole batch.

    {"step": 40, "missing": [[3, 3], [17, 40]]}

A run that resumes after step 40 without the rows of step 3 and of steps 17 to 40 adds such a line.
A run also adds it if the file has become shorter since the run's last write. Other lines stay where
they are.

Axes: B examples in a batch.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lingo.config.base import regular_file
from lingo.storage.files import append, explain_write_errors, open_inside, sync

AUDIT = "audit.jsonl"

_log = logging.getLogger(__name__)

_DIGEST_BYTES = 8
_STEP = re.compile(rb'\{"step": (\d{1,18}),')


class Audit:
    """Writes one row per step; rows are safely in the file when `write` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: list[bytes] = []
        self._step = 0  # step of the last row that was added
        self._written: tuple[int, int] | None = None  # the last step in the file, and its size

    def add(
        self,
        step: int,
        batch: Mapping[str, np.ndarray],
        *,
        number: int,
        loss: float,
        examples: list[int],
        origins: list[str],
        not_finite: str | None = None,
    ) -> None:
        """Adds the row of a step, which the next `write` writes.

        `batch` has this process's [B, ...] arrays; `loss`, `examples` and `origins` describe the
        whole batch, and `number` is the batch's index in the run. `not_finite` is the first
        quantity that is not finite, if the step changed nothing.
        """
        is_whole = len(batch["example_id"]) == len(examples)
        row = {
            "step": step,
            "batch": number,
            "loss": loss.hex(),
            **({"digest": digest(batch)} if is_whole else {}),
            "examples": examples,
            "origins": origins,
        }
        if not_finite is not None:
            row["not_finite"] = not_finite
        self._step = step
        self._rows.append(json.dumps(row).encode() + b"\n")

    def write(self) -> None:
        """Writes the added rows. After an error none is written, and the next call tries again.

        If written rows have vanished from the file, a line that names their steps is added and
        a warning is logged.
        """
        if not self._rows:
            return
        if self._written is not None and _size(self.path) < self._written[1]:
            missing = self.resume(self._written[0])
            _log.warning("%s has lost the written rows of steps %s", self.path, missing)
        append(self.path, b"".join(self._rows))
        self._rows.clear()
        self._written = self._step, _size(self.path)

    def sync(self) -> None:
        """Waits until the rows that `write` has written are on the disk."""
        with explain_write_errors(self.path):
            sync(self.path)
            sync(self.path.parent)

    def resume(self, step: int) -> str:
        """Cuts rows of steps after `step`, and adds a line that names earlier steps without a row.

        Returns the steps that this line names, such as "3, 17 to 40". Steps that an earlier line
        names as missing are left out, so the text may be "".
        """
        self.cut(step)
        missing = list(_missing_ranges(self._recorded_steps(step), step))
        if missing:
            line = {"step": step, "missing": missing}
            append(self.path, json.dumps(line).encode() + b"\n")
        return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in missing)

    def _recorded_steps(self, last: int) -> set[int]:
        """Returns the steps up to `last` that have a row, or that a line names as missing."""
        if not self.path.exists():
            return set()
        with explain_write_errors(self.path), regular_file.open_regular(self.path) as file:
            return {step for line in file for step in _steps_of(line, last)}

    def cut(self, step: int) -> None:
        """Removes the rows of steps after `step`, and a row that a crash cut short."""
        self._written = None
        if not self.path.exists():
            return
        with explain_write_errors(self.path), open_inside(self.path, "rb+") as file:
            size = sum(map(len, itertools.takewhile(lambda line: _stays(line, step), file)))
            file.truncate(size)


def _size(path: Path) -> int:
    """Returns a file's size in bytes, 0 if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def digest(batch: Mapping[str, np.ndarray]) -> str:
    """Returns a digest (16 hexadecimal digits) of the arrays' names, types, shapes and content."""
    hasher = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, array in sorted(batch.items()):
        hasher.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        hasher.update(array.tobytes())
    return hasher.hexdigest()


def _stays(line: bytes, last: int) -> bool:
    """Returns whether `cut` keeps a line: not if it is incomplete, or of a step after `last`."""
    match = _STEP.match(line)
    return line.endswith(b"\n") and not (match and int(match[1]) > last)


def _steps_of(line: bytes, last: int) -> Iterable[int]:
    """Returns the steps up to `last` that a line records: as their row, or as missing."""
    match _json(line):
        case {"step": int(step), "batch": _, "loss": _, "examples": _, "origins": _}:
            return (step,)
        case {"step": int(step), "missing": [*ranges]}:
            return itertools.chain.from_iterable(_steps_in(one, min(step, last)) for one in ranges)
    return ()


def _steps_in(pair: Any, last: int) -> range:
    """Returns the steps up to `last` of a pair [first, end] in JSON; none for any other value."""
    match pair:
        case [int(first), int(end)]:
            return range(max(first, 1), min(end, last) + 1)
    return range(0)


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _missing_ranges(steps: Iterable[int], last: int) -> Iterator[tuple[int, int]]:
    """Yields (first, last) of each gap that `steps` leave in 1, ..., `last`."""
    expected = 1
    for step in sorted([*steps, last + 1]):
        if step > expected:
            yield expected, step - 1
        expected = max(expected, step + 1)
