"""The directory of a run: configuration, reports, status and checkpoints.

    config.json, config.txt, flags.txt, environment.json, weights.txt    texts, written at the start
    notes.json          the user's note and tags
    classes.json        a list of the names of the classes, by label, if classes have names
    source/             the user's own files of Python that the experiment uses
    metrics.jsonl       one flat object per report: TensorBoard tags, `step` and `time`
    vectors.jsonl       one object per report with vectors: layers' statistics to plot over time
    mllog.txt, ...      files that observers write
    STATUS              one line: "running at step 120", "done (early) at step 200"
    train/, eval_<name>/                TensorBoard events
    checkpoints/step_%08d/

One process writes at a time, under a lock; reading needs no lock. If several processes train
together, only the leader writes; in the other processes the directory is not `enabled`.

The directory of a run in a bucket is a local copy (`lingo/storage/bucket`). The process that locks
it holds the bucket's lease, too.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from lingo.checkpoints import store
from lingo.checkpoints.errors import NoUsableCheckpoint
from lingo.checkpoints.manifest import is_whole
from lingo.config import source_record
from lingo.config.base import regular_file
from lingo.config.params import ParamError, Params
from lingo.config.source_files import SourceFile, find_user_files
from lingo.storage import files
from lingo.storage.bucket import cache
from lingo.storage.bucket.mirror import Mirror, alone, pull
from lingo.storage.bucket.parts import Parts
from lingo.storage.rows import Rows, State, Status, parse_status
from lingo.trainer.directory.audit import AUDIT

T = TypeVar("T")

CONFIG = "config.json"
RESOLVED = "config.txt"
FLAGS = "flags.txt"
ENVIRONMENT = "environment.json"
CLASSES = "classes.json"
SOURCE = source_record.FOLDER
METRICS = "metrics.jsonl"
VECTORS = "vectors.jsonl"
MAX_BYTES = 2**26  # largest text to read; four times the largest experiment's config.txt
MAX_PATH_BYTES = 3500  # Linux allows 4096; names inside the directory need the rest
MAX_PART_BYTES = 255
REFRESH_SECONDS = 10.0  # least time between looks at a bucket

_log = logging.getLogger(__name__)


class RunDirectory:
    """The directory of a run. Making this object touches no file.

    If it is not `enabled`, methods that write do nothing.

    Attributes:
        address: the folder in a bucket, if this directory is its local copy, else None.
        mirror: writes this directory to the bucket, while it is locked.
        parts: sends parts of checkpoints there, if not all processes have the leader's directory.
    """

    def __init__(self, path: str | Path, *, enabled: bool = True) -> None:
        if not str(path):
            raise ParamError("a run needs a directory, got ''; '.' is the current directory")
        if cache.is_address(path):
            path = cache.local_copy(path)
        files.refuse_address(path)
        _check_path(os.path.abspath(path))
        self.path, self.enabled = Path(path), enabled
        self.checkpoints = self.path / "checkpoints"
        self.train = self.path / "train"  # TensorBoard events
        self.profile = self.path / "profile"
        self._lock = files.Lock(self.path / ".lock")
        self.address = cache.address_of(self.path)
        self.mirror: Mirror | None = None
        self.parts: Parts | None = None
        self._refreshed_seconds = time.monotonic()

    @functools.cached_property
    def metrics(self) -> Rows:
        """The rows of metrics.jsonl."""
        return Rows(self.path / METRICS, enabled=self.enabled)

    @functools.cached_property
    def vectors(self) -> Rows:
        """The rows of vectors.jsonl."""
        return Rows(self.path / VECTORS, enabled=self.enabled)

    @property
    def exists(self) -> bool:
        """Whether a run was begun in this directory."""
        return os.path.isfile(self.path / CONFIG)  # also False without permission to look

    @property
    def is_lost(self) -> bool:
        """Whether the directory that this process locked was moved or deleted."""
        return self._lock.is_lost

    def evaluation(self, name: str) -> Path:
        """Returns the directory of an evaluation's TensorBoard events."""
        if not files.PATH_PART.fullmatch(name):
            raise ParamError(
                f"{name!r} cannot be part of a path; use letters, digits, '.', '_', '-'"
            )
        return self.path / f"eval_{name}"

    @property
    def is_abandoned(self) -> bool:
        """Whether the process that held the lock last, on this machine, has ended."""
        return self._lock.is_abandoned()

    @contextlib.contextmanager
    def lock(self, *, mirrored: bool = True) -> Iterator[RunDirectory]:
        """Makes the directory if it is missing, and locks it against other writers.

        If not `mirrored`, a local copy is locked without its bucket, which gets the changes later.
        If the body fails before a run has begun, the directories made here are removed. Raises
        DirectoryLocked if another process has the lock or the bucket's lease, ParamError if the
        path or a parent is not a directory, BucketError if the bucket fails, and StorageError if
        the directory cannot be made, or if a link is in the place of a file or directory to be
        written. (The run's directory itself may be a link.)
        """
        if not self.enabled:
            yield self
            return
        with files.explain_write_errors(self.path):
            made = [p for p in (self.path, *self.path.parents) if not p.exists()]
            for place in (self.path, *self.path.parents):
                if place.exists() and not place.is_dir():
                    raise ParamError(
                        f"{self.path} cannot be the directory of a run: {place} is not a directory"
                    )
            self.path.mkdir(parents=True, exist_ok=True)
        lock, is_lost = self._lock, False
        try:
            with self._wait_for_readers():
                lock.acquire()
            try:
                self._refuse_links()
                files.clear_leftovers(self.path)
                with self._open_mirror() if mirrored else contextlib.nullcontext():
                    yield self
            finally:
                is_lost = self.is_lost
                lock.release(remove=not self.exists)
        finally:
            if not (self.exists or is_lost):
                _remove_empty(made)

    def _wait_for_readers(self) -> contextlib.AbstractContextManager[None]:
        """Returns a block in which no other process brings the local copy up to date."""
        if self.address is None:
            return contextlib.nullcontext()
        return alone(self.path)

    @contextlib.contextmanager
    def _open_mirror(self) -> Iterator[None]:
        """Brings a local copy up to date, and writes it to its bucket at the end of the block."""
        if self.address is None:
            yield
            return
        mirror, is_sound = Mirror(self.path, self.address, check=is_whole), False
        mirror.open()
        self.mirror = mirror
        try:
            yield
            is_sound = True
        finally:
            self.mirror = None
            mirror.close(is_sound=is_sound)

    def refresh(self) -> None:
        """Brings a local copy up to date, to read it; does nothing for other directories.

        Calls within `REFRESH_SECONDS` after one do nothing. Raises BucketError if the bucket fails.
        """
        now = time.monotonic()
        if self.address is not None and now >= self._refreshed_seconds + REFRESH_SECONDS:
            pull(self.address, self.path)
            self._refreshed_seconds = time.monotonic()

    def _refuse_links(self) -> None:
        """Raises StorageError for a link through which writes or deletions could leave `path`."""
        folders = (self.checkpoints, self.train, self.profile, self.path / SOURCE)
        folders += tuple(self.path.glob("eval_*"))
        for path in (*folders, *(self.path / name for name in (METRICS, VECTORS, AUDIT))):
            files.refuse_link(path)

    @contextlib.contextmanager
    def take_over(self) -> Iterator[RunDirectory]:
        """Yields this directory, enabled and locked, which the lost leader had.

        Reports that the lost leader has not written yet are written first.
        """
        with RunDirectory(self.path).lock() as run:
            for rows in (self.metrics, self.vectors):
                rows.write_missed()
            yield run

    def check_there(self) -> None:
        """Raises StorageError if the directory that this process locked was moved or deleted.

        A directory that is at this path now may belong to another process.
        """
        if self.is_lost:
            raise files.StorageError(
                f"{self.path} is no longer the directory in which this process trains: it, or"
                " .lock in it, was moved or deleted. Nothing more is written."
            )

    def write(
        self,
        texts: Mapping[str, str],
        *,
        source: Mapping[str, SourceFile] = MappingProxyType({}),
        replaced: Collection[str] = (),
    ) -> None:
        """Writes texts and copies of `source` by name. Writing `config.json`, last, begins the run.

        An existing file with other content is kept as `config.1.json`, `config.2.json`, ..., unless
        its name is in `replaced`. Raises StorageError if a file cannot be written; if the run had
        not begun, all written files are then removed.
        """
        if not self.enabled:
            return
        begun, contents = self.exists, {name: text.encode() for name, text in texts.items()}
        copies = {f"{SOURCE}/{name}": file.content for name, file in source.items()}
        contents |= {name: content for name, content in copies.items() if content is not None}
        try:
            for name in sorted(contents, key=lambda name: (name == CONFIG, name)):
                path = self.path / name
                with files.explain_write_errors(path.parent):
                    files.make_folder(path.parent, root=self.path)
                self._replace(path, contents[name], keep=name not in replaced)
        except files.StorageError:
            for name in () if begun else contents:
                self._remove(self.path / name)
            raise

    def _remove(self, path: Path) -> None:
        """Removes a file below this directory, and parent directories that become empty."""
        with contextlib.suppress(OSError), files.open_folder(path.parent, root=self.path) as folder:
            os.unlink(path.name, dir_fd=folder)
        for empty in [p for p in path.parents if self.path in p.parents]:
            with (
                contextlib.suppress(OSError),
                files.open_folder(empty.parent, root=self.path) as folder,
            ):
                os.rmdir(empty.name, dir_fd=folder)  # fails for a link

    def _replace(self, path: Path, content: bytes, *, keep: bool) -> None:
        old = _read(path, MAX_BYTES)
        if old == content:
            return
        if old is not None and keep:
            *_, last, unused = path, *_backup_paths(path)
            if last == path or _read(last, MAX_BYTES) != old:  # else kept already before a crash
                files.write_bytes(unused, old, root=self.path)
        files.write_bytes(path, content, root=self.path)

    def read(self, name: str, *, max_bytes: int = MAX_BYTES) -> str | None:
        """Returns a text file, or None if it does not exist or is larger than `max_bytes`.

        Bytes that are not UTF-8 are replaced.
        """
        content = _read(self.path / name, max_bytes)
        return None if content is None else content.decode(errors="replace")

    def read_source(self) -> dict[str, SourceFile]:
        """Returns name -> user's own file that the run has used, without the file's content."""
        try:
            return source_record.from_json(json.loads(self.read(ENVIRONMENT) or "{}").get(SOURCE))
        except (ValueError, AttributeError, RecursionError):  # damaged, or of another form
            return {}

    def class_names(self) -> tuple[str, ...]:
        """Returns the names of the classes, by label; () if the run has no names of classes."""
        try:
            names = json.loads(self.read(CLASSES) or "[]")
        except (ValueError, RecursionError):
            names = None
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ParamError(f"{self.path / CLASSES} is not the list of names that the run wrote")
        return tuple(names)

    def changed_source(self, params: Params) -> list[str]:
        """Returns the user's own files of an experiment that have changed since the run began."""
        now = find_user_files(params)
        changed = source_record.changed_names(self.read_source(), now)
        return [now[name].path for _, name in changed]

    def set_status(self, state: State, step: int) -> None:
        """Writes STATUS. A failure is a warning, but raises StorageError if the run is done.

        Nothing is written if the directory was moved or deleted.
        """
        if not self.enabled or self.is_lost:
            return
        try:
            files.write_text(self.path / "STATUS", Status(state, step).line)
        except files.StorageError as error:
            if Status(state, step).is_done:
                raise
            _log.warning("%s", error)

    def status(self) -> Status | None:
        """Returns the status in STATUS, or None if that is missing or not readable."""
        text = self.read("STATUS")
        return None if text is None else parse_status(text)

    def last_step(self) -> int:
        """Returns the step of the last checkpoint, or the step in STATUS if that is later.

        So checkpoints in a directory that is temporarily not mounted still count.
        """
        status = self.status()
        steps = [status.step if status else 0]
        with contextlib.suppress(NoUsableCheckpoint):
            steps += store.steps(self.checkpoints)
        return max(steps)

    def cut(self, step: int) -> None:
        """Removes all rows after `step`, also the rows of `lingo eval` that a bucket may have."""
        if self.mirror is not None:
            self.mirror.take_results()  # else an upload would add them later
        for folder in self.path.glob("eval_*"):
            Rows(folder / METRICS, root=self.path, enabled=self.enabled).cut(step)
        for rows in (self.metrics, self.vectors):
            rows.cut(step)

    def is_evaluated(self, step: int) -> bool:
        """Returns whether metrics.jsonl has results of an evaluation after `step` steps."""
        return any(
            row["step"] == step and any(key.startswith("eval/") for key in row)
            for row in self.metrics.read()
        )


def _check_path(path: str) -> None:
    """Raises ParamError for a path that Linux, TensorFlow or a flag file cannot represent."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise ParamError(f"{path!r} cannot be the directory of a run: it is not UTF-8") from None
    if not path.isprintable() or path != path.strip():
        raise ParamError(
            f"{path!r:.200} cannot be the directory of a run: line breaks, other control characters"
            " and spaces at its end get lost"
        )
    longest = max(len(part.encode()) for part in path.split("/"))
    if size > MAX_PATH_BYTES or longest > MAX_PART_BYTES:
        raise ParamError(
            f"{path[:80]!r}... cannot be the directory of a run: a path has at most"
            f" {MAX_PATH_BYTES} bytes, and a name in it at most {MAX_PART_BYTES}"
        )


def tag_metrics(metrics: Mapping[str, T]) -> dict[str, T]:
    """Returns an evaluation's metrics, or summaries, under their TensorBoard tags."""
    return {f"eval/{metric}": value for metric, value in metrics.items()}


def row_tag(tag: str, name: str, *, first: bool) -> str:
    """Returns the key in metrics.jsonl of an evaluation's TensorBoard tag.

    A key carries the evaluation input's name, unless the input is the experiment's first.
    """
    return tag if first else f"{tag}@{name}"


def evaluation_row(step: int, evaluations: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns the metrics.jsonl row of evaluations, input -> {tag: value}, in their order."""
    row: dict[str, float] = {"step": int(step)}
    for i, (name, results) in enumerate(evaluations.items()):
        row |= {row_tag(tag, name, first=not i): float(v) for tag, v in results.items()}
    return row


def _backup_paths(path: Path) -> Iterator[Path]:
    """Yields the existing `config.1.json`, `config.2.json`, ..., then the first unused path."""
    for number in itertools.count(1):
        other = path.with_name(f"{path.stem}.{number}{path.suffix}")
        yield other
        if not other.exists():
            return


def _read(path: Path, max_bytes: int) -> bytes | None:
    try:
        content = regular_file.read(path, max_bytes=max_bytes)
    except OSError:
        return None
    return content if len(content) <= max_bytes else None


def _remove_empty(directories: list[Path]) -> None:
    """Removes the directories that are empty, innermost first."""
    for directory in directories:
        with contextlib.suppress(OSError):
            directory.rmdir()


def flags_text(
    run: Path,
    config: str,
    *,
    exp: str = "",
    overrides: Sequence[str] = (),
    operational: Sequence[str] = (),
) -> str:
    """Returns the text of flags.txt, which resumes a run from any directory.

    A flag file has one flag per line, and loses a line's outer spaces. If a flag cannot be written
    in this form, the text refers to config.json instead; `config` is the text of config.json. `exp`
    is the value of --exp ("" for the experiment in config.json), `overrides` are values of --set,
    `operational` other flags.
    """
    place = cache.address_of(run) or run
    lines = [f"--exp={exp}", f"--logdir={place}", *(f"--set={text}" for text in overrides)]
    lines += operational
    if not exp or not all(map(_is_flag_line, lines)):
        own = json.loads(config)["files"].values()
        trusted = (f"--trust={file['path']}" for file in own)
        lines = [f"--run={place}", *filter(_is_flag_line, [*trusted, *operational])]
    return "".join(f"{line}\n" for line in lines)


def _is_flag_line(line: str) -> bool:
    """Returns whether a line survives being written to and read from a flag file."""
    try:
        line.encode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return False
    return line.splitlines() == [line.strip()]
