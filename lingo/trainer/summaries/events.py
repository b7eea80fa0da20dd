"""TensorBoard event files: added to whole or not at all, and cut back when steps are done again.

A file is a series of records (length, its checksum, an Event, its checksum; the checksums are those
of TFRecord). Its first says which format it is. TensorFlow's own writer leaves, when a disk is
full, part of a record in the middle of the file, and no reader gets past that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.image.metadata import create_summary_metadata as image_metadata
from tensorboard.plugins.scalar.metadata import create_summary_metadata as scalar_metadata
from tensorboard.plugins.text.metadata import create_summary_metadata as text_metadata
from tensorboard.util.tensor_util import make_tensor_proto

from lingo.data.sources.tfrecord import masked_crc32c
from lingo.storage.files import StorageError, append, writing
from lingo.trainer.summaries.png import png, png_of_colours

_FILES = "events.out.tfevents.*"
_VERSION = "brain.Event:2"
_HEADER = struct.Struct("<QI")  # length, checksum
_CHECKSUM = struct.Struct("<I")

_log = logging.getLogger(__name__)


class Events:
    """Event files of this process, one a folder, and what becomes of failures to write.

    What cannot be written (a full disk) is a warning, once until it works again: training does not
    depend on it.
    """

    def __init__(self, root: Path, *, enabled: bool = True) -> None:
        """Writes nothing yet.

        Args:
            root: holds the folders, and may be one. If it is moved or deleted it is not made again.
            enabled: whether this process writes; else nothing is written and cut.
        """
        self._root, self._enabled = root, enabled
        self._files: dict[Path, Path] = {}
        self._failing: set[Path] = set()
        self._num_files = 0

    @contextlib.contextmanager
    def warned(self, path: Path) -> Iterator[None]:
        """Turns a failure to write inside into a warning about `path`."""
        try:
            yield
            self._failing.discard(path)
        except StorageError as error:
            if path not in self._failing:
                _log.warning("%s", error)
            self._failing.add(path)

    def add(self, folder: Path, step: int, summary: Summary) -> None:
        """Adds an event to the file of a folder; a failure is a warning.

        Args:
            folder: made if it is not there.
            step: steps done.
            summary: what is shown.
        """
        self._append(folder, Event(wall_time=time.time(), step=step, summary=summary))

    def scalars(self, folder: Path, step: int, values: Mapping[str, float]) -> None:
        """Adds numbers by tag to the file of a folder; a failure is a warning."""
        self.add(folder, step, Summary(value=[scalar(*item) for item in values.items()]))

    def graph(self, folder: Path, definition: bytes) -> None:
        """Adds a serialized GraphDef to the file of a folder; a failure is a warning."""
        self._append(folder, Event(wall_time=time.time(), graph_def=definition))

    def cut(self, folder: Path, step: int) -> None:
        """Removes the events of steps after `step` from a folder; all of them if it is negative.

        Raises:
            StorageError: if that cannot be done.
        """
        if not self._enabled:
            return
        self._files.pop(folder, None)  # who reads along is past its end: go on in another
        with writing(folder):
            for file in sorted(folder.glob(_FILES)):
                if step < 0:
                    file.unlink()
                else:
                    _cut_file(file, step)

    def _append(self, folder: Path, event: Event) -> None:
        if not self._enabled:
            return
        first = Event(wall_time=event.wall_time, file_version=_VERSION)
        data, start = (_record(e.SerializeToString()) for e in (event, first))
        with self.warned(folder), writing(folder):
            if folder != self._root:
                folder.mkdir(exist_ok=True)
            append(self._file(folder), data, start=start)

    def _file(self, folder: Path) -> Path:
        if folder not in self._files:
            name = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
            file = folder / f"{_FILES[:-1]}{name}.{self._num_files:03d}.v2"
            self._files[folder], self._num_files = file, self._num_files + 1
        return self._files[folder]


# ---- what is shown -----------------------------------------------------------------------------


def scalar(tag: str, number: float) -> Summary.Value:
    """Returns a number of TensorBoard's scalars tab."""
    return value(tag, np.float32(number), scalar_metadata("", ""))


def text(tag: str, markdown: str) -> Summary.Value:
    """Returns a text of TensorBoard's text tab."""
    return value(tag, np.array(markdown.encode(), object), text_metadata("", ""))


def image(
    tag: str, pixels: np.ndarray, colours: np.ndarray | None = None, *, legend: str
) -> Summary.Value:
    """Returns a picture of TensorBoard's images tab.

    Args:
        tag: its name.
        pixels: uint8 [H, W], numbers of colours; without `colours` [H, W, 3], red, green, blue.
        colours: uint8 [N, 3], red, green, blue.
        legend: says what they mean, in Markdown.
    """
    height, width = (str(size).encode() for size in pixels.shape[:2])
    file = png_of_colours(pixels) if colours is None else png(pixels, colours)
    content = np.array([width, height, file], object)
    return value(tag, content, image_metadata("", legend))


def value(tag: str, array: np.ndarray | np.generic, metadata: SummaryMetadata) -> Summary.Value:
    """Returns a tensor for one of TensorBoard's plugins.

    Args:
        tag: its name.
        array: of the shape and type that the plugin wants.
        metadata: says which plugin.
    """
    return Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(array))


# ---- records -----------------------------------------------------------------------------------


def _record(data: bytes) -> bytes:
    length = len(data).to_bytes(8, "little")
    checksums = (_CHECKSUM.pack(masked_crc32c(part)) for part in (length, data))
    return b"".join((length, next(checksums), data, next(checksums)))


def _cut_file(file: Path, step: int) -> None:
    """Ends a file before the first event of a later step, or before one that a crash cut short.

    A process adds its events in the order of their steps. (TensorBoard knows a mark that makes it
    skip earlier events, but not every reader heeds it.)
    """
    with open(file, "rb+") as stream:
        end, size = 0, file.stat().st_size
        while (event := _read(stream, size)) is not None and event.step <= step:
            end = stream.tell()
        if end < size:
            stream.truncate(end)


def _read(stream: BinaryIO, size: int) -> Event | None:
    """Returns the next event of a file of so many bytes, or None where there is no whole one."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    length, checksum = _HEADER.unpack(header)
    if masked_crc32c(header[:8]) != checksum or length > size:
        return None
    data, end = stream.read(length), stream.read(_CHECKSUM.size)
    if len(end) < _CHECKSUM.size or _CHECKSUM.unpack(end)[0] != masked_crc32c(data):
        return None
    try:
        return Event.FromString(data)
    except DecodeError:
        return None
