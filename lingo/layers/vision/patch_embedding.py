"""Images as sequences: a vector for each patch of pixels.

Axes: B batch, H height, W width, C channels, T patches, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.context import annotate
from lingo.layers.initial import FanIn
from lingo.layers.layer import Layer
from lingo.layers.vision.conv import Conv2D


def patch_grid(image: Sequence[int], patch: int) -> tuple[int, int]:
    """Returns how many patches fit into the height and the width of an image (H, W).

    Raises ParamError if they do not fill the image.
    """
    height, width = image
    if patch < 1 or height % patch or width % patch:
        raise ParamError(
            f"images of {height} x {width} cannot be cut into patches of {patch} x {patch}: take"
            " another patch, or enlarge or crop the images"
        )
    return height // patch, width // patch


class PatchEmbedding(Layer):
    """A linear map of each patch of an image (Dosovitskiy et al. 2021, eq. 1).

    It is a convolution whose windows do not overlap. Patches are in the order of reading: those of
    the first row from left to right, then the next row.
    """

    dim: int  # C, channels of the images
    output_dim: int  # D, width of the vectors
    patch: int = 16  # height and width of a patch, in pixels
    conv: Conv2D = Conv2D.params(use_bias=True, padding="VALID", init=FanIn, axes=(None, "embed"))

    def check(self) -> None:
        ranges.check_positive(self.p, "patch")

    def setup(self) -> None:
        p = self.p
        self.conv = p.conv.build(
            dim=p.dim, output_dim=p.output_dim, kernel=(p.patch, p.patch), stride=p.patch
        )

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, T, D], in the layer's dtype, for images x [B, H, W, C].

        Raises ParamError if H or W is not a multiple of `patch`.
        """
        shape: Any = x.shape
        _, length, dim = self.output_shape(shape)
        return annotate(tf.reshape(self.conv(x), [-1, length, dim]), "batch", "length", "embed")

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for images of shape [B, H, W, C]."""
        batch, *image, _ = shape
        height, width = patch_grid(image, self.p.patch)
        return (batch, height * width, self.p.output_dim)

    def flops(self, shape: Sequence[int]) -> int:
        return self.conv.flops(shape)
