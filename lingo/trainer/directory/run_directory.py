"""The directory of a run: what was asked for, what came of it, and where the rest stands.

    config.json, config.txt, flags.txt, environment.json, weights.txt    texts, written at the start
    metrics.jsonl       one flat object a report: TensorBoard tags, `step` and `time`
    vectors.jsonl       likewise: statistics of layers that are shown over time
    STATUS              one line: "running at step 120", "done (early) at step 200"
    train/, eval_<name>/                TensorBoard events
    checkpoints/step_%08d/

One process writes at a time, under a lock; reading needs none. Of several processes that make a run
together the leader writes; to the others the directory is not `enabled`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from lingo.config import regular_file
from lingo.config.params import ParamError
from lingo.storage.files import (
    PATH_PART,
    StorageError,
    clear_leftovers,
    explain_write_errors,
    write_text,
)
from lingo.storage.lock import Lock
from lingo.storage.rows import Rows
from lingo.storage.status import State, Status, parse_status

CONFIG = "config.json"
METRICS = "metrics.jsonl"
MAX_BYTES = 2**26  # of a text; config.txt of the largest experiment has a quarter of it
MAX_PATH_BYTES = 3500  # Linux has 4096, and files below it need some
MAX_PART_BYTES = 255

_log = logging.getLogger(__name__)


class RunDirectory:
    """Where a run keeps everything. Making this object touches nothing.

    Attributes:
        path: of the directory.
        enabled: whether this process writes; else all that writes does nothing.
        checkpoints: directory of checkpoints.
        train: directory of the training's TensorBoard events.
        metrics: rows of metrics.jsonl.
        vectors: rows of vectors.jsonl.
    """

    def __init__(self, path: str | Path, *, enabled: bool = True) -> None:
        if not str(path):
            raise ParamError("a run needs a directory, and '' names none; '.' would be this one")
        _check_path(os.path.abspath(path))
        self.path, self.enabled = Path(path), enabled
        self.checkpoints = self.path / "checkpoints"
        self.train = self.path / "train"
        self.metrics = Rows(self.path / METRICS, enabled=enabled)
        self.vectors = Rows(self.path / "vectors.jsonl", enabled=enabled)
        self._lock = Lock(self.path / ".lock")

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return os.path.isfile(self.path / CONFIG)  # False, too, where nobody may look

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
            ParamError: if what stands in its place is no directory.
            DirectoryLocked: if another process writes here.
            StorageError: if the directory cannot be made.
        """
        if not self.enabled:
            yield self
            return
        with explain_write_errors(self.path):
            made = [p for p in (self.path, *self.path.parents) if not p.exists()]
            for place in (self.path, *self.path.parents):
                if place.exists() and not place.is_dir():
                    raise ParamError(
                        f"{self.path} cannot be the directory of a run: {place} is no directory"
                    )
            self.path.mkdir(parents=True, exist_ok=True)
        lock = self._lock
        try:
            lock.acquire()
            try:
                clear_leftovers(self.path)
                yield self
            finally:
                lock.release(remove=not self.exists)
        finally:
            if not self.exists:
                _remove_empty(made)

    @contextlib.contextmanager
    def take_over(self) -> Iterator[RunDirectory]:
        """Writes in the place of a leader that is lost; begins with the reports that it missed.

        Yields:
            The directory, enabled and locked.

        Raises:
            DirectoryLocked: if the leader still has the lock, or another process has taken over.
            StorageError: if the reports cannot be written.
        """
        with RunDirectory(self.path).locked() as run:
            for rows in (self.metrics, self.vectors):
                rows.write_missed()
            yield run

    def check_there(self) -> None:
        """Raises StorageError if the directory that this process has locked is not here any more.

        Somebody has moved or deleted it; what is here now may be another process's.
        """
        if self._lock.is_lost:
            raise StorageError(
                f"{self.path} is not the directory any more that this process trains in: it, or"
                " .lock in it, was moved or deleted. Nothing more is written."
            )

    def write(self, texts: Mapping[str, str], *, replaced: Collection[str] = ()) -> None:
        """Writes texts by file name, `config.json` last: with it the run begins.

        A different text of that name is kept beside it, as `config.1.json`, `config.2.json`, ...

        Args:
            texts: file name -> text.
            replaced: names of those whose old text need not be kept.

        Raises:
            StorageError: if one cannot be written; of a run that did not begin there is none then.
        """
        if not self.enabled:
            return
        begun = self.exists
        try:
            for name in sorted(texts, key=lambda name: (name == CONFIG, name)):
                self._replace(name, texts[name], keep=name not in replaced)
        except StorageError:
            for name in () if begun else texts:
                with contextlib.suppress(OSError):
                    (self.path / name).unlink(missing_ok=True)
            raise

    def _replace(self, name: str, text: str, *, keep: bool) -> None:
        path, old = self.path / name, self.read(name)
        if old == text:
            return
        if old is not None and keep:
            *_, last, unused = path, *_numbered(path)
            if last == path or self.read(last.name) != old:  # kept already, before a crash
                write_text(unused, old)
        write_text(path, text)

    def read(self, name: str, *, max_bytes: int = MAX_BYTES) -> str | None:
        """Returns a text, or None if there is none of that name; what is no UTF-8 is replaced.

        What is larger than any text of a run is none: somebody else put it there.
        """
        try:
            content = regular_file.read(self.path / name, max_bytes=max_bytes)
        except OSError:
            return None
        return content.decode(errors="replace") if len(content) <= max_bytes else None

    def set_status(self, state: State, step: int) -> None:
        """Writes STATUS. Where it cannot, that is a warning, except for a run that is done.

        Raises:
            StorageError: if it cannot be written that the run is done.
        """
        if not self.enabled:
            return
        try:
            write_text(self.path / "STATUS", Status(state, step).line)
        except StorageError as error:
            if Status(state, step).is_done:
                raise
            _log.warning("%s", error)

    def status(self) -> Status | None:
        """Returns what STATUS says, or None if it says nothing."""
        return parse_status(self.read("STATUS") or "")

    def cut(self, step: int) -> None:
        """Removes all rows of later steps, which will be done again, also those of `lingo eval`.

        Raises:
            StorageError: if that cannot be done.
        """
        folders = self.path.glob("eval_*")
        beside = (Rows(folder / METRICS, enabled=self.enabled) for folder in folders)
        for rows in (self.metrics, self.vectors, *beside):
            rows.cut(step)

    def is_evaluated(self, step: int) -> bool:
        """Returns whether there are results of an evaluation after a step."""
        return any(
            row["step"] == step and any(key.startswith("eval/") for key in row)
            for row in self.metrics.read()
        )


def _check_path(path: str) -> None:
    """Raises ParamError for a path that Linux, TensorFlow or a flag file could not take."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise ParamError(f"{path!r} cannot be the directory of a run: it is no UTF-8") from None
    if not path.isprintable() or path != path.strip():
        raise ParamError(
            f"{path!r:.200} cannot be the directory of a run: line breaks, other control characters"
            " and spaces at its end get lost"
        )
    longest = max(len(part.encode()) for part in path.split("/"))
    if size > MAX_PATH_BYTES or longest > MAX_PART_BYTES:
        raise ParamError(
            f"{path[:80]!r}... cannot be the directory of a run: a path has {MAX_PATH_BYTES} bytes,"
            f" and a name in it {MAX_PART_BYTES}"
        )


def row_tag(tag: str, name: str, *, first: bool) -> str:
    """Returns what a row of metrics.jsonl calls a tag of an evaluation.

    Args:
        tag: in TensorBoard, where each evaluation has a directory.
        name: of the evaluation input.
        first: whether it is the experiment's first; the tags of the others carry their names.
    """
    return tag if first else f"{tag}@{name}"


def _numbered(path: Path) -> Iterator[Path]:
    """Yields `config.1.json`, `config.2.json`, ... as far as they are there, and the next."""
    for number in itertools.count(1):
        other = path.with_name(f"{path.stem}.{number}{path.suffix}")
        yield other
        if not other.exists():
            return


def _remove_empty(directories: list[Path]) -> None:
    """Removes directories, innermost first, as far as they are empty."""
    for directory in directories:
        with contextlib.suppress(OSError):
            directory.rmdir()
