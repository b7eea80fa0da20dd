"""The audit log records the examples and the exact loss of every step.

    {"step": 7, "batch": 6, "loss": "0x1.62fp+2", "digest": "9c1b...", "examples": [24, 25],
     "origins": ["3:1", "3:0"]}

`loss` is exact; `digest` is of all arrays of the batch; `origins` identify the examples in the
data: each pass has each once. Two runs that do the same have the same file, byte for byte, even
if one was interrupted. `not_finite` names the quantity because of which the update was not applied.
If processes share a batch, none has all of its arrays, and there is no `digest`; the other fields
are of the whole batch.

Axes: B batch.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lingo.storage.files import append, explain_write_errors, open_inside

AUDIT = "audit.jsonl"

_DIGEST_BYTES = 8
_STEP = re.compile(rb'\{"step": (\d+),')


class Audit:
    """Writes one row per step; rows are safely in the file when `write` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: list[bytes] = []

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
        """Adds the row of a step, which `write` will write.

        `batch` has the [B, ...] arrays that this process has; `loss`, `examples` and `origins` are
        those of the whole batch, which has this `number` in the run. `not_finite` is the first
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
        self._rows.append(json.dumps(row).encode() + b"\n")

    def write(self) -> None:
        """Writes the added rows, or none if there is an error; the next call tries again."""
        append(self.path, b"".join(self._rows))
        self._rows.clear()

    def cut(self, step: int) -> None:
        """Removes the rows of steps after `step`, and a row that a crash cut short."""
        if not self.path.exists():
            return
        with explain_write_errors(self.path), open_inside(self.path, "rb+") as file:
            size = sum(map(len, itertools.takewhile(lambda line: _stays(line, step), file)))
            file.truncate(size)


def digest(batch: Mapping[str, np.ndarray]) -> str:
    """Returns 16 hexadecimal digits of the names, types, shapes and content of some arrays."""
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, array in sorted(batch.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def _stays(line: bytes, last: int) -> bool:
    """Returns whether a line is complete and not of a step after `last`; keeps damaged lines."""
    match = _STEP.match(line)
    return line.endswith(b"\n") and not (match and int(match[1]) > last)
