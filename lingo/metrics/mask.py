"""Masks of objects on the host: pasted into images, and read and written as COCO's run lengths.

A mask of a box has M x M bins, in inputs and predictions alike: uint8 or bool, 0 or 1, or floats,
the probability that the bin belongs to the object.

A mask's run lengths count its pixels column by column: zeros, then ones, then zeros, and so on; the
first count is 0 if the first pixel is a one. COCO has them as lists and, compressed, as texts.

Axes: D masks of an image, H height, W width of an image, M bins of a mask along each side, K runs.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from lingo.config.base.errors import MissingPackage
from lingo.config.params import ParamError

MAX_COUNT = 1 << 26
"""Run lengths in batches are less than this number of pixels: `detection_table` packs two of them
into a float64."""

_SLACK = 1.0  # pixels by which a polygon may exceed its image; pycocotools cuts the excess off
_LEAST_NUMBERS = 6  # of a polygon: three corners
_HEAD = 48  # the code of the character that stands for 0
_LIMIT = 1 << 32  # counts are less, in pycocotools too
_MAX_SHIFT = 30  # bits of a number before its last character: 7 characters hold any difference


def paste_masks(masks: np.ndarray, boxes: np.ndarray, *, size: tuple[int, int]) -> np.ndarray:
    """Returns masks in the pixels of their image, bool [D, H, W]; see `paste_mask`.

    Args:
        masks: [D, M, M], in 0..1, any type: the mask inside each box.
        boxes: [D, 4], as fractions of the image.
        size: (H, W).

    >>> paste_masks(np.ones([1, 2, 2]), np.array([[0, 0.5, 1, 1]]), size=(1, 4)).astype(int)
    array([[[0, 0, 1, 1]]])
    """
    pasted = [paste_mask(mask, box, size=size) for mask, box in zip(masks, boxes, strict=True)]
    return np.array(pasted, bool).reshape(-1, *size)


def paste_mask(mask: np.ndarray, box: np.ndarray, *, size: tuple[int, int]) -> np.ndarray:
    """Returns a box's mask in the pixels of its image, bool [H, W] (He et al. 2017, sec. 3.1).

    A pixel belongs to the mask if the bilinear interpolation at its centre is at least 1/2. Bins
    outside of the box are 0.

    Args:
        mask: [M, M], in 0..1, any type.
        box: [4]: (top, left, bottom, right) as fractions of the image; it may exceed the image.
        size: (H, W).

    Raises ValueError for a mask with levels above 1, such as 0..255.

    >>> paste_mask(np.array([[1, 0]] * 2, np.uint8), np.array([0, 0, 1, 1]), size=(1, 4))
    array([[ True,  True, False, False]])
    """
    if (most := mask.max()) > 1:
        raise ValueError(f"a mask has the level {most}, but masks are in 0..1: divide by {most}")
    pasted = np.zeros(size, bool)
    top, left, bottom, right = np.asarray(box, np.float64).tolist()
    if not (top < bottom and left < right):
        return pasted
    padded = np.pad(np.asarray(mask, np.float64), (1, 2))
    rows, below, down = _places(top * size[0], bottom * size[0], size[0], len(mask))
    columns, before, across = _places(left * size[1], right * size[1], size[1], len(mask))
    down = down[:, None]
    tall = (1 - down) * padded[below] + down * padded[below + 1]  # [rows, M + 3]
    values = (1 - across) * tall[:, before] + across * tall[:, before + 1]
    pasted[rows, columns] = values >= 0.5
    return pasted


def _places(
    low: float, high: float, num_pixels: int, num_bins: int
) -> tuple[slice, np.ndarray, np.ndarray]:
    """Returns the pixels that a side of a box, low..high in pixels, can reach, and their places.

    A place is the index of the bin before the pixel's centre, counted from a bin of zeros, and the
    distance from the bin's centre, in bins.
    """
    first, last = max(0, math.floor(low)), min(num_pixels, math.ceil(high))
    pixels = slice(first, max(first, last))
    points = (np.arange(pixels.start, pixels.stop) + 0.5 - low) / (high - low) * num_bins - 0.5
    points = points.clip(-1, num_bins)
    before = np.floor(points)
    return pixels, before.astype(np.int64) + 1, points - before


# ---- run lengths ---------------------------------------------------------------------------------


def run_lengths(mask: np.ndarray) -> np.ndarray:
    """Returns the run lengths of a mask, [H, W] of any type: int32 [K].

    >>> run_lengths(np.array([[0, 1], [1, 1]]))
    array([1, 3], dtype=int32)
    """
    pixels = (np.asarray(mask) != 0).ravel(order="F")
    changes = np.flatnonzero(np.diff(pixels, prepend=False))
    return np.diff(changes, prepend=0, append=len(pixels)).astype(np.int32)


def write_run_lengths(counts: Sequence[int] | np.ndarray, row: np.ndarray, *, where: str) -> None:
    """Writes run lengths into the first elements of `row`, int32 [max_runs].

    Raises ParamError, which begins with `where`, if the row is too short, or a count is not below
    `MAX_COUNT`.

    >>> row = np.zeros(3, np.int32)
    >>> write_run_lengths([1, 3], row, where="a glyph")
    >>> row
    array([1, 3, 0], dtype=int32)
    """
    if len(counts) > len(row):
        raise ParamError(
            f"{where} has a mask of {len(counts)} runs, more than max_runs={len(row)}: set it to"
            f" {len(counts)} or more"
        )
    if (most := np.max(counts, initial=0)) >= MAX_COUNT:
        raise ParamError(
            f"{where} has a mask with a run of {most:,} pixels, and average precisions take runs"
            f" below {MAX_COUNT:,}: make the image smaller, or leave max_runs unset"
        )
    row[: len(counts)] = counts


def fill_run_lengths(counts: Sequence[int] | np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Returns the mask of run lengths, [K] and perhaps zeros at the end: bool [H, W].

    Raises ValueError for a negative count, and unless the counts add up to the pixels of `size`,
    (H, W).

    >>> fill_run_lengths([1, 3], (2, 2)).astype(int)
    array([[0, 1],
           [1, 1]])
    """
    counts = np.asarray(counts, np.int64)
    _check_counts(counts, size)
    is_one = np.arange(len(counts)) % 2 == 1
    return np.repeat(is_one, counts).reshape(size, order="F")


def compress_run_lengths(counts: Sequence[int] | np.ndarray) -> str:
    """Returns run lengths, int [K], as the text of COCO's result files.

    Each count from the fourth on is written as its difference from the count two places before.
    A number has five bits per character, low bits first; the sixth bit says that another character
    follows.

    >>> compress_run_lengths([6, 1, 40, 4])
    '61X13'
    """
    text = []
    numbers = np.asarray(counts).tolist()
    for i, count in enumerate(numbers):
        rest = count - numbers[i - 2] if i > 2 else count
        more = True
        while more:
            bits, rest = rest & 31, rest >> 5
            more = rest != (-1 if bits & 16 else 0)  # the fifth bit is the sign
            text.append(chr(_HEAD + bits + 32 * more))
    return "".join(text)


def expand_run_lengths(text: str) -> np.ndarray:
    """Inverts `compress_run_lengths`: returns the run lengths of a text, int64 [K].

    pycocotools expands a text only into pixels, whose number it does not check.

    Raises:
        ValueError: for a text that is damaged.

    >>> expand_run_lengths("61X13")
    array([ 6,  1, 40,  4])
    """
    counts, number, shift = [], 0, 0
    for character in text:
        code = ord(character) - _HEAD
        if not 0 <= code < 64:
            raise ValueError(f"has the character {character!r} in its counts")
        if shift > _MAX_SHIFT:
            raise ValueError("has a number of more than 7 characters in its counts")
        number |= (code & 31) << shift
        shift += 5
        if code & 32:
            continue
        if code & 16:
            number -= 1 << shift
        counts.append(number + counts[-2] if len(counts) > 2 else number)
        number, shift = 0, 0
    if shift:
        raise ValueError("has counts that end inside a number")
    return np.array(counts, np.int64)


def read_segmentation(segmentation: Any, size: tuple[int, int]) -> list[np.ndarray] | np.ndarray:
    """Checks the `segmentation` of an annotation of COCO's; draws nothing.

    Args:
        segmentation: a list of polygons, each [x, y, x, y, ...] in pixels, or run lengths:
            {"size": [H, W], "counts": list or text}.
        size: (H, W) of the image.

    Returns:
        Polygons, float64 [numbers] each, or run lengths, int64 [K].

    Raises:
        ValueError: what is wrong, as the end of a sentence whose subject is the annotation.

    >>> read_segmentation({"size": [2, 2], "counts": "13"}, (2, 2))
    array([1, 3])
    """
    if isinstance(segmentation, dict):
        return _read_counts(segmentation, size)
    if not (isinstance(segmentation, list) and segmentation):
        raise ValueError(
            f"has segmentation={segmentation!r:.80}, neither polygons nor run lengths: without"
            " masks (mask_size=None) it is not needed"
        )
    return [_read_polygon(polygon, size) for polygon in segmentation]


def polygon_run_lengths(polygons: Sequence[np.ndarray], size: tuple[int, int]) -> np.ndarray:
    """Returns the run lengths, int64 [K], of the union of polygons, drawn by pycocotools.

    Args:
        polygons: each [x, y, x, y, ...] in pixels, at least 6 numbers.
        size: (H, W) of the image.

    Raises:
        MissingPackage: without pycocotools.

    >>> polygon_run_lengths([np.array([1, 0, 3, 0, 3, 2, 1, 2.0])], (2, 4))
    array([2, 4, 2])
    """
    coco: Any = import_coco_masks()
    parts = coco.frPyObjects([polygon.tolist() for polygon in polygons], *size)
    return expand_run_lengths(coco.merge(parts)["counts"].decode("ascii"))


def import_coco_masks() -> ModuleType:
    """Imports `pycocotools.mask`; raises MissingPackage without the package."""
    try:
        return importlib.import_module("pycocotools.mask")
    except ImportError:
        raise MissingPackage(
            "masks from polygons need a package that is not installed:"
            " pip install 'lingo-tf[detection]'"
        ) from None


def _read_counts(segmentation: dict[str, Any], size: tuple[int, int]) -> np.ndarray:
    """Returns checked run lengths, int64 [K], from {"size": [H, W], "counts": list or text}."""
    own, counts = segmentation.get("size"), segmentation.get("counts")
    if own != [*size]:
        raise ValueError(
            f"has a mask of size={own!r:.80}, but its image has height and width {[*size]}"
        )
    if isinstance(counts, str):
        numbers = expand_run_lengths(counts)
    elif isinstance(counts, list) and all(type(n) is int and abs(n) < _LIMIT for n in counts):
        numbers = np.array(counts, np.int64)
    else:
        raise ValueError(
            f"has counts={counts!r:.80}, neither whole numbers below {_LIMIT} nor a text"
        )
    _check_counts(numbers, size)
    return numbers


def _check_counts(counts: np.ndarray, size: tuple[int, int]) -> None:
    if len(counts) and counts.min() < 0:
        raise ValueError(f"has a negative count of pixels, {counts.min()}")
    if counts.sum() != size[0] * size[1]:
        raise ValueError(
            f"has counts of {counts.sum()} pixels, but its image has {size[0]} x {size[1]} ="
            f" {size[0] * size[1]}"
        )


def _read_polygon(polygon: Any, size: tuple[int, int]) -> np.ndarray:
    """Returns a checked polygon, float64 [numbers]."""
    try:
        numbers = np.array(polygon, np.float64)
    except (TypeError, ValueError):
        numbers = np.zeros([0, 0])
    if numbers.ndim != 1 or not np.isfinite(numbers).all():
        raise ValueError(f"has the polygon {polygon!r:.80}, not a list of finite numbers")
    if len(numbers) < _LEAST_NUMBERS or len(numbers) % 2:
        raise ValueError(
            f"has a polygon of {len(numbers)} numbers: it takes x and y of at least 3 corners"
        )
    corners = numbers.reshape(-1, 2)
    if not ((corners >= -_SLACK) & (corners <= np.array(size[::-1]) + _SLACK)).all():
        raise ValueError(
            f"has a polygon with corners outside of its image of {size[1]} x {size[0]} pixels"
        )
    return numbers
