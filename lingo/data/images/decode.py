"""Decodes and resizes JPEG and PNG by TensorFlow; of a JPEG, only the part that is seen.

One program decodes all images of a batch; the processors work on several images at once.

Axes: B images, H height, W width, C channels.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.data.images.header import MAX_PIXELS, SCAN, BrokenImage, Header, Turn, segments
from lingo.data.images.view import Window
from lingo.ops.image.box import Box

Channels = Literal[1, 3]
"""Grey, or red, green and blue."""

_END = b"\xff\xd9"  # the last bytes of a JPEG
_MISSING_LEVEL = 128  # value of all colours where the data of a JPEG ended early
_MORE_DATA = bytes(range(1, 251)) * 8  # bytes that a JPEG may have in its pixels
_DIVISORS = (1, 2, 4, 8)  # numbers by which a JPEG decoder can divide the size
_LARGE_PIXELS = 1 << 22  # a larger PNG is shrunk in bands of rows, to save memory
_BAND_PIXELS = 1 << 20


class Part(NamedTuple):
    """A part of an image that is to be decoded."""

    data: bytes  # JPEG or PNG
    box: Box  # in the image as it is stored
    turn: Turn  # turns it to the upright, perhaps mirrored, part that is seen
    whole_pixels: int  # pixels of the whole image if its decoder holds them all; else 0
    inset: Inset | None = None  # its place in the result before the turn; None: it fills the result


class Inset(NamedTuple):
    """The rectangle of a result, at one of its corners, that a part fills; the rest is black."""

    height: int
    width: int
    is_below: bool  # at the lower rim instead of the upper one
    is_right: bool  # at the right rim instead of the left one


def part_of(data: bytes, header: Header, window: Window) -> Part:
    """Returns the part of an image that is seen through a window of the upright image."""
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
    whole_pixels = header.height * header.width if header.decodes_whole else 0
    inset = _inset_of(window.shown, turn) if window.shown is not None else None
    return Part(data, box, mirrored, whole_pixels, inset)


def _inset_of(shown: tuple[int, int], turn: Turn) -> Inset:
    """Returns the inset that a turn brings to the upper left, (height, width) after the turn."""
    height, width = shown
    if turn.is_transposed:
        return Inset(width, height, turn.reverses_columns, turn.reverses_rows)
    return Inset(height, width, turn.reverses_rows, turn.reverses_columns)


class PixelBudget:
    """Bounds how many pixels all threads decode at once, and so their memory."""

    def __init__(self, max_pixels: int = MAX_PIXELS) -> None:
        self.max_pixels = max_pixels
        self._used = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        """Waits until the pixels fit into the budget or none are in use, then takes them."""
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + pixels <= self.max_pixels)
            self._used += pixels
        try:
            yield
        finally:
            with self._changed:
                self._used -= pixels
                self._changed.notify_all()


def decode_into(images: np.ndarray, parts: Sequence[Part], budget: PixelBudget) -> None:
    """Decodes parts of images, resizes them, and writes them into an array.

    If a part has at least twice the pixels that are needed, along each side, its size is first
    divided by 2, 4 or 8 (by the decoder for a JPEG): a pixel is then the mean of a square. The rest
    of the resizing is bilinear, with half-pixel centers. C decides whether grey becomes three equal
    channels, or colour becomes grey. CMYK becomes RGB, 16 bits become 8, and alpha is dropped. JPEG
    stores colour at half the resolution, so colours at the rim of a part may differ from those of
    the whole image.

    Args:
        images: uint8 [B, H, W, C], the output.
        parts: [B], of images whose headers were read.
        budget: the pixels that may be decoded at once; all threads share one budget.

    Raises:
        BrokenImage: if an image cannot be decoded.
    """
    size, channels = images.shape[1:3], images.shape[3]
    forms = [_form(part, size) for part in parts]
    pixels = [_held_pixels(part, form) for part, form in zip(parts, forms, strict=True)]
    for form in sorted(set(forms)):
        own = [row for row, other in enumerate(forms) if other == form]
        for rows in _batches(own, pixels, budget.max_pixels):
            some = [parts[row] for row in rows]
            with _tensorflow_errors(), budget.take(_held_at_a_time([pixels[row] for row in rows])):
                if len(some) == 1 and not form.is_jpeg and pixels[rows[0]] > _LARGE_PIXELS:
                    decoded = _decode_large_png(some[0], form, channels)
                else:
                    decoded = _decode_together(some, form, channels)
            if form.is_jpeg:
                _check_complete(decoded, some)
            where = rows if len(rows) < len(parts) else ...  # without an index, copying is faster
            images[where] = decoded.transpose(0, 2, 1, 3) if form.is_transposed else decoded
    for image, part in zip(images, parts, strict=True):
        _turn(image, part.turn)


def _check_complete(images: np.ndarray, parts: Sequence[Part]) -> None:
    """Raises BrokenImage for a JPEG that was decoded although the data of its pixels ends early.

    `images` are the parts before their turns, uint8 [B, H, W, C].

    The decoder makes missing pixels grey, without an error. Few sound images end in this grey. An
    image that does is decoded again with more data, which changes it only if data was missing.
    """
    for image, part in zip(images, parts, strict=True):
        row, ends = _last_row(part, image.shape)
        is_grey = (image[row, ends] == _MISSING_LEVEL).all(-1).any()
        if is_grey and _lacks_data(part.data):
            raise BrokenImage("it is cut short: the data of its pixels ends early")


def _last_row(part: Part, shape: tuple[int, ...]) -> tuple[int, list[int]]:
    """Returns the last row of a decoded part in an image [H, W, C], and its outer columns."""
    whole_height, whole_width = shape[:2]
    if part.inset is None:
        return whole_height - 1, [0, whole_width - 1]
    height, width, is_below, is_right = part.inset
    first = whole_width - width if is_right != _is_mirrored(part.turn) else 0
    return whole_height - 1 if is_below else height - 1, [first, first + width - 1]


def _lacks_data(data: bytes) -> bool:
    """Returns whether more data before the end marker of a JPEG would change its pixels."""
    start = next((at for marker, at in segments(data) if marker == SCAN), len(data))
    end = data.find(_END, start)
    if end < 0:
        return False
    longer = data[:end] + _MORE_DATA + data[end:]
    with tf.device("CPU:0"), _tensorflow_errors():
        before, after = (tf.io.decode_jpeg(d, channels=1, ratio=8) for d in (data, longer))
        return not np.array_equal(before.numpy(), after.numpy())


@contextlib.contextmanager
def _tensorflow_errors() -> Iterator[None]:
    """Turns TensorFlow's errors about damaged images into BrokenImage."""
    try:
        yield
    except tf.errors.OpError as error:
        reason = error.message.partition("\t [[")[0].strip().rpartition("\n")[-1]
        raise BrokenImage(reason.rstrip(".")) from None


class _Form(NamedTuple):
    """The kind of image parts that one compiled program decodes."""

    is_jpeg: bool
    divisor: int  # divides height and width while decoding
    has_insets: bool
    size: tuple[int, int]  # H and W of the images that it makes, before their turns
    is_transposed: bool  # whether their turns exchange rows and columns


def _form(part: Part, size: tuple[int, int]) -> _Form:
    is_transposed, box = part.turn.is_transposed, part.box
    size = size[::-1] if is_transposed else size
    height, width = size if part.inset is None else part.inset[:2]
    enough = [n for n in _DIVISORS if box.height >= n * height and box.width >= n * width]
    is_jpeg = part.data.startswith(b"\xff\xd8")
    return _Form(is_jpeg, max(enough, default=1), part.inset is not None, size, is_transposed)


def _held_pixels(part: Part, form: _Form) -> int:
    """Returns how many pixels are in memory while a part is decoded."""
    box = part.box
    return max(part.whole_pixels, box.height * box.width // form.divisor**2)


def _held_at_a_time(pixels: Sequence[int]) -> int:
    """Returns how many pixels a program holds at once, as it decodes one image per processor."""
    return sum(heapq.nlargest(os.cpu_count() or 1, pixels))


def _batches(rows: list[int], pixels: Sequence[int], max_pixels: int) -> Iterator[list[int]]:
    """Yields groups of row indices that are decoded together; a large image is a group alone."""
    small = [row for row in rows if pixels[row] <= _LARGE_PIXELS]
    yield from ([row] for row in rows if pixels[row] > _LARGE_PIXELS)
    if _held_at_a_time([pixels[row] for row in small]) <= max_pixels:
        if small:
            yield small
        return
    num = max(1, max_pixels // _LARGE_PIXELS)
    yield from (small[start : start + num] for start in range(0, len(small), num))


def _decode_together(parts: Sequence[Part], form: _Form, channels: Channels) -> np.ndarray:
    """Decodes parts of the same form by one program; returns uint8 [B, H, W, C]."""
    data = tf.constant([part.data for part in parts])
    boxes = np.array([part.box for part in parts], np.int32)
    mirrored = np.array([_is_mirrored(part.turn) for part in parts])
    insets = np.array([part.inset or (*form.size, 0, 0) for part in parts], np.int32)
    decoded: Any = _program(form, channels)(data, boxes, mirrored, insets)
    return np.asarray(memoryview(decoded))


def _decode_large_png(part: Part, form: _Form, channels: Channels) -> np.ndarray:
    """Decodes part of a PNG as `_program` does, in less memory; returns uint8 [1, H, W, C]."""
    divisor = form.divisor
    with tf.device("CPU:0"):
        whole: Any = tf.io.decode_png(part.data, channels=channels)
        seen = np.asarray(memoryview(whole))[part.box.slices]
        if divisor == 1:
            image = tf.constant(seen)
        else:
            height, width = (side // divisor * divisor for side in seen.shape[:2])
            step = max(1, _BAND_PIXELS // (width * divisor)) * divisor
            bands = [seen[at : min(at + step, height), :width] for at in range(0, height, step)]
            image = tf.concat([_mean_of_squares(tf.constant(band), divisor) for band in bands], 0)
        inset = None if part.inset is None else tf.constant(np.array(part.inset, np.int32))
        resized = _resize(image, form.size, inset).numpy()
    return resized[None, :, ::-1] if _is_mirrored(part.turn) else resized[None]


@functools.cache
def _program(form: _Form, channels: Channels) -> Callable[..., tf.Tensor]:
    """Returns the program that decodes parts of one form and mirrors some of them.

    The program takes encoded images (bytes [B]), boxes (int32 [B, 4]), whether to mirror each
    image (bool [B]) and insets (int32 [B, 4], read if the form has insets), and returns uint8
    [B, H, W, C].
    """

    def decode_one(
        data: tf.Tensor, box: tf.Tensor, is_mirrored: tf.Tensor, inset: tf.Tensor
    ) -> tf.Tensor:
        crop = _crop_jpeg if form.is_jpeg else _crop_png
        image = crop(data, box, form.divisor, channels)
        image = _resize(image, form.size, inset if form.has_insets else None)
        return tf.cond(is_mirrored, lambda: tf.reverse(image, [1]), lambda: image)

    four = tf.TensorSpec([4], tf.int32)
    specs = [tf.TensorSpec([], tf.string), four, tf.TensorSpec([], tf.bool), four]
    one = tf.function(decode_one, autograph=False).get_concrete_function(*specs)

    def decode_all(*arguments: tf.Tensor) -> tf.Tensor:
        with tf.device("CPU:0"):
            (images,) = tf.raw_ops.MapDefun(  # tf.map_fn, without its loop: a sixth faster
                arguments=arguments,
                captured_inputs=[],
                output_types=[tf.uint8],
                output_shapes=[[*form.size, channels]],
                f=one,
            )
        return images

    several = [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in specs]
    return tf.function(decode_all, input_signature=several, autograph=False)


def _resize(image: tf.Tensor, size: tuple[int, int], inset: tf.Tensor | None) -> tf.Tensor:
    """Returns an image resized to uint8 [H, W, C], or to an inset of it: int32 [4] of `Inset`."""
    if inset is None:
        return tf.cast(tf.image.resize(image, size) + 0.5, tf.uint8)
    height, width, is_below, is_right = tf.unstack(inset)
    resized = tf.cast(tf.image.resize(image, [height, width]) + 0.5, tf.uint8)
    top, left = is_below * (size[0] - height), is_right * (size[1] - width)
    padding = [[top, size[0] - height - top], [left, size[1] - width - left], [0, 0]]
    return tf.ensure_shape(tf.pad(resized, padding), [*size, image.shape[2]])


def _crop_jpeg(data: tf.Tensor, box: tf.Tensor, divisor: int, channels: Channels) -> tf.Tensor:
    """Returns a part of a JPEG, uint8 [H, W, C]."""
    return tf.io.decode_and_crop_jpeg(
        data,
        box // divisor,
        channels=channels,
        ratio=divisor,
        dct_method="INTEGER_ACCURATE",  # as in Pillow
    )


def _crop_png(data: tf.Tensor, box: tf.Tensor, divisor: int, channels: Channels) -> tf.Tensor:
    """Returns a part of a PNG, float32 [H, W, C]."""
    row, column, height, width = tf.unstack(box)
    whole = tf.io.decode_png(data, channels=channels)
    image = whole[row : row + height, column : column + width]
    return tf.cast(image, tf.float32) if divisor == 1 else _mean_of_squares(image, divisor)


def _mean_of_squares(image: tf.Tensor, side: int) -> tf.Tensor:
    """Returns the mean of each square of an image [H, W, C], float32 [H / side, W / side, C]."""
    return tf.nn.avg_pool2d(tf.cast(image, tf.float32)[None], side, side, "VALID")[0]


def _turn(image: np.ndarray, turn: Turn) -> None:
    """Reverses rows and columns of an image [H, W, C] in place, unless `_program` has done it."""
    if turn.is_transposed and turn.reverses_columns:
        image[:] = image[:, ::-1].copy()
    if turn.reverses_rows:
        image[:] = image[::-1].copy()


def _is_mirrored(turn: Turn) -> bool:
    """Returns whether `_program` mirrors an image; NumPy would take ten times as long."""
    return turn.reverses_columns and not turn.is_transposed
