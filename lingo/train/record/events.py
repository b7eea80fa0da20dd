"""TensorBoard event files: one writer a folder, and what is removed when a run resumes."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from lingo.lazy import tf
from lingo.train.record.storage import StorageError, storage_error, writing

_FILES = "events.out.tfevents.*"
_FRESH = ".tmp-events"  # a name that TensorBoard does not read

_log = logging.getLogger(__name__)


class Events:
    """Writers of event files, and what becomes of failures to write.

    What cannot be written (a full disk) is a warning, once until it works again: training does not
    depend on it.

        with events.warned(folder), events.to(folder):
            tf.summary.scalar(...)
    """

    def __init__(self) -> None:
        self._writers: dict[Path, tf.summary.SummaryWriter] = {}
        self._failing: set[Path] = set()

    @contextlib.contextmanager
    def warned(self, path: Path) -> Iterator[None]:
        """Turns a failure to write inside into a warning about `path`."""
        try:
            yield
            self._failing.discard(path)
        except (StorageError, tf.errors.OpError) as error:
            if path not in self._failing:
                known = isinstance(error, StorageError)
                _log.warning("%s", error if known else storage_error(path, error))
            self._failing.add(path)

    @contextlib.contextmanager
    def to(self, folder: Path) -> Iterator[None]:
        """Sends the `tf.summary` calls inside to the file of a folder, and that to the disk."""
        if folder not in self._writers:
            self._writers[folder] = tf.summary.create_file_writer(str(folder))
        with self._writers[folder].as_default():
            yield
            tf.summary.flush()

    def scalars(self, folder: Path, step: int, values: Mapping[str, float]) -> None:
        """Writes numbers by tag into the file of a folder; a failure is a warning."""
        with self.warned(folder), self.to(folder):
            for tag, value in values.items():
                tf.summary.scalar(tag, value, step=step)

    def close(self) -> None:
        """Closes all files."""
        for folder, writer in self._writers.items():
            with self.warned(folder):
                writer.close()


def cut(folder: Path, step: int) -> None:
    """Removes the events of steps after `step` from a folder; all of them if it is 0.

    Raises:
        StorageError: if that cannot be done.
    """
    with writing(folder):
        (folder / _FRESH).unlink(missing_ok=True)
        for file in sorted(folder.glob(_FILES)):
            if step == 0:
                file.unlink()
            else:
                _cut_file(file, step)


def _cut_file(file: Path, step: int) -> None:
    """Removes the events of later steps, and one cut short by a crash.

    (TensorBoard knows a mark that makes it skip earlier events, but not every reader heeds it.)
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
    try:
        with tf.io.TFRecordWriter(str(fresh)) as writer:
            for data in kept:
                writer.write(data)
        os.replace(fresh, file)
    except tf.errors.OpError as error:
        raise storage_error(file, error) from error
