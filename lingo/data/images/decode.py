"""JPEG and PNG, decoded and resized by TensorFlow: of a JPEG no more than the part that is seen.

Pillow reads headers; the rest is one program for all images of a batch, in which the processors
work on several images at a time.

Axes: B images, H height, W width, C channels.
"""

from __future__ import annotations

import functools
import io
import re
import struct
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from PIL import ExifTags, Image

from lingo.config.lazy import tf
from lingo.data.images.view import Window
from lingo.ops.image.box import Box

Channels = Literal[1, 3]
"""Grey, or red, green and blue."""

_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error)  # of headers, by Pillow
_AT_A_TIME = 32  # images that the program may work on
_DIVISORS = (1, 2, 4, 8)  # of the size, that the decoder of a JPEG knows
_PLUMBING = re.compile(r"^\{\{.*?\}\} | *\[(\[|Op:).*$")  # of TensorFlow's errors


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
        size = self.height, self.width
        return size[::-1] if self.turn.is_transposed else size


def read_header(data: bytes) -> Header:
    """Returns the header of a JPEG or PNG; raises BrokenImage if it is neither."""
    try:
        image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
        orientation = 1
        if "exif" in image.info:
            orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except (*_ERRORS, Image.DecompressionBombError) as error:
        raise BrokenImage(f"its header is damaged: {error}") from error
    return Header(image.height, image.width, _TURNS.get(orientation, Turn()))


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


def decode(parts: Sequence[Part], *, size: int, channels: Channels) -> np.ndarray:
    """Decodes parts of images and resizes them.

    A part with at least twice the pixels that are needed, along each side, is divided by 2, 4 or 8
    first, a JPEG by its decoder: a pixel is then the mean of a square. What remains is bilinear,
    with a pixel's center at its middle. Grey becomes equal channels, and colour becomes grey, as
    asked for; CMYK becomes RGB; 16 bits become 8; alpha is dropped.

    Args:
        parts: [B], of images whose headers were read.
        size: H and W of the results, in pixels.
        channels: C.

    Returns:
        uint8 [B, H, W, C].

    Raises:
        BrokenImage: if one cannot be decoded.
    """
    data = [part.data for part in parts]
    boxes = np.array([part.box for part in parts], np.int32).reshape(-1, 4)
    turns = np.array([part.turn for part in parts], bool).reshape(-1, 3)
    try:
        with tf.device("CPU:0"):
            return _program(size, channels)(tf.constant(data, tf.string), boxes, turns).numpy()
    except tf.errors.OpError as error:
        raise BrokenImage(_reason(error.message)) from None


@functools.cache
def _program(size: int, channels: Channels) -> Callable[..., tf.Tensor]:
    """Returns the program of `decode`, of data [B], boxes int32 [B, 4] and turns bool [B, 3]."""
    specs = [
        tf.TensorSpec([None], tf.string),
        tf.TensorSpec([None, 4], tf.int32),
        tf.TensorSpec([None, 3], tf.bool),
    ]
    pixels = tf.TensorSpec([size, size, channels], tf.uint8)

    def decode_part(part: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        data, box, turn = part
        image = tf.cond(
            tf.strings.substr(data, 0, 2) == b"\xff\xd8",
            lambda: tf.image.resize(_crop_jpeg(data, box, size, channels), [size, size]),
            lambda: tf.image.resize(_crop_png(data, box, size, channels), [size, size]),
        )
        return _turn(tf.cast(image + 0.5, tf.uint8), turn)

    def decode_parts(data: tf.Tensor, boxes: tf.Tensor, turns: tf.Tensor) -> tf.Tensor:
        return tf.map_fn(
            decode_part,
            (data, boxes, turns),
            fn_output_signature=pixels,
            parallel_iterations=_AT_A_TIME,
        )

    return tf.function(decode_parts, input_signature=specs, autograph=False)


def _crop_jpeg(data: tf.Tensor, box: tf.Tensor, size: int, channels: Channels) -> tf.Tensor:
    """Returns a part of a JPEG, uint8 [H, W, C], divided by a number of `_DIVISORS`."""

    def crop(divisor: int) -> tf.Tensor:
        return tf.io.decode_and_crop_jpeg(
            data,
            box // divisor,
            channels=channels,
            ratio=divisor,
            dct_method="INTEGER_ACCURATE",  # that of Pillow; as fast
        )

    branches = [functools.partial(crop, divisor) for divisor in _DIVISORS]
    return tf.switch_case(_divisor_index(box, size), branches)


def _crop_png(data: tf.Tensor, box: tf.Tensor, size: int, channels: Channels) -> tf.Tensor:
    """Returns a part of a PNG, float32 [H, W, C], divided by a number of `_DIVISORS`."""
    row, column, height, width = tf.unstack(box)
    whole = tf.io.decode_png(data, channels=channels)
    image = whole[row : row + height, column : column + width]
    divisor = tf.gather(_DIVISORS, _divisor_index(box, size))
    rows, columns = height // divisor, width // divisor
    squares = image[: rows * divisor, : columns * divisor]
    squares = tf.reshape(squares, [rows, divisor, columns, divisor, channels])
    return tf.reduce_mean(tf.cast(squares, tf.float32), [1, 3])


def _divisor_index(box: tf.Tensor, size: int) -> tf.Tensor:
    """Returns the index of the largest of `_DIVISORS` that leaves enough of a box, int32 []."""
    enough = tf.reduce_min(box[2:]) >= size * tf.constant(_DIVISORS[1:])
    return tf.reduce_sum(tf.cast(enough, tf.int32))


def _turn(image: tf.Tensor, turn: tf.Tensor) -> tf.Tensor:
    """Returns a square image [H, W, C] after a `Turn`, bool [3]."""
    transpose, reverse_rows, reverse_columns = tf.unstack(turn)
    image = tf.cond(transpose, lambda: tf.transpose(image, [1, 0, 2]), lambda: image)
    image = tf.cond(reverse_rows, lambda: image[::-1], lambda: image)
    return tf.cond(reverse_columns, lambda: image[:, ::-1], lambda: image)


def _reason(message: str) -> str:
    """Returns the part of TensorFlow's error that is about the image."""
    return _PLUMBING.sub("", message.partition("\n")[0])
