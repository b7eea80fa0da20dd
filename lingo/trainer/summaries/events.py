"""TensorBoard event files: an event is added whole or not at all, and steps can be cut off.

TensorBoard's own EventFileWriter is not used: on a full disk its thread ends with a traceback and
leaves half a record in the file, and its checksums take 0.2 s per megabyte.
"""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import os
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.audio.metadata import Encoding
from tensorboard.plugins.audio.metadata import create_summary_metadata as audio_metadata
from tensorboard.plugins.histogram.metadata import create_summary_metadata as histogram_metadata
from tensorboard.plugins.image.metadata import create_summary_metadata as image_metadata
from tensorboard.plugins.scalar.metadata import create_summary_metadata as scalar_metadata
from tensorboard.plugins.text.metadata import create_summary_metadata as text_metadata
from tensorboard.util.tensor_util import make_tensor_proto

from lingo.config.base import regular_file
from lingo.config.lazy import tf
from lingo.data.files import File
from lingo.data.record_source import CorruptRecord
from lingo.data.sources.tfrecord import frame, payload, records
from lingo.metrics.media import Audio, Histogram, Image, Media, Table, Text
from lingo.storage import files

_FILES = "events.out.tfevents.*"
_VERSION = "brain.Event:2"

_log = logging.getLogger(__name__)
MAX_SIDE = 4096
"""The longest side of an image, in pixels; a larger image is cropped."""

_BUCKETS = 30


class Events:
    """Writes the event files of this process, one in each folder.

    If an event cannot be written (a full disk), only a warning is logged, because training does not
    depend on events. The warning is repeated only after a write has succeeded.
    """

    def __init__(self, root: Path, *, enabled: bool = True) -> None:
        """Writes nothing yet. `root` holds the folders, and is not made again if it is moved."""
        self._root, self._enabled = root, enabled
        self._files: dict[Path, Path] = {}
        self._failing: set[Path] = set()
        self._num_files = 0

    @contextlib.contextmanager
    def warn_on_failure(self, path: Path) -> Iterator[None]:
        """Turns a StorageError in the body into a warning about `path`."""
        try:
            yield
            self._failing.discard(path)
        except files.StorageError as error:
            if path not in self._failing:
                _log.warning("%s", error)
            self._failing.add(path)

    def add(self, folder: Path, step: int, summary: Summary) -> None:
        """Adds an event to the event file in a folder, made if missing; a failure is a warning."""
        self._append(folder, Event(wall_time=time.time(), step=step, summary=summary))

    def add_scalars(self, folder: Path, step: int, values: Mapping[str, float]) -> None:
        """Adds numbers, tag -> value, to the event file in a folder; a failure is a warning."""
        self.add(folder, step, Summary(value=[scalar_value(*item) for item in values.items()]))

    def add_graph(self, folder: Path, definition: bytes) -> None:
        """Adds a serialized GraphDef to the event file in a folder; a failure is a warning."""
        self._append(folder, Event(wall_time=time.time(), graph_def=definition))

    def cut(self, folder: Path, step: int) -> None:
        """Removes the events of steps after `step` from a folder; all events if it is negative.

        A directory or pipe that has the name of an event file stays, with a warning.
        """
        if not self._enabled:
            return
        self._files.pop(folder, None)  # a reader may be past the new end, so begin another file
        if not os.path.lexists(folder):
            return
        with (
            files.explain_write_errors(folder),
            files.open_folder(folder, root=self._root) as descriptor,
        ):
            for name in sorted(fnmatch.filter(os.listdir(descriptor), _FILES)):
                mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                    kind = regular_file.kind(mode)
                    _log.warning("%s is %s, not a file of events: it stays.", folder / name, kind)
                elif step < 0:
                    os.unlink(name, dir_fd=descriptor)
                else:
                    _cut_file(folder / name, step, root=self._root)

    def _append(self, folder: Path, event: Event) -> None:
        if not self._enabled:
            return
        first = Event(wall_time=event.wall_time, file_version=_VERSION)
        with self.warn_on_failure(folder), files.explain_write_errors(folder):
            files.make_folder(folder, root=self._root)
            data, start = (frame(e.SerializeToString()) for e in (event, first))
            files.append(self.file(folder), data, start=start, root=self._root)

    def file(self, folder: Path) -> Path:
        """Returns the path of this object's event file in a folder."""
        if folder not in self._files:
            name = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
            file = folder / f"{_FILES[:-1]}{name}.{self._num_files:03d}.v2"
            self._files[folder], self._num_files = file, self._num_files + 1
        return self._files[folder]


# ---- what TensorBoard shows --------------------------------------------------------------------


def scalar_value(tag: str, number: float) -> Summary.Value:
    """Returns a number for TensorBoard's scalars tab."""
    return tensor_value(tag, np.float32(number), scalar_metadata("", ""))


def text_value(tag: str, markdown: str) -> Summary.Value:
    """Returns a text for TensorBoard's text tab."""
    return tensor_value(tag, np.array(markdown.encode(), object), text_metadata("", ""))


def text_block(text: str) -> str:
    """Returns a text as a code block of Markdown, with unprintable characters escaped."""
    lines = (
        "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in line)
        for line in text.removesuffix("\n").split("\n")
    )
    return "".join(f"    {line}\n" for line in lines)


def image_value(tag: str, pixels: np.ndarray, *, legend: str) -> Summary.Value:
    """Returns an image for TensorBoard's images tab; `legend` explains its colours in Markdown.

    `pixels` are uint8 [H, W, 3] with H height, W width: red, green, blue; the first row is the top.
    """
    height, width = (str(size).encode() for size in pixels.shape[:2])
    content = np.array([width, height, tf.io.encode_png(pixels).numpy()], object)
    return tensor_value(tag, content, image_metadata("", legend))


def audio_value(tag: str, audio: Audio) -> Summary.Value:
    """Returns sounds, with their captions, for TensorBoard's audio tab."""
    rows = [
        [file, caption.encode()]
        for file, caption in zip(audio.to_wav(), audio.to_markdown(), strict=True)
    ]
    metadata = audio_metadata("", "", Encoding.Value("WAV"))
    return tensor_value(tag, np.array(rows, object), metadata)


def tensor_value(
    tag: str, array: np.ndarray | np.generic, metadata: SummaryMetadata
) -> Summary.Value:
    """Returns an array of any shape and type for the TensorBoard plugin that `metadata` names."""
    return Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(array))


def media_summary(media: Mapping[str, Media | float]) -> Summary:
    """Returns Media and numbers, by tag, as one summary; histograms without values are left out."""
    return Summary(value=[_value(tag, one) for tag, one in media.items() if not _is_empty(one)])


def histogram_value(tag: str, array: np.ndarray) -> Summary.Value:
    """Returns the histogram of an array, float of any shape, finite, not empty."""
    return tensor_value(tag, histogram(array), histogram_metadata("", ""))


def histogram(array: np.ndarray) -> np.ndarray:
    """Returns how many elements of an array are in each of 30 intervals of equal width.

    The array is float, of any shape, finite and not empty. The result is float64 [30, 3]: left
    edge, right edge, count. (TensorBoard's own function needs 240 bytes of memory per element.)
    """
    ends = (np.float64(array.min()), np.float64(array.max()))  # the difference may overflow float32
    counts, edges = np.histogram(array, bins=_BUCKETS, range=ends)
    return np.stack([edges[:-1], edges[1:], counts], axis=1)


def _cut_file(path: Path, step: int, *, root: Path) -> None:
    """Cuts a file before the first event after `step`, or before an event that a crash cut short.

    A process adds its events in the order of their steps. (TensorBoard has a marker for skipping
    earlier events, but not every reader respects this marker.)
    """
    with files.explain_write_errors(path), files.open_inside(path, "rb+", root=root) as stream:

        def read(start: int, stop: int) -> bytes:
            stream.seek(start)
            return stream.read(stop - start)

        end, size = 0, os.fstat(stream.fileno()).st_size
        with contextlib.suppress(CorruptRecord, DecodeError):
            for start, length in records(File(path.name, str(path), size, ""), read):
                event = Event.FromString(payload(read(start, start + length), path.name))
                if event.step > step:
                    break
                end = start + length
        if end < size:
            stream.truncate(end)


def _is_empty(media: Media | float) -> bool:
    return isinstance(media, Histogram) and not media.finite().size


def _value(tag: str, media: Media | float) -> Summary.Value:
    match media:
        case Image():
            pixels = media.to_rgb()[:MAX_SIDE, :MAX_SIDE]
            return image_value(tag, pixels, legend=media.legend)
        case Audio():
            return audio_value(tag, media)
        case Histogram():
            return histogram_value(tag, media.finite())
        case Text():
            return text_value(tag, media.markdown)
        case Table():
            return text_value(tag, media.to_markdown())
        case _:
            return scalar_value(tag, float(media))
