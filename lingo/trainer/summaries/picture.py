"""Images of shares over time, such as the load of experts.

Axes: E elements, downwards; R columns, from the first report to the last; H height, W width.

A cell shows its element relative to the mean of all elements at that time: white where it is equal,
red where it is larger, blue where it is smaller. The scale is logarithmic and ends at four times,
and at a quarter, of the mean. Grey is what is unknown, and the gap between two layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEGEND = (
    "From the first report on the left to this step on the right: the share of each element, the"
    " first above, relative to the mean of all. **White**: equal. **Red**: more, darkest from four"
    " times on. **Blue**: less, darkest below a quarter. **Grey**: unknown."
)

_OCTAVES = (-2, -1, 0, 1, 2)  # logarithm to base 2 of the share relative to the mean
_COLOURS = np.array([(9, 29, 88), (52, 126, 186), (250, 250, 250), (217, 95, 50), (103, 6, 18)])
_GREY = 128

_WIDTH, _HEIGHT = 768, 256  # pixels that an image of one layer has at most, if cells are large
_OVERVIEW_HEIGHT = 1024
_MAX_CELL = 16  # pixels
_GAP = 3  # pixels between layers
_MAX_ROWS = 4096  # if there are more elements, neighbours share a row of pixels


def cell_colours(matrix: np.ndarray) -> np.ndarray:
    """Returns the colour of each share, uint8 [E, R, 3]: red, green, blue.

    `matrix` is float [E, R], nan where unknown; a column of zeros is unknown, too.
    """
    mean = matrix.mean(axis=0)
    is_known = (mean > 0) & np.isfinite(mean)
    ratio = np.divide(matrix, mean, out=np.ones_like(matrix), where=is_known)
    octaves = np.log2(np.clip(ratio, 2.0 ** _OCTAVES[0], 2.0 ** _OCTAVES[-1]))
    channels = [np.interp(octaves, _OCTAVES, channel) for channel in _COLOURS.T]
    colours = np.where(is_known[:, None], np.stack(channels, axis=-1), _GREY)
    return colours.round().astype(np.uint8)


def vector_image(matrix: np.ndarray) -> np.ndarray:
    """Returns the image of one vector, float [E, R], over time, uint8 [H, W, 3]."""
    return _draw([matrix], _HEIGHT)


def overview_image(matrices: Sequence[np.ndarray]) -> np.ndarray:
    """Returns one image, uint8 [H, W, 3], of several vectors over time, float [E, R] of one R."""
    return _draw(matrices, _OVERVIEW_HEIGHT)


def _draw(matrices: Sequence[np.ndarray], height: int) -> np.ndarray:
    num_elements, num_columns = sum(map(len, matrices)), matrices[0].shape[1]
    per_row = -(-num_elements // _MAX_ROWS)
    cell_height = min(max(height // num_elements, 1), _MAX_CELL)
    cell_width = min(max(_WIDTH // num_columns, 1), _MAX_CELL)
    gap = np.full([_GAP, cell_width * num_columns, 3], _GREY, np.uint8)
    strips = []
    for matrix in matrices:
        colours = cell_colours(_join_neighbours(matrix, per_row))
        strips += [gap, colours.repeat(cell_height, axis=0).repeat(cell_width, axis=1)]
    return np.concatenate(strips[1:])


def _join_neighbours(matrix: np.ndarray, count: int) -> np.ndarray:
    """Returns the means of every `count` neighbouring elements of [E, R], the last of fewer."""
    starts = np.arange(0, len(matrix), count)
    counts = np.diff(np.append(starts, len(matrix)))
    return np.add.reduceat(matrix, starts, axis=0) / counts[:, None]
