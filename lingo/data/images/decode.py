"""JPEG and PNG, decoded and resized by TensorFlow: of a JPEG no more than the part that is seen.

Pillow reads headers, except those of ordinary JPEGs; the rest is one program for all images of a
batch, in which the processors work on several images at a time.

Axes: B images, H height, W width, C channels.
"""

from __future__ import annotations

import contextlib
import functools
import io
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from lingo.config.lazy import tf
from lingo.data.images.view import Window
from lingo.ops.image.box import Box

Channels = Literal[1, 3]
"""Grey, or red, green and blue."""

_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
)  # of Pillow, about damaged images
_SEGMENT = struct.Struct(">xBHxHH")  # of a JPEG: marker, length; height and width of a frame
_FRAMES = (0xC0, 0xC2)  # markers of the usual encodings: baseline and progressive
_SKIPPED = {0xC4, 0xDB, 0xDD, 0xE0, *range(0xE2, 0xF0), 0xFE}  # tables, comments, but not EXIF
_MOST_PIXELS = 1 << 26  # Pillow refuses images that are much larger
_DIVISORS = (1, 2, 4, 8)  # of the size, that the decoder of a JPEG knows


class BrokenImage(ValueError):
    """Bytes are not an image that can be decoded; the message is the reason."""


class Turn(NamedTuple):
    """What makes a stored image upright: first rows and columns change places, then they turn."""

    is_transposed: bool = False
    reverses_rows: bool = False
    reverses_columns: bool = False


_TURNS = {  # by EXIF orientation
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
    """What the first bytes of an image say."""

    height: int  # of the image as it is stored
    width: int
    turn: Turn

    @property
    def upright_size(self) -> tuple[int, int]:
        """(height, width) of the image once it is turned."""
        if self.turn.is_transposed:
            return self.width, self.height
        return self.height, self.width


def read_header(data: bytes) -> Header:
    """Returns the header of a JPEG or PNG; raises BrokenImage if it is neither."""
    if (size := _plain_size(data)) is not None:
        return Header(*size, Turn())
    with explain_errors():
        image = open_image(data)
        orientation = 1
        if "exif" in image.info:
            orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return Header(image.height, image.width, _TURNS.get(orientation, Turn()))


def _plain_size(data: bytes) -> tuple[int, int] | None:
    """Returns (height, width) of an ordinary JPEG, in a tenth of Pillow's time; None of others.

    Others have EXIF, which stands before the frame by its standard, a rare encoding, or damage:
    Pillow reads them.
    """
    at = 2
    while data[at : at + 1] == b"\xff" and at + _SEGMENT.size <= len(data):
        marker, length, height, width = _SEGMENT.unpack_from(data, at)
        if marker in _FRAMES and 0 < height * width <= _MOST_PIXELS:
            return height, width
        if marker not in _SKIPPED:
            return None
        at += 2 + length
    return None


def open_image(data: bytes) -> Image.Image:
    """Returns a JPEG or PNG, not decoded yet; Pillow raises errors for anything else."""
    return Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))


@contextlib.contextmanager
def explain_errors() -> Iterator[None]:
    """Turns Pillow's errors about damaged images into BrokenImage."""
    try:
        yield
    except UnidentifiedImageError as error:  # whose message is the address of an object
        raise BrokenImage("its header is cut off or damaged") from error
    except (*_ERRORS, Image.DecompressionBombError) as error:
        raise BrokenImage(str(error).rstrip(".")) from error


class Part(NamedTuple):
    """A part of an image that is to be decoded."""

    data: bytes  # JPEG or PNG
    box: Box  # of the image as it is stored
    turn: Turn  # what makes it what is seen


def part_of(data: bytes, header: Header, window: Window) -> Part:
    """Returns what is seen of an image through a window of the upright image."""
    turn, (row, column, height, width) = header.turn, window.box
    whole_height, whole_width = header.upright_size
    if turn.reverses_rows:
        row = whole_height - row - height
    if turn.reverses_columns:
        column = whole_width - column - width
    box = Box(row, column, height, width)
    if turn.is_transposed:
        box = Box(column, row, width, height)
    mirrored = turn._replace(reverses_columns=turn.reverses_columns != window.is_mirrored)
    return Part(data, box, mirrored)


def decode_into(images: np.ndarray, parts: Sequence[Part]) -> None:
    """Decodes parts of images, resizes them, and writes them into an array.

    A part with at least twice the pixels that are needed, along each side, is divided by 2, 4 or 8
    first, a JPEG by its decoder: a pixel is then the mean of a square. What remains is bilinear,
    with a pixel's center at its middle. Grey becomes equal channels, and colour becomes grey, as
    asked for; CMYK becomes RGB; 16 bits become 8; alpha is dropped. At its rim, a part of a JPEG
    may differ from that of the whole image in colour, which JPEG stores at half the resolution.

    Args:
        images: uint8 [B, H, W, C], H = W, which receive them.
        parts: [B], of images whose headers were read.

    Raises:
        BrokenImage: if one cannot be decoded.
    """
    size, channels = images.shape[2:]
    forms = [_form(part, size) for part in parts]
    for form in sorted(set(forms)):
        rows = [row for row, other in enumerate(forms) if other == form]
        data = tf.constant([parts[row].data for row in rows])
        boxes = np.array([parts[row].box for row in rows], np.int32)
        mirrored = np.array([_is_mirrored(parts[row].turn) for row in rows])
        try:
            decoded: Any = _program(form, size, channels)(data, boxes, mirrored)
        except tf.errors.OpError as error:
            reason = error.message.partition("\t [[")[0].strip().rpartition("\n")[-1]
            raise BrokenImage(reason.rstrip(".")) from None
        where = rows if len(rows) < len(parts) else ...  # copying all takes less time
        images[where] = memoryview(decoded)
    for image, part in zip(images, parts, strict=True):
        _turn(image, part.turn)


class _Form(NamedTuple):
    """What a program decodes."""

    is_jpeg: bool
    divisor: int  # of the size


def _form(part: Part, size: int) -> _Form:
    enough = [n for n in _DIVISORS if min(part.box.height, part.box.width) >= n * size]
    return _Form(part.data.startswith(b"\xff\xd8"), max(enough, default=1))


@functools.cache
def _program(form: _Form, size: int, channels: Channels) -> Callable[..., tf.Tensor]:
    """Returns the program that decodes parts of one form and mirrors some of them.

    It takes bytes [B], boxes int32 [B, 4] and bool [B], and returns uint8 [B, H, W, C].
    """

    def decode_one(data: tf.Tensor, box: tf.Tensor, is_mirrored: tf.Tensor) -> tf.Tensor:
        crop = _crop_jpeg if form.is_jpeg else _crop_png
        image = tf.image.resize(crop(data, box, form.divisor, channels), [size, size])
        image = tf.cast(image + 0.5, tf.uint8)
        return tf.cond(is_mirrored, lambda: tf.reverse(image, [1]), lambda: image)

    specs = [tf.TensorSpec([], tf.string), tf.TensorSpec([4], tf.int32), tf.TensorSpec([], tf.bool)]
    one = tf.function(decode_one, autograph=False).get_concrete_function(*specs)

    def decode_all(*arguments: tf.Tensor) -> tf.Tensor:
        with tf.device("CPU:0"):
            (images,) = tf.raw_ops.MapDefun(  # tf.map_fn, without its loop: a sixth faster
                arguments=arguments,
                captured_inputs=[],
                output_types=[tf.uint8],
                output_shapes=[[size, size, channels]],
                f=one,
            )
        return images

    several = [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in specs]
    return tf.function(decode_all, input_signature=several, autograph=False)


def _crop_jpeg(data: tf.Tensor, box: tf.Tensor, divisor: int, channels: Channels) -> tf.Tensor:
    """Returns a part of a JPEG, uint8 [H, W, C]."""
    return tf.io.decode_and_crop_jpeg(
        data,
        box // divisor,
        channels=channels,
        ratio=divisor,
        dct_method="INTEGER_ACCURATE",  # that of Pillow
    )


def _crop_png(data: tf.Tensor, box: tf.Tensor, divisor: int, channels: Channels) -> tf.Tensor:
    """Returns a part of a PNG, float32 [H, W, C]."""
    row, column, height, width = tf.unstack(box)
    whole = tf.io.decode_png(data, channels=channels)
    image = tf.cast(whole[row : row + height, column : column + width], tf.float32)
    if divisor == 1:
        return image
    return tf.nn.avg_pool2d(image[None], divisor, divisor, "VALID")[0]


def _turn(image: np.ndarray, turn: Turn) -> None:
    """Turns a square image [H, W, C] in place, as far as `_is_mirrored` does not."""
    if turn.is_transposed:
        step = -1 if turn.reverses_columns else 1
        image[:] = image.transpose(1, 0, 2)[:, ::step].copy()
    if turn.reverses_rows:
        image[:] = image[::-1].copy()


def _is_mirrored(turn: Turn) -> bool:
    """Returns whether the program mirrors an image; NumPy takes ten times as long."""
    return turn.reverses_columns and not turn.is_transposed
