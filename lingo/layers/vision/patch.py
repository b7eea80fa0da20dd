"""Layers of vision Transformers, which read an image as a sequence of patches.

Axes: B batch, H height, W width, C channels, T patches, D model width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.context import annotate
from lingo.layers.initial import ZEROS, FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.layers.vision.conv import Conv2D


def patch_grid(image: Sequence[int], patch: int) -> tuple[int, int]:
    """Returns how many patches fit into the height and into the width of an image (H, W).

    Raises ParamError if the patches do not fill the image.
    """
    height, width = image
    if patch < 1 or height % patch or width % patch:
        raise ParamError(
            f"images of {height} x {width} cannot be cut into patches of {patch} x {patch}: take"
            " another patch, or enlarge or crop the images"
        )
    return height // patch, width // patch


class PatchEmbedding(Layer):
    """Maps each patch of an image linearly to a vector (Dosovitskiy et al. 2021, eq. 1).

    A convolution whose windows do not overlap computes this. Patches are in reading order: the
    first row from left to right, then the next row.
    """

    dim: int  # C, channels of the images
    output_dim: int  # D, width of the vectors
    patch: int = 16  # height and width of a patch, in pixels
    # the convolution that computes the linear map
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


Pooling = Literal["mean", "first"]
"""Which vector stands for an image. `mean`: the mean of all vectors. `first`: the first vector,
which `ClassToken` adds."""


class ClassToken(Layer):
    """Puts a trained vector, the same for all images, before the patches.

    Attention lets this vector collect the content of the image (Dosovitskiy et al. 2021, eq. 1).
    In the paper the vector has a position encoding: `LearnedImagePositions(num_tokens=1)` after
    this layer adds it.

    Weights:
        token: [D], initially zeros.
    """

    dim: int  # D, width of the vectors

    def setup(self) -> None:
        self.token = self.weight("token", [self.p.dim], axes=("embed",), init=ZEROS)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, 1 + T, D], in the layer's dtype, for patches x [B, T, D]."""
        x = tf.cast(x, self.p.dtype)
        token = tf.zeros_like(x[:, :1]) + self.token
        return annotate(tf.concat([token, x], axis=1), "batch", "length", "embed")

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for patches of shape [B, T, D]."""
        batch, length, dim = shape
        return (batch, 1 + length, dim)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []


class PatchHead(Layer):
    """Computes logits from one vector v of an image, by a linear map or with a hidden layer.

    The hidden layer is tanh(v w + b). ViT's authors call its width `rep_size` (Dosovitskiy et al.
    2021, sec. 3.1).
    """

    dim: int  # D, width of the vectors
    num_classes: int  # number of labels
    pooling: Pooling = "mean"  # the vector that the logits are computed from
    hidden_dim: int | None = None  # width of the hidden layer; None: no hidden layer
    linear: Linear = Linear.params(use_bias=True)  # the hidden layer's map and the map to logits

    def check(self) -> None:
        ranges.check_positive(self.p, "hidden_dim")

    def setup(self) -> None:
        p = self.p
        self.hidden, dim, axis = None, p.dim, "embed"
        if p.hidden_dim is not None:
            self.hidden = p.linear.build(dim=dim, output_dim=p.hidden_dim, axes=("embed", "mlp"))
            dim, axis = p.hidden_dim, "mlp"
        self.linear = p.linear.build(dim=dim, output_dim=p.num_classes, axes=(axis, None))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns logits [B, num_classes], in the layer's dtype, for patches x [B, T, D]."""
        x = tf.cast(x, self.p.dtype)
        vector = tf.reduce_mean(x, axis=1) if self.p.pooling == "mean" else x[:, 0]
        if self.hidden is not None:
            vector = tf.tanh(self.hidden(vector))
        return self.linear(vector)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the logits for patches of shape [B, T, D]."""
        return (shape[0], self.p.num_classes)

    def flops(self, shape: Sequence[int]) -> int:
        batch, *_, dim = shape
        if self.hidden is None:
            return self.linear.flops([batch, dim])
        hidden_shape = [batch, self.p.hidden_dim]
        return self.hidden.flops([batch, dim]) + self.linear.flops(hidden_shape)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return [batch_residual(1, (call.shape[0], self.p.num_classes), "output")]


class ImagePositions(Layer, interface=True):
    """Adds to each patch a vector that depends on its position. Subclasses define `table`."""

    dim: int  # D, width of the vectors
    grid: tuple[int, int]  # number of rows and number of columns of patches

    def check(self) -> None:
        ranges.check_positive(self.p, "grid")

    def table(self) -> Any:
        """Returns the vectors of all patches, [T, D], row after row of the grid."""
        raise NotImplementedError(f"{type(self).__name__} has no table")

    def num_vectors(self) -> int:
        """Returns T, the number of vectors in the table."""
        return math.prod(self.p.grid)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns x plus the positions' vectors, in the layer's dtype, for patches x [B, T, D].

        Raises ParamError if T is not the number of patches in the grid.
        """
        if x.shape[1] != self.num_vectors():
            tokens = self.num_vectors() - math.prod(self.p.grid)
            more = f" and num_tokens={tokens}" if tokens else ""
            raise ParamError(
                f"{x.shape[1]} patches, but grid={self.p.grid}{more} has {self.num_vectors()}"
            )
        return tf.cast(x, self.p.dtype) + tf.cast(self.table(), self.p.dtype)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result."""
        return tuple(shape)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []


class SinusoidImagePositions(ImagePositions):
    """Adds sines and cosines of a patch's column and row, which are not trained.

    (Beyer et al. 2022.) The features are four quarters: sin(w x), cos(w x), sin(w y) and cos(w y)
    for column x and row y. The frequencies w go from 1 to 1 / `max_wavelength`, and their
    logarithms are evenly spaced.
    """

    max_wavelength: float = 10_000.0  # the slowest wave's period in patches, divided by 2 pi

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "max_wavelength")
        if self.p.dim % 4 or self.p.dim < 8:
            raise ParamError(
                f"dim={self.p.dim} is not 8, 12, 16 or another multiple of 4: rows and columns"
                " need sines and cosines of two frequencies or more"
            )

    def table(self) -> np.ndarray:
        y, x = np.indices(self.p.grid).reshape(2, -1, 1)
        w = self.p.max_wavelength ** -np.linspace(0, 1, self.p.dim // 4)
        waves = [np.sin(x * w), np.cos(x * w), np.sin(y * w), np.cos(y * w)]
        return np.concatenate(waves, axis=1).astype(np.float32)


class LearnedImagePositions(ImagePositions):
    """Adds a trained vector for each position in the grid (Dosovitskiy et al. 2021, sec. 3.1).

    With `num_tokens`, vectors that stand before the patches, such as a class token, get one, too.

    Weights:
        vectors: [num_tokens + rows * columns, D], of initial variance 1/D; tokens come first.
    """

    num_tokens: int = 0  # vectors before the patches that have a position of their own
    init: Initializer = FanIn  # of the vectors

    def check(self) -> None:
        super().check()
        ranges.check_not_negative(self.p, "num_tokens")

    def num_vectors(self) -> int:
        return self.p.num_tokens + super().num_vectors()

    def setup(self) -> None:
        p = self.p
        shape, axes, init = [self.num_vectors(), p.dim], (None, "embed"), p.init.build()
        self.vectors = self.weight("vectors", shape, axes=axes, init=init, fan_in=p.dim)

    def table(self) -> tf.Tensor:
        return self.vectors
