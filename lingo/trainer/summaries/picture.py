"""Pictures of shares over time, such as the load of experts: what is equal is white.

Axes: E elements, downwards; R columns, from the first report to the last; H height, W width.

A cell is its element relative to the mean of all elements at that time: white where it is equal,
red where it is larger, blue where it is smaller. The scale is logarithmic and ends at four times,
and at a quarter, of the mean. Grey is what is unknown, and what stands between two layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEGEND = (
    "From the first report on the left to this step on the right: the share of each element, the"
    " first above, relative to the mean of all. **White**: equal. **Red**: more, darkest from four"
    " times on. **Blue**: less, darkest below a quarter. **Grey**: unknown."
)

_OCTAVES = 2  # of the scale, in each direction
_SHADES = 120  # in each direction
_WHITE, _GREY = _SHADES, 2 * _SHADES + 1  # numbers of colours; 0 is the darkest blue

_WIDTH, _HEIGHT = 768, 256  # pixels that a picture of one layer has at most, if cells are large
_OVERVIEW_HEIGHT = 1024
_MAX_CELL = 16  # pixels
_GAP = 3  # pixels between layers
_MAX_ROWS = 4096  # of more than so many elements neighbours share a row of pixels

_STOPS = ((9, 29, 88), (52, 126, 186), (250, 250, 250), (217, 95, 50), (103, 6, 18))


def colours() -> np.ndarray:
    """Returns uint8 [N, 3]: what the numbers of a picture mean, in red, green, blue."""
    places, stops = np.linspace(0, 2 * _SHADES, len(_STOPS)), np.array(_STOPS)
    scale = [np.interp(np.arange(2 * _SHADES + 1), places, stops[:, i]) for i in range(3)]
    return np.concatenate([np.stack(scale, axis=1), [[128, 128, 128]]]).round().astype(np.uint8)


def cells(matrix: np.ndarray) -> np.ndarray:
    """Returns the numbers of the colours of shares.

    Args:
        matrix: [E, R], nan where unknown; a column of zeros is unknown, too.

    Returns:
        uint8 [E, R].
    """
    mean = matrix.mean(axis=0)
    is_known = (mean > 0) & np.isfinite(mean)
    ratio = np.divide(matrix, mean, out=np.ones_like(matrix), where=is_known)
    octaves = np.log2(np.clip(ratio, 2.0**-_OCTAVES, 2.0**_OCTAVES))
    shades = np.rint(_WHITE + octaves * (_SHADES / _OCTAVES))
    return np.where(is_known, shades, _GREY).astype(np.uint8)


def one(matrix: np.ndarray) -> np.ndarray:
    """Returns the picture of one vector over time, uint8 [H, W]: numbers of colours.

    Args:
        matrix: [E, R], as for `cells`.
    """
    return _drawn([matrix], _HEIGHT)


def overview(matrices: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the picture of several vectors below each other, with gaps, uint8 [H, W].

    Args:
        matrices: [E, R] each, of one R.
    """
    return _drawn(matrices, _OVERVIEW_HEIGHT)


def _drawn(matrices: Sequence[np.ndarray], height: int) -> np.ndarray:
    num_elements, num_columns = sum(map(len, matrices)), matrices[0].shape[1]
    joined = -(-num_elements // _MAX_ROWS)
    tall = min(max(height // num_elements, 1), _MAX_CELL)
    wide = min(max(_WIDTH // num_columns, 1), _MAX_CELL)
    strips = [_enlarged(cells(_thinned(m, joined)), tall, wide) for m in matrices]
    gap = np.full([_GAP, wide * num_columns], _GREY, np.uint8)
    return np.concatenate([part for strip in strips for part in (gap, strip)][1:])


def _enlarged(pixels: np.ndarray, tall: int, wide: int) -> np.ndarray:
    return pixels.repeat(tall, axis=0).repeat(wide, axis=1)


def _thinned(matrix: np.ndarray, joined: int) -> np.ndarray:
    """Returns the means of so many neighbouring elements, the last of fewer."""
    starts = np.arange(0, len(matrix), joined)
    counts = np.diff(np.append(starts, len(matrix)))
    return np.add.reduceat(matrix, starts, axis=0) / counts[:, None]
