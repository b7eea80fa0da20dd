"""The audit log: what every step was done on and what came of it, to the last bit.

    {"step": 7, "batch": 6, "loss": "0x1.62fp+2", "digest": "9c1b...", "examples": [24, 25],
     "origins": ["3:1", "3:0"]}

`loss` is exact; `digest` is that of all arrays of the batch; `origins` say which examples of the
data they are: each pass has each once. Two runs that did the same have the same file, byte for
byte, whatever happened to them on the way. `not_finite` says which quantity kept the update from
being applied. Where processes share a batch none of them has all of its arrays, and there is no
`digest`; the rest is of the whole batch.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lingo.storage.files import append, explain_write_errors

AUDIT = "audit.jsonl"

_DIGEST_BYTES = 8
_STEP = re.compile(rb'\{"step": (\d+),')


class Audit:
    """Writes a row a step; it is in the file when `write` returns, whatever happens then.

    Attributes:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        """Writes nothing yet."""
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
        """Takes the row of a step.

        Args:
            step: steps done with it.
            batch: [B, ...] arrays that it was done on; those of some of its rows, if other
                processes have the others.
            number: of the batch in the run.
            loss: of the step.
            examples: the `example_id` of the whole batch.
            origins: where they come from.
            not_finite: which quantity was not, if the step changed nothing.
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
        """Writes the rows that it took.

        Raises:
            StorageError: if they cannot be written; none is then, and the next call tries again.
        """
        append(self.path, b"".join(self._rows))
        self._rows.clear()

    def cut(self, step: int) -> None:
        """Removes the rows of later steps, which will be done again, and what a crash cut short.

        Raises:
            StorageError: if that cannot be done.
        """
        if not self.path.exists():
            return
        with explain_write_errors(self.path), open(self.path, "rb+") as file:
            size = sum(map(len, itertools.takewhile(lambda line: _stays(line, step), file)))
            file.truncate(size)


def digest(batch: Mapping[str, np.ndarray]) -> str:
    """Returns a digest of the arrays of a batch, their names and types: 16 hexadecimal digits."""
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, array in sorted(batch.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def _stays(line: bytes, last: int) -> bool:
    """Returns whether a line is whole and of no step after the last; damage is left to be seen."""
    match = _STEP.match(line)
    return line.endswith(b"\n") and not (match and int(match[1]) > last)
