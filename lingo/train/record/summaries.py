"""What a run reports: rows of metrics.jsonl, and the same numbers as TensorBoard events."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from lingo.lazy import tf
from lingo.train.record.run_directory import RunDirectory
from lingo.train.record.storage import StorageError, storage_error, writing

_FRESH = ".tmp-events"  # a name that TensorBoard does not read

_log = logging.getLogger(__name__)


class Summaries:
    """Writes the reports of a run.

    A report that cannot be written (a full disk) is a warning, once until it works again: training
    does not depend on it.
    """

    def __init__(self, run: RunDirectory, *, step: int) -> None:
        """Continues the reports of a run.

        Args:
            run: the directory, locked by this process.
            step: steps done; what was reported of later ones is removed, they will be done again.

        Raises:
            StorageError: if what is to be removed cannot be.
        """
        self._run = run
        self._writers: dict[Path, tf.summary.SummaryWriter] = {}
        self._failing: set[Path] = set()
        run.cut_metrics(step)
        for folder in (run.train, *run.path.glob("eval_*")):
            with writing(folder):
                (folder / _FRESH).unlink(missing_ok=True)
            for file in folder.glob("events.out.tfevents.*"):
                cut_events(file, step)

    def __enter__(self) -> Summaries:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for folder, writer in self._writers.items():
            with self._warned(folder):
                writer.close()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Reports a step: one row, and events in `train/`.

        Args:
            step: steps done.
            scalars: TensorBoard tag -> value.
        """
        row = {"step": int(step), "time": time.time()}
        row |= {tag: float(value) for tag, value in scalars.items()}
        with self._warned(self._run.metrics):
            self._run.append_metrics(row)
        self._events(self._run.train, step, scalars)

    def evaluated(self, step: int, evaluations: Mapping[str, Mapping[str, float]]) -> None:
        """Reports evaluations: in the row of their step, and events in `eval_<name>/`.

        Args:
            step: steps done.
            evaluations: name -> {tag: value}. Where two have the same tag, the row calls the
                second one's `<tag>@<name>`.
        """
        row: dict[str, Any] = {"step": int(step), "time": time.time()}
        for name, results in evaluations.items():
            folder = self._run.evaluation(name)
            for tag, value in results.items():
                row[f"{tag}@{name}" if tag in row else tag] = float(value)
            self._events(folder, step, results)
        with self._warned(self._run.metrics):
            self._run.amend_metrics(row)

    def text(self, tag: str, text: str, *, step: int) -> None:
        """Shows a text, such as the configuration, in fixed width."""
        indented = "".join(f"    {line}\n" for line in text.splitlines())  # Markdown's code block
        with self._warned(self._run.train), self._writer(self._run.train).as_default():
            tf.summary.text(tag, indented, step=step)
            tf.summary.flush()

    def _events(self, folder: Path, step: int, values: Mapping[str, float]) -> None:
        with self._warned(folder), self._writer(folder).as_default():
            for tag, value in values.items():
                tf.summary.scalar(tag, value, step=step)
            tf.summary.flush()

    def _writer(self, folder: Path) -> tf.summary.SummaryWriter:
        if folder not in self._writers:
            self._writers[folder] = tf.summary.create_file_writer(str(folder))
        return self._writers[folder]

    @contextlib.contextmanager
    def _warned(self, path: Path) -> Iterator[None]:
        try:
            yield
            self._failing.discard(path)
        except (StorageError, tf.errors.OpError) as error:
            if path not in self._failing:
                known = isinstance(error, StorageError)
                _log.warning("%s", error if known else storage_error(path, error))
            self._failing.add(path)


def cut_events(file: Path, step: int) -> None:
    """Removes the events of later steps from a file, and one cut short by a crash.

    (TensorBoard knows a mark that makes it skip earlier events, but not every reader heeds it.)

    Raises:
        StorageError: if the file cannot be written; it stays as it was.
    """
    kept, whole = [], True
    try:
        for record in tf.data.TFRecordDataset(str(file)):
            data = record.numpy()
            if tf.compat.v1.Event.FromString(data).step <= step:
                kept.append(data)
            else:
                whole = False
    except tf.errors.DataLossError:
        whole = False
    if whole:
        return
    fresh = file.with_name(_FRESH)
    with writing(file):
        try:
            with tf.io.TFRecordWriter(str(fresh)) as writer:
                for data in kept:
                    writer.write(data)
            os.replace(fresh, file)
        except tf.errors.OpError as error:
            raise storage_error(file, error) from error
