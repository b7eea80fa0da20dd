"""Commits a checkpoint atomically, by one process or by several together.

    begun        the leader makes a directory with a temporary name, and shares the name
    written      each process writes its shards there, and a report about its shards or its error
    committed    the leader checks that every element was written once, merges, seals and renames

An error in one process ends the save in all of them, and nothing is committed.

Processes without a disk in common each have a temporary directory of their own. They send what they
have written to the run's bucket (`Parts`), and the leader merges what it has of the others there.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lingo.checkpoints.bundle import BUNDLE, data_file, merge, num_bytes, table_entry, write_bundle
from lingo.checkpoints.manifest import seal_file, write_manifest
from lingo.config.base.errors import LingoError, NumericFailure
from lingo.config.lazy import tf
from lingo.processes.processes import ALONE, Processes
from lingo.storage import injection
from lingo.storage.bucket.bucket import BucketError
from lingo.storage.bucket.parts import Parts
from lingo.storage.files import (
    StorageError,
    describe_os_error,
    explain_write_errors,
    open_folder,
    storage_error,
    sync,
)
from lingo.storage.shards import Shards, find_flaw

BEGUN, WRITTEN, COMMITTED = "checkpoint begun", "checkpoint written", "checkpoint committed"

_INDEX = f"{BUNDLE}.index"
_KINDS = {kind.__name__: kind for kind in (NumericFailure, StorageError)}


def commit(
    target: Path,
    *,
    step: int,
    tensors: Iterable[tuple[str, Any]],
    metadata: Mapping[str, Any],
    processes: Processes = ALONE,
    parts: Parts | None = None,
) -> None:
    """Writes and commits a checkpoint; all processes call this for the same steps, in order.

    Args:
        target: path of the checkpoint, on a file system that all processes share, unless `parts`.
        step: steps done.
        tensors: (name, value), the same names in all processes. A value is either an array or
            tensor, of any shape and a type in `DTYPES`, which the leader writes; or the `Shards`
            that this process has, which each process writes.
        metadata: other values to record, of JSON types; only the leader's are written.
        processes: all processes that write the checkpoint.
        parts: how processes without a common file system hand their files to the leader, whose
            checkpoint then lacks the data of the others; None: they share a file system.

    Raises:
        StorageError: if the checkpoint cannot be written, or exists already.
        NumericFailure: if a number is not finite.
        ValueError: for values that a checkpoint cannot hold, and for an element that is not in
            exactly one process's shards.
        LostWorker, LingoError: if another process ends, or fails for another reason.
    """
    work = _Work(target, step, tensors, processes, parts)
    folder = work.open_folder(_run_on_leader(processes, BEGUN, work.begin))
    try:
        work.write(folder)
        work.meet()
        _run_on_leader(processes, COMMITTED, functools.partial(work.commit, folder, metadata))
    finally:  # a commit renames the leader's folder
        if (processes.is_leader or parts is not None) and folder.exists():
            shutil.rmtree(folder, ignore_errors=True)


class _Work:
    """One process's part in a commit."""

    def __init__(
        self,
        target: Path,
        step: int,
        tensors: Iterable[tuple[str, Any]],
        processes: Processes,
        parts: Parts | None,
    ) -> None:
        self._target, self._step, self._processes, self._parts = target, step, processes, parts
        self._values = _check_finite(_own_shards(tensors, is_leader=processes.is_leader), step)
        self._table: dict[str, dict[str, Any]] = {}
        self._files: dict[str, dict[str, Any]] = {}

    def begin(self) -> str:
        """Makes the temporary directory, and returns its name."""
        target = self._target
        if os.path.lexists(target):
            raise StorageError(f"cannot write {target}: a committed step is never written again.")
        parent, name = target.parent, f".tmp-{self._step}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        with self._storage(), open_folder(parent, root=parent.parent, make=True) as folder:
            os.mkdir(name, dir_fd=folder)
        return name

    def open_folder(self, name: str) -> Path:
        """Returns the directory in which this process writes, which is its own with `parts`."""
        if self._parts is None:
            return self._target.parent / name
        self._parts.begin(name)
        if self._processes.is_leader:
            return self._target.parent / name
        folder = self._target.parent / f"{name}-{self._processes.index}"
        with explain_write_errors(folder):
            folder.mkdir(parents=True)
        return folder

    def meet(self) -> None:
        """Waits until all processes have written, unless the leader waits for their reports."""
        if self._parts is None:
            self._processes.barrier(WRITTEN)

    def write(self, folder: Path) -> None:
        """Writes the shards of this process, and a report."""
        try:
            with self._storage():
                name = f"part-{self._processes.index}"
                prefixes = write_bundle(folder, self._values, self._table, name=name)
                self._files = {p: seal_file(folder / data_file(0, 1, prefix=p)) for p in prefixes}
                injection.at("save", self._step)
                self.report(folder, None)
        except BaseException as error:
            self._give_up(folder, error)
            raise

    def _give_up(self, folder: Path, error: BaseException) -> None:
        """Takes part in the remaining communication after this process has failed to write."""
        with contextlib.suppress(LingoError):  # a lost process may raise; `error` came first
            with contextlib.suppress(BucketError, OSError):
                self.report(folder, error)
            self.meet()
            text = _report_text(error) if self._processes.is_leader else None
            self._processes.share(COMMITTED, text)

    def report(self, folder: Path, error: BaseException | None) -> None:
        """Writes a report for the leader; if that fails, the leader finds the report missing.

        With `parts`, sends the files and the report; raises BucketError if that fails.
        """
        path = _report_path(folder, self._processes.index)
        report = {"tensors": self._table, "files": self._files, "error": _describe_error(error)}
        if self._parts is not None:
            files = [] if error else [folder / name for name in _bundle_files(self._files)]
            self._parts.send(files, report={path.name: json.dumps(report)})
        elif not self._processes.is_leader:
            with contextlib.suppress(OSError):
                path.write_text(json.dumps(report))

    def commit(self, folder: Path, metadata: Mapping[str, Any]) -> str:
        """Merges all processes' bundles into one checkpoint, and returns its name."""
        tables, files = [self._table], dict(self._files)
        if self._parts is not None:
            others = range(1, self._processes.count)
            reports = {index: _report_path(folder, index) for index in others}
            self._parts.receive(reports, check=self._processes.check)
        for index in range(1, self._processes.count):
            report = self._read_report(folder, index)
            tables.append(report["tensors"])
            files |= report["files"]
        tensors = _merge_tables(tables)
        if self._parts is not None:
            absent = _bundle_files(prefix for prefix in files if prefix not in self._files)
            self._parts.stand_in(folder, absent)
        with self._storage():
            merge(folder, list(files))
            for index in range(1, self._processes.count):
                _report_path(folder, index).unlink()
            named = {data_file(i, len(files)): file for i, file in enumerate(files.values())}
            if self._parts is not None:
                self._leave_data(self._parts, folder, list(files), named)
            named[_INDEX] = seal_file(folder / _INDEX)
            write_manifest(folder, step=self._step, metadata=metadata, tensors=tensors, files=named)
            sync(folder)
            folder.rename(self._target)
            sync(self._target.parent)
            injection.at("commit", self._step)
        return self._target.name

    def _leave_data(
        self,
        parts: Parts,
        folder: Path,
        prefixes: Sequence[str],
        seals: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Removes what stands for the other processes' data, which stay in the bucket."""
        sent = [data_file(0, 1, prefix=prefix) for prefix in prefixes]
        files = {name: (one, seals[name]) for name, one in zip(seals, sent, strict=True)}
        parts.keep(self._target.name, files)
        for name, prefix in zip(seals, prefixes, strict=True):
            if prefix not in self._files:
                (folder / name).unlink()

    def _read_report(self, folder: Path, index: int) -> dict[str, Any]:
        """Returns the report of another process, or raises the error in it."""
        try:
            report = json.loads(_report_path(folder, index).read_bytes())
        except (OSError, ValueError) as error:
            reason = describe_os_error(error) if isinstance(error, OSError) else "it is cut off"
            raise StorageError(
                f"cannot write {self._target}: the report of process {index}: {reason}."
            ) from error
        _raise_reported(report["error"], where=f"process {index}: ")
        return report

    @contextlib.contextmanager
    def _storage(self) -> Iterator[None]:
        """Turns a failed write inside into a StorageError with the size of all tensors."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            # The size includes the tensors that were not written yet; reading them may raise.
            with contextlib.suppress(NumericFailure, tf.errors.OpError):
                self._table |= {name: table_entry(value) for name, value in self._values}
            needs_bytes = num_bytes(self._table)
            raise storage_error(self._target, error, needs_bytes=needs_bytes) from error


def _bundle_files(prefixes: Iterable[str]) -> list[str]:
    """Returns the names of the files that `write_bundle` has written for prefixes."""
    return [name for p in prefixes for name in (f"{p}.index", data_file(0, 1, prefix=p))]


def _report_path(folder: Path, index: int) -> Path:
    return folder / f"report-{index:05d}.json"


# ---- tensors -----------------------------------------------------------------------------------


def _own_shards(
    tensors: Iterable[tuple[str, Any]], *, is_leader: bool
) -> Iterator[tuple[str, np.ndarray | Shards]]:
    """Yields (name, value to write) of each tensor; Shards are empty if others have all of it."""
    for name, value in tensors:
        if not isinstance(value, Shards):
            array = np.asarray(value)
            yield name, array if is_leader else Shards(array.shape, (), array.dtype.name)
        elif is_leader and 0 in value.shape:  # empty tensors have no shards; the leader writes them
            yield name, np.empty(value.shape, value.dtype)
        else:
            yield name, value


def _check_finite(
    tensors: Iterable[tuple[str, np.ndarray | Shards]], step: int
) -> Iterator[tuple[str, np.ndarray | Shards]]:
    """Yields tensors unchanged; raises NumericFailure if a number is not finite."""
    for name, value in tensors:
        arrays = [array for _, array in value.shards] if isinstance(value, Shards) else [value]
        for array in arrays:
            if array.dtype.kind not in "biu" and not (finite := np.isfinite(array)).all():
                raise NumericFailure(
                    f"step {step} is not saved: {array.size - np.count_nonzero(finite)} of"
                    f" {array.size} numbers in {name} are not finite. Earlier checkpoints stay."
                )
        yield name, value


def _merge_tables(tables: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Merges the processes' `table_entry` by name into {"shape", "dtype"}, if the boxes fit.

    Raises ValueError if tables disagree, or if an element is not in exactly one box.
    """
    merged: dict[str, dict[str, Any]] = {}
    boxes: dict[str, list[Any]] = {}
    for index, table in enumerate(tables):
        for name, entry in table.items():
            same = {"shape": entry["shape"], "dtype": entry["dtype"]}
            if merged.setdefault(name, same) != same:
                raise ValueError(f"{name} is {same} in process {index}, not {merged[name]}")
            boxes.setdefault(name, []).extend(entry["boxes"])
    for name, entry in merged.items():
        if flaw := find_flaw(entry["shape"], boxes[name]):
            raise ValueError(f"{name}: {flaw}")
    return merged


# ---- errors, shared with all processes ---------------------------------------------------------


def _run_on_leader(processes: Processes, name: str, action: Callable[[], str]) -> str:
    """Runs an action in the leader only; all processes return its result or raise its error."""
    if not processes.is_leader:
        report = json.loads(processes.share(name, None))
        _raise_reported(report["error"])
        return report["value"]
    try:
        value = action()
    except BaseException as error:
        with contextlib.suppress(LingoError):  # a lost process may raise; `error` came first
            processes.share(name, _report_text(error))
        raise
    processes.share(name, json.dumps({"error": None, "value": value}))
    return value


def _report_text(error: BaseException) -> str:
    """Returns the text that a leader shares with all processes after an error."""
    return json.dumps({"error": _describe_error(error)})


def _describe_error(error: BaseException | None) -> list[str] | None:
    """Returns [type's name, message] of an error, so that other processes can raise it."""
    if error is None:
        return None
    kind = next((kind for kind, cls in _KINDS.items() if isinstance(error, cls)), "")
    return [kind, str(error) or type(error).__name__]


def _raise_reported(error: Sequence[str] | None, *, where: str = "") -> None:
    """Raises the error that `_describe_error` described in another process; None: no error."""
    if error is not None:
        kind, message = error
        raise _KINDS.get(kind, LingoError)(f"{where}{message}")
