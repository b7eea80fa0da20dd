"""Positions of patches: what is added to the vector of each place in an image.

Axes: B batch, T patches, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.initial import FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.residual import Residual, ResidualCall


class ImagePositions(Layer, interface=True):
    """Adds a vector to each patch of an image. Subclasses define `table`."""

    dim: int  # D, width of the vectors
    grid: tuple[int, int]  # patches from top to bottom, and from left to right

    def check(self) -> None:
        ranges.check_positive(self.p, "grid")

    def table(self) -> Any:
        """Returns the vectors, [T, D], row after row of the grid."""
        raise NotImplementedError(f"{type(self).__name__} has no table")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns x plus the vectors, in the layer's dtype, for patches x [B, T, D].

        Raises ParamError if T is not the number of places in the grid.
        """
        height, width = self.p.grid
        if x.shape[1] != height * width:
            raise ParamError(f"{x.shape[1]} patches, but grid={self.p.grid} has {height * width}")
        return tf.cast(x, self.p.dtype) + tf.cast(self.table(), self.p.dtype)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result."""
        return tuple(shape)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []


class SinusoidImagePositions(ImagePositions):
    """Sines and cosines of column and row, not trained (Beyer et al. 2022).

    A quarter of the features each has sin(w x), cos(w x), sin(w y) and cos(w y), for column x, row
    y, and frequencies w from 1 to 1 / `max_wavelength`, evenly spaced in their logarithms.
    """

    max_wavelength: float = 10_000.0  # patches in which the slowest wave turns once, over 2 pi

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "max_wavelength")
        if self.p.dim % 4 or self.p.dim < 8:
            raise ParamError(
                f"dim={self.p.dim} is not 8, 12, 16 or another multiple of 4: rows and columns"
                " have sines and cosines of two frequencies or more"
            )

    def table(self) -> np.ndarray:
        y, x = np.indices(self.p.grid).reshape(2, -1, 1)
        w = self.p.max_wavelength ** -np.linspace(0, 1, self.p.dim // 4)
        waves = [np.sin(x * w), np.cos(x * w), np.sin(y * w), np.cos(y * w)]
        return np.concatenate(waves, axis=1).astype(np.float32)


class LearnedImagePositions(ImagePositions):
    """A trained vector for each place in the grid (Dosovitskiy et al. 2021, sec. 3.1).

    Weights:
        vectors: [T, D], of initial variance 1/D.
    """

    init: Initializer = FanIn  # of the vectors

    def setup(self) -> None:
        p = self.p
        shape, axes, init = [p.grid[0] * p.grid[1], p.dim], (None, "embed"), p.init.build()
        self.vectors = self.weight("vectors", shape, axes=axes, init=init, fan_in=p.dim)

    def table(self) -> tf.Tensor:
        return self.vectors
