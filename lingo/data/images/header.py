"""The size and orientation of a JPEG or PNG, read from its first bytes and checked.

The sizes of PNGs and of ordinary JPEGs are read here; Pillow reads the rest, in ten times the time.
"""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from PIL import ExifTags, Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
)  # Pillow's errors for damaged images
_SEGMENT = struct.Struct(">xBHxHH")  # in a JPEG: marker, length; height and width of a frame
_FRAMES = (0xC0, 0xC2)  # markers of the usual encodings: baseline and progressive
_SKIPPED = {0xC4, 0xDB, 0xDD, 0xE0, *range(0xE2, 0xF0), 0xFE}  # tables, comments, but not EXIF
_EXIF = 0xE1  # the marker of a segment that may say how the image is turned
_PNG_SIZE = struct.Struct(">8s4x4sII")  # start of a PNG: magic bytes, IHDR, width, height
_PNG = b"\x89PNG\r\n\x1a\n"

MAX_PIXELS = 1 << 26
"""The most pixels of an image, and of all images being decoded at once, by default."""

MAX_BYTES = 1 << 27
"""The most bytes of an encoded image."""

SCAN = 0xDA
"""The marker before a JPEG's pixels (start of scan)."""

# Bounds that no sound image exceeds, so that a small file cannot cost hours.
_SURPLUS_BYTES = 1 << 24  # for comments, profiles and thumbnails, beyond 8 bytes per pixel
_HEADER_BYTES = 1 << 23  # the most bytes before the pixels of a PNG
_SEGMENTS = 10_000  # the most segments before the pixels of a JPEG
_JPEG_PIXELS_PER_BYTE = 512  # a block of 64 pixels has at least a bit
_PNG_PIXELS_PER_BYTE = 8 * 1032  # 1 bit per pixel; deflate packs at most 1032 bytes into one
_SCANS = 64  # scans of a JPEG; each scan may change all pixels
_SCANNED_PIXELS = 1 << 32  # pixels times scans, if there are more scans than _SCANS


class BrokenImage(ValueError):
    """Bytes are not an image that can be decoded; the message is the reason."""


class Turn(NamedTuple):
    """How a stored image becomes upright: it is transposed first, then rows or columns reversed."""

    is_transposed: bool = False
    reverses_rows: bool = False
    reverses_columns: bool = False


_TURNS = {  # EXIF orientation -> turn
    1: Turn(),
    2: Turn(reverses_columns=True),
    3: Turn(reverses_rows=True, reverses_columns=True),
    4: Turn(reverses_rows=True),
    5: Turn(is_transposed=True),
    6: Turn(is_transposed=True, reverses_columns=True),
    7: Turn(is_transposed=True, reverses_rows=True, reverses_columns=True),
    8: Turn(is_transposed=True, reverses_rows=True),
}


class Header(NamedTuple):
    """The size and orientation of an image, from its first bytes."""

    height: int  # height of the image as it is stored
    width: int
    turn: Turn
    decodes_whole: bool = True  # whether decoding a part needs memory for all pixels

    @property
    def upright_size(self) -> tuple[int, int]:
        """(height, width) of the image once it is turned."""
        if self.turn.is_transposed:
            return self.width, self.height
        return self.height, self.width


def read_header(data: bytes, *, max_pixels: int = MAX_PIXELS) -> Header:
    """Returns the header of a JPEG or PNG.

    Raises BrokenImage if the data is neither, has more pixels than `max_pixels`, or has too few or
    too many bytes for its pixels.
    """
    frame = _png_frame(data) if data.startswith(_PNG) else _jpeg_frame(data)
    if frame is not None:
        _check_size(data, frame, max_pixels)
        if frame.is_plain:
            return Header(frame.height, frame.width, Turn(), frame.decodes_whole)
    with explain_errors():
        image = open_image(data)
        orientation = 1
        if "exif" in image.info:
            orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    if frame is None:
        frame = _Frame(image.height, image.width)
        _check_size(data, frame, max_pixels)
    turn = _TURNS.get(orientation, Turn())
    return Header(image.height, image.width, turn, frame.decodes_whole)


class _Frame(NamedTuple):
    """The size of an image, and other facts that are known without Pillow."""

    height: int
    width: int
    is_plain: bool = False  # whether the image is known to be upright
    decodes_whole: bool = True  # whether decoding a part needs memory for all pixels


def _jpeg_frame(data: bytes) -> _Frame | None:
    """Returns the frame of an ordinary JPEG, in a tenth of Pillow's time; None for any other JPEG.

    A JPEG with a rare encoding or damage is left to Pillow.
    """
    is_plain = True
    for marker, at in segments(data):
        if marker in _FRAMES:
            _, _, height, width = _SEGMENT.unpack_from(data, at)
            # libjpeg buffers the whole image if it has several scans.
            decodes_whole = marker != _FRAMES[0] or _num_scans(data) != 1
            return _Frame(height, width, is_plain, decodes_whole) if height * width else None
        if marker not in _SKIPPED and marker != _EXIF:
            return None
        is_plain = is_plain and marker != _EXIF
    return None


def segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields the marker and the first byte of each segment of a JPEG, up to its pixels."""
    at = 2
    for _ in range(_SEGMENTS):
        if data[at : at + 1] != b"\xff" or at + _SEGMENT.size > len(data):
            return
        marker, length, _, _ = _SEGMENT.unpack_from(data, at)
        yield marker, at
        at += 2 + length
    raise BrokenImage(f"it has {_SEGMENTS:,} segments before its pixels")


def _png_frame(data: bytes) -> _Frame | None:
    """Returns the frame of a PNG; None if its first chunk does not have it."""
    if len(data) < _PNG_SIZE.size:
        return None
    _, chunk, width, height = _PNG_SIZE.unpack_from(data)
    if chunk != b"IHDR" or not height * width:
        return None
    if data.find(b"IDAT", 0, _HEADER_BYTES) < 0:
        raise BrokenImage(f"it has no pixels in its first {min(_HEADER_BYTES, len(data)):,} bytes")
    return _Frame(height, width)


def _check_size(data: bytes, frame: _Frame, max_pixels: int) -> None:
    """Raises BrokenImage if an image has too many pixels, or bytes that do not fit their number."""
    size, pixels = f"{frame.width:,} x {frame.height:,} pixels", frame.height * frame.width
    if pixels > max_pixels:
        raise BrokenImage(f"it has {size}, more than {max_pixels:,}, the max_pixels of an input")
    is_png = data.startswith(_PNG)
    if pixels > len(data) * (_PNG_PIXELS_PER_BYTE if is_png else _JPEG_PIXELS_PER_BYTE):
        raise BrokenImage(f"most of it is missing: {size} do not fit into {len(data):,} bytes")
    if len(data) > 8 * pixels + _SURPLUS_BYTES:
        raise BrokenImage(f"its {len(data):,} bytes are too many for {size}")
    scans = 0 if is_png else _num_scans(data)
    if scans > _SCANS and scans * pixels > _SCANNED_PIXELS:
        raise BrokenImage(f"it has {scans:,} scans, too many for {size}")


def _num_scans(data: bytes) -> int:
    return data.count(bytes([0xFF, SCAN]))


def open_image(data: bytes) -> Image.Image:
    """Returns a JPEG or PNG of any size, not decoded yet; raises BrokenImage for anything else."""
    kind = PngImageFile if data.startswith(_PNG) else JpegImageFile
    try:
        return kind(io.BytesIO(data))  # Image.open would warn of a size that `max_pixels` allows
    except _ERRORS as error:  # Pillow's message is for programmers
        raise BrokenImage("its header is cut off or damaged") from error


@contextlib.contextmanager
def explain_errors() -> Iterator[None]:
    """Turns Pillow's errors about damaged images into BrokenImage."""
    try:
        yield
    except BrokenImage:
        raise
    except _ERRORS as error:
        raise BrokenImage(str(error).rstrip(".")) from error
