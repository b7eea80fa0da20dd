"""A layer that resizes images.

Axes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.layer import Layer
from lingo.layers.residual import Residual, ResidualCall
from lingo.layers.window import annotate_image, static_sizes


class Resize(Layer):
    """Resizes images as `tf.image.resize` does without `antialias`.

    A matrix product along each axis computes the result. So if an image is split over devices, each
    device computes its share of the sums. XLA's own gradients of resizing, where they exist, are
    wrong for split images.
    """

    size: tuple[int, int]  # height and width of the result
    # bilinear: mixes the nearest pixels; nearest: takes the nearest pixel
    method: Literal["bilinear", "nearest"] = "bilinear"

    def check(self) -> None:
        ranges.check_positive(self.p, "size")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H', W', C], in the layer's dtype, for images x [B, H, W, C]."""
        x = tf.cast(x, self.p.dtype)
        for equation, axis in (("bhwc,ih->biwc", 1), ("bhwc,jw->bhjc", 2)):
            matrix = resize_matrix(static_sizes(x)[axis - 1], self.p.size[axis - 1], self.p.method)
            x = tf.einsum(equation, x, tf.cast(matrix, x.dtype))
        return annotate_image(x)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for images of shape [B, H, W, C]."""
        return (shape[0], *self.p.size, shape[-1])

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []  # the gradient needs only the matrices, which are constants


def resize_matrix(size: int, new_size: int, method: str) -> np.ndarray:
    """Returns how much each old pixel along an axis counts in each new pixel.

    The result is float32 [new_size, size]; the weights of a new pixel sum to 1.

    >>> resize_matrix(2, 4, "bilinear")
    array([[1.  , 0.  ],
           [0.75, 0.25],
           [0.25, 0.75],
           [0.  , 1.  ]], dtype=float32)
    """
    centres = (np.arange(new_size) + 0.5) * size / new_size
    pixels = np.arange(size)
    if method == "nearest":
        return np.equal(np.floor(centres)[:, None], pixels).astype(np.float32)
    places = np.clip(centres - 0.5, 0, size - 1)
    return np.maximum(1 - np.abs(places[:, None] - pixels), 0).astype(np.float32)
