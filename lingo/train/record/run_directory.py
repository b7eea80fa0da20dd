"""The directory of a run: what was asked for, what came of it, and where the rest stands.

    config.json, config.txt, flags.txt, environment.json, weights.txt    texts, written at the start
    metrics.jsonl       one flat object a report: TensorBoard tags, `step` and `time`
    STATUS              one line: "running at step 120", "done (early) at step 200"
    train/, eval_<name>/                TensorBoard events
    checkpoints/step_%08d/

One process writes at a time, under a lock; reading needs none.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from lingo.config.params import ParamError
from lingo.train.record.lock import Lock
from lingo.train.record.storage import PATH_PART, write_text, writing

CONFIG = "config.json"

State = Literal["running", "done", "done (early)", "stopped", "failed"]

_STATUS = re.compile(rf"({'|'.join(map(re.escape, get_args(State)))}) at step (\d+)\n")

_log = logging.getLogger(__name__)


class Status(NamedTuple):
    """How far a run is.

    Attributes:
        state: "running" also if the process was killed; "done (early)" if evaluations had stopped
            getting better.
        step: steps done when it was written.
    """

    state: State
    step: int

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come, unless somebody asks for more."""
        return self.state in ("done", "done (early)", "failed")


class RunDirectory:
    """Where a run keeps everything. Making this object touches nothing.

    Attributes:
        path: of the directory.
        checkpoints: directory of checkpoints.
        train: directory of the training's TensorBoard events.
        metrics: metrics.jsonl.
    """

    def __init__(self, path: str | Path) -> None:
        if not str(path):
            raise ParamError("a run needs a directory, and '' names none; '.' would be this one")
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.train = self.path / "train"
        self.metrics = self.path / "metrics.jsonl"

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / CONFIG).is_file()

    def evaluation(self, name: str) -> Path:
        """Returns the directory of an evaluation's TensorBoard events."""
        if not PATH_PART.fullmatch(name):
            raise ParamError(
                f"{name!r} cannot be part of a path; use letters, digits, '.', '_', '-'"
            )
        return self.path / f"eval_{name}"

    @contextlib.contextmanager
    def locked(self) -> Iterator[RunDirectory]:
        """Makes the directory if it is not there, and keeps other writers out of it.

        If what happens inside fails before a run was begun, nothing that was made here is left.

        Raises:
            DirectoryLocked: if another process writes here.
            StorageError: if the directory cannot be made.
        """
        made = [p for p in (self.path, *self.path.parents) if not p.exists()]
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        lock = Lock(self.path / ".lock")
        try:
            lock.acquire()
            try:
                yield self
            finally:
                lock.release(remove=not self.exists)
        finally:
            if not self.exists:
                _remove_empty(made)

    def write(self, texts: Mapping[str, str], *, replaced: Collection[str] = ()) -> None:
        """Writes texts by file name, `config.json` last: with it the run begins.

        A different text of that name is kept beside it, as `config.1.json`, `config.2.json`, ...

        Args:
            texts: file name -> text.
            replaced: names of those whose old text need not be kept.

        Raises:
            StorageError: if one cannot be written.
        """
        for name in sorted(texts, key=lambda name: (name == CONFIG, name)):
            path = self.path / name
            old = self.read(name)
            if old == texts[name]:
                continue
            if old is not None and name not in replaced:
                write_text(_unused(path), old)
            write_text(path, texts[name])

    def read(self, name: str) -> str | None:
        """Returns a text, or None if there is none of that name; what is no UTF-8 is replaced."""
        path = self.path / name
        return path.read_bytes().decode(errors="replace") if path.is_file() else None

    def set_status(self, state: State, step: int) -> None:
        """Writes STATUS."""
        write_text(self.path / "STATUS", f"{state} at step {step}\n")

    def status(self) -> Status | None:
        """Returns what STATUS says, or None if it says nothing."""
        match = _STATUS.fullmatch(self.read("STATUS") or "")
        return Status(match[1], int(match[2])) if match else None  # pyright: ignore[reportArgumentType]

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Adds a row to metrics.jsonl; a number that is not finite becomes null."""
        finite = {k: v if _is_json(v) else None for k, v in row.items()}
        with writing(self.metrics), open(self.metrics, "ab", buffering=0) as file:
            end, line = file.tell(), json.dumps(finite).encode() + b"\n"
            if file.write(line) < len(line):
                file.truncate(end)  # or the next row would go on in the middle of this one
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def amend_metrics(self, row: Mapping[str, Any]) -> None:
        """Adds to the last row of metrics.jsonl if it is of the same step, else a row."""
        rows = self.read_metrics()
        if not rows or rows[-1]["step"] != row["step"]:
            self.append_metrics(row)
            return
        kept = (self.read(self.metrics.name) or "").splitlines(keepends=True)[: len(rows) - 1]
        finite = {k: v if _is_json(v) else None for k, v in row.items()}
        write_text(self.metrics, "".join(kept) + json.dumps({**rows[-1], **finite}) + "\n")

    def is_evaluated(self, step: int) -> bool:
        """Returns whether the last row is of another step, or has results of an evaluation."""
        rows = self.read_metrics()
        return not rows or rows[-1]["step"] != step or any(k.startswith("eval/") for k in rows[-1])

    def read_metrics(self) -> list[dict[str, Any]]:
        """Returns the rows of metrics.jsonl, without a last one that a crash cut short."""
        rows = (_row(line) for line in (self.read(self.metrics.name) or "").splitlines())
        return [row for row in rows if row is not None]

    def cut_metrics(self, step: int) -> None:
        """Removes the rows of later steps, which will be done again, and what is no row.

        A last row that is cut short is what a crash leaves; anything else is worth a warning.
        """
        text = self.read(self.metrics.name) or ""
        lines = text.splitlines()
        rows = [_row(line) for line in lines]
        if damaged := [str(i) for i, row in enumerate(rows[:-1], start=1) if row is None]:
            _log.warning("%s: dropped what is no row: line %s", self.metrics, ", ".join(damaged))
        kept = [line for line, row in zip(lines, rows, strict=True) if row and row["step"] <= step]
        if (left := "".join(f"{line}\n" for line in kept)) != text:
            write_text(self.metrics, left)


def row_tag(tag: str, name: str, *, first: bool) -> str:
    """Returns what a row of metrics.jsonl calls a tag of an evaluation.

    Args:
        tag: in TensorBoard, where each evaluation has a directory.
        name: of the evaluation input.
        first: whether it is the experiment's first; the tags of the others carry their names.
    """
    return tag if first else f"{tag}@{name}"


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _is_json(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _unused(path: Path) -> Path:
    number = 1
    while (other := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    return other


def _remove_empty(directories: list[Path]) -> None:
    """Removes directories, innermost first, as far as they are empty."""
    for directory in directories:
        with contextlib.suppress(OSError):
            directory.rmdir()
