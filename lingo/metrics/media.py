"""Images, sounds, histograms, texts and tables for TensorBoard, as plain values.

Axes: N images or sounds, H height, W width, C channels, L samples.
"""

from __future__ import annotations

import io
import numbers
import wave
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

MAX_ROWS = 1000
"""The most rows of a table that are shown: TensorBoard's page holds no more."""

_SMALLEST_SIDE = 64  # pixels; smaller images are enlarged, so that a browser does not blur them
_GAP = 4  # pixels between two images
_WHITE = 255
_MAX_CHANNELS, _MAX_RATE = 32, 768_000  # of a sound that a browser might play
_FULL_SCALE = 32_767  # the largest sample of 16 bits
_DIGITS = 5  # significant digits of a number in a table


class Image(NamedTuple):
    """An image, or several side by side.

    `pixels` are [H, W], [H, W, C] or, for several images, [N, H, W, C], with 1 or 3 channels:
    uint8, or floats or bools from 0 (black) to 1. `legend` explains the picture, in Markdown.
    """

    pixels: np.ndarray
    legend: str = ""

    def problem(self) -> str:
        """Returns why the image cannot be shown, in words; "" if it can."""
        pixels = np.asarray(self.pixels)
        is_grey = pixels.ndim == 2
        if not (is_grey or (pixels.ndim in (3, 4) and pixels.shape[-1] in (1, 3))):
            return f"the pixels of an Image have shape {list(pixels.shape)}, not [H, W, 3]"
        if pixels.dtype != np.uint8 and pixels.dtype.kind not in "fb":
            return f"the pixels of an Image are {pixels.dtype}: take uint8, or floats from 0 to 1"
        return "" if pixels.size else "an Image has no pixels"

    def to_rgb(self) -> np.ndarray:
        """Returns uint8 [H, W, 3]: several images are side by side, and small ones are enlarged.

        >>> Image(np.array([[0.0, 1.0]])).to_rgb().shape
        (64, 128, 3)
        """
        pixels = np.asarray(self.pixels)
        if pixels.dtype != np.uint8:
            floats = np.nan_to_num(pixels.astype(np.float32), nan=0.0)
            pixels = (255 * np.clip(floats, 0, 1)).round().astype(np.uint8)
        if pixels.ndim == 2:
            pixels = pixels[..., None]
        images = [_enlarge(image) for image in (pixels if pixels.ndim == 4 else pixels[None])]
        gap = np.full([images[0].shape[0], _GAP, images[0].shape[2]], _WHITE, np.uint8)
        row = np.concatenate([part for image in images for part in (image, gap)][:-1], axis=1)
        return np.broadcast_to(row, [*row.shape[:2], 3])


class Audio(NamedTuple):
    """Sounds that a reader can play, one below the other.

    Each waveform is [L, C], with any L: int16, or floats from -1 to 1; an array [N, L, C] holds N
    of one length. Floats beyond -1..1 are clipped. `captions` has a text per sound, or is empty.
    """

    waveforms: Sequence[np.ndarray] | np.ndarray
    sample_rate: int  # samples per second
    captions: Sequence[str] = ()

    def problem(self) -> str:
        """Returns why the sounds cannot be played, in words; "" if they can."""
        if not isinstance(self.waveforms, (list, tuple, np.ndarray)):
            return "the waveforms of an Audio are no list of arrays [L, C]"
        arrays = [np.asarray(waveform) for waveform in self.waveforms]
        for array in arrays:
            if array.ndim != 2 or not 1 <= array.shape[1] <= _MAX_CHANNELS:
                return f"a waveform of an Audio has shape {list(array.shape)}, not [L, C]"
            if array.dtype != np.int16 and array.dtype.kind != "f":
                return f"a waveform of an Audio is {array.dtype}: take int16, or floats in -1..1"
        rate = self.sample_rate
        if not isinstance(rate, numbers.Integral) or not 1 <= rate <= _MAX_RATE:
            return f"the sample_rate of an Audio is {rate!r}, not an int of 1 to {_MAX_RATE:,}"
        if self.captions and len(self.captions) != len(arrays):
            return f"an Audio has {len(arrays)} waveforms, but {len(self.captions)} captions"
        return "" if arrays else "an Audio has no waveform"

    def to_wav(self) -> list[bytes]:
        """Returns each sound as a WAV file of 16 bits.

        >>> (file,) = Audio([np.zeros([3, 1], np.int16)], 8000).to_wav()
        >>> len(file) - 44, file[:4]
        (6, b'RIFF')
        """
        return [
            wav_file(np.asarray(one), sample_rate=int(self.sample_rate)) for one in self.waveforms
        ]

    def to_markdown(self) -> list[str]:
        """Returns each caption in Markdown, with characters escaped, so that it is shown as is."""
        captions = self.captions or [""] * len(self.waveforms)
        return [_escape(caption) for caption in captions]


class Histogram(NamedTuple):
    """A histogram of floats or integers of any shape; values that are not finite are left out."""

    values: np.ndarray

    def problem(self) -> str:
        """Returns why the histogram cannot be shown, in words; "" if it can."""
        dtype = np.asarray(self.values).dtype
        return "" if dtype.kind in "fiub" else f"the values of a Histogram are {dtype}, not numbers"

    def finite(self) -> np.ndarray:
        """Returns the finite values, float64 [number of finite values]."""
        values = np.asarray(self.values, np.float64).ravel()
        return values[np.isfinite(values)]


class Text(NamedTuple):
    """A text in Markdown."""

    markdown: str

    def problem(self) -> str:
        """Returns why the text cannot be shown, in words; "" if it can."""
        kind = type(self.markdown).__name__
        return "" if isinstance(self.markdown, str) else f"a Text holds a {kind}, not a str"


class TokenIds(tuple[Sequence[int], ...]):
    """A table column: each cell has token ids, and each id is shown as its token's text."""

    __slots__ = ()


class Table(NamedTuple):
    """A table: {title of a column: the cells of the column, from top to bottom}.

    Columns are lists or arrays of one length; cells are texts, numbers or bools. A column of
    `TokenIds` is shown as texts where there is a tokenizer, else as numbers.
    """

    columns: Mapping[str, Sequence[Any] | np.ndarray]

    def problem(self) -> str:
        """Returns why the table cannot be shown, in words; "" if it can."""
        if not (isinstance(self.columns, Mapping) and self.columns):
            return "a Table has no columns: it takes {title: [cells]}"
        for title, column in self.columns.items():
            if isinstance(column, str) or not hasattr(column, "__len__"):
                return f"the column {title!r} of a Table is not a list of cells"
        sizes = {title: len(column) for title, column in self.columns.items()}
        if len(set(sizes.values())) > 1:
            return f"the columns of a Table have different numbers of cells: {sizes}"
        return ""

    def with_texts(self, decode: Callable[[Sequence[int]], str]) -> Table:
        """Returns the table with the text of each token, quoted, in place of its id.

        >>> Table({"tokens": TokenIds([[97, 98]])}).with_texts(lambda ids: chr(ids[0])).columns
        {'tokens': ["'a' 'b'"]}
        """
        columns = {
            title: [" ".join(repr(decode([token])) for token in cell) for cell in column]
            if isinstance(column, TokenIds)
            else column
            for title, column in self.columns.items()
        }
        return Table(columns)

    def to_markdown(self) -> str:
        """Returns the table in Markdown, with cells escaped, so that they are shown as they are.

        >>> print(Table({"text": ["a|b"], "loss": [0.123456]}).to_markdown())
        | text | loss |
        |---|---|
        | a&#124;b | 0.12346 |
        """
        columns = [list(column)[:MAX_ROWS] for column in self.columns.values()]
        lines = [
            [_escape(title) for title in self.columns],
            *([_cell(value) for value in row] for row in zip(*columns, strict=True)),
        ]
        rows = [f"| {' | '.join(line)} |" for line in lines]
        rows.insert(1, "|" + "---|" * len(columns))
        num_hidden = len(next(iter(self.columns.values()))) - MAX_ROWS
        return "\n".join(rows) + (f"\n\n{num_hidden:,} more rows" if num_hidden > 0 else "")


Media: TypeAlias = Image | Audio | Histogram | Text | Table
"""The values that a task may show in addition to numbers."""


def media_problem(summary: Any) -> str:
    """Returns why a value cannot be shown as Media or a number, in words; "" if it can.

    >>> media_problem(0.5), media_problem("a")
    ('', 'it is a str')
    """
    if isinstance(summary, (Image, Audio, Histogram, Text, Table)):
        return summary.problem()
    return "" if _is_number(summary) else f"it is a {type(summary).__name__}"


def _enlarge(pixels: np.ndarray) -> np.ndarray:
    """Enlarges every pixel of [H, W, C] to a square, so that the shorter side can be seen."""
    times = max(1, _SMALLEST_SIDE // min(pixels.shape[:2]))
    return pixels.repeat(times, axis=0).repeat(times, axis=1)


def wav_file(waveform: np.ndarray, *, sample_rate: int) -> bytes:
    """Returns a waveform [L, C], int16 or floats in -1..1, as a WAV file of 16 bits.

    >>> len(wav_file(np.zeros([8, 1], np.int16), sample_rate=8_000))
    60
    """
    if waveform.dtype != np.int16:
        floats = np.nan_to_num(waveform.astype(np.float64), nan=0.0)
        waveform = np.round(np.clip(floats, -1, 1) * _FULL_SCALE).astype(np.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as stream:
        stream.setparams((waveform.shape[1], 2, sample_rate, 0, "NONE", ""))
        stream.writeframes(waveform.astype("<i2").tobytes())
    return file.getvalue()


def _is_number(value: Any) -> bool:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    return isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))


def _cell(value: Any) -> str:
    if not _is_number(value):
        return _escape(value.decode(errors="replace") if isinstance(value, bytes) else str(value))
    return str(value) if isinstance(value, numbers.Integral) else f"{float(value):.{_DIGITS}g}"


def _escape(text: str) -> str:
    """Returns a text in one line, with entities for all characters that Markdown might change."""
    line = text.replace("\r", "").replace("\n", "\u23ce ")
    return "".join(c if c.isalnum() or c in " .,:;'" else f"&#{ord(c)};" for c in line)
