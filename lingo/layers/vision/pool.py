"""Pooling layers: the maximum or the mean of each window of an image or volume, per channel.

Axes: B batch, D depth, H height, W width, C channels.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import ClassVar

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.layer import Layer
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.layers.window import (
    Padding,
    Windows,
    annotate_image,
    check_centered,
    is_split,
    num_parts_of,
    split_again,
    static_sizes,
    window_slices,
)
from lingo.mesh.split import halo


class Pool(Layer, interface=True):
    """Computes one value per window and channel, from the positions that lie in the image."""

    window: tuple[int, int] = (2, 2)  # height and width of a window
    stride: int = 2  # from one window to the next, in both directions
    # SAME and CENTERED: windows may reach over the border; VALID: they may not
    padding: Padding = "SAME"

    num_indices: ClassVar[int] = 0
    """How many numbers per result the gradient keeps, to find where in its window the result was.

    0 for a mean."""

    def check(self) -> None:
        ranges.check_positive(self.p, "window", "stride")
        check_centered(self.p.padding, self.p.window)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H', W', C], in the layer's dtype, for images x [B, H, W, C]."""
        return self.pool(tf.cast(x, self.p.dtype))

    def pool(self, x: tf.Tensor) -> tf.Tensor:
        """Returns one value per window, [B, H', W', C], for x [B, H, W, C] of the same dtype."""
        raise NotImplementedError(f"{type(self).__name__} has no pool")

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for images of shape [B, H, W, C]."""
        batch, *image, channels = shape
        return (batch, *self._windows().count(image), channels)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        if not self.num_indices:
            return []
        indices = batch_residual(self.num_indices, self.output_shape(call.shape))
        return [batch_residual(1, call.shape, "input"), indices]

    def _windows(self) -> Windows:
        return Windows(self.p.window, self.p.stride, self.p.padding)


class MaxPool(Pool):
    """Max pooling: the maximum of each window, per channel."""

    num_indices = 4  # example, row, column and channel of the largest element

    def pool(self, x: tf.Tensor) -> tf.Tensor:
        p = self.p
        if is_split(x):  # XLA would compute wrong gradients: see `lingo.layers.window`
            return _largest_slice(x, self._windows())
        # Not tf.nn.max_pool2d: in a loop, TensorFlow computes some of its gradients with oneDNN and
        # others without. Which ones changes from trace to trace, and oneDNN rounds differently.
        window, stride = [1, *p.window, 1], [1, p.stride, p.stride, 1]
        padding = self._windows().any_size_padding()
        if not isinstance(padding, str):
            x, padding = tf.pad(x, padding, constant_values=x.dtype.min), "VALID"
        return tf.raw_ops.MaxPoolV2(input=x, ksize=window, strides=stride, padding=padding)


class AveragePool(Pool):
    """Average pooling: the mean over the part of each window that lies in the image."""

    def check(self) -> None:
        super().check()
        if self.p.padding == "CENTERED":
            raise ParamError("padding=CENTERED is for MaxPool: AveragePool takes SAME or VALID")

    def pool(self, x: tf.Tensor) -> tf.Tensor:
        p = self.p
        if not is_split(x):
            return tf.nn.avg_pool2d(x, p.window, p.stride, p.padding)
        image = static_sizes(x)
        whole = [
            self._reaches_far(*axis) for axis in zip(image, p.window, num_parts_of(2), strict=True)
        ]
        y = tf.nn.avg_pool2d(annotate_image(x, whole=whole), p.window, p.stride, p.padding)
        return split_again(y, static_sizes(y), None, whole=whole)

    def _reaches_far(self, size: int, window: int, num_parts: int) -> bool:
        """Whether windows along an axis need rows from further away than the next device.

        `size` is the axis's length, and `num_parts` is the number of devices that it is split over.
        """
        p = self.p
        needed = halo(size, num_parts=num_parts, window=window, stride=p.stride, padding=p.padding)
        return max(needed.exchange) > needed.part


class MaxPool3D(Layer):
    """The maximum of each window of a volume, for each channel; windows lie side by side."""

    window: int = 2  # depth, height and width of a window, and also the stride

    def check(self) -> None:
        ranges.check_positive(self.p, "window")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, D', H', W', C], in the layer's dtype, for volumes x [B, D, H, W, C]."""
        return _largest_slice(tf.cast(x, self.p.dtype), self._windows())

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for volumes of shape [B, D, H, W, C]."""
        batch, *volume, channels = shape
        return (batch, *self._windows().count(volume), channels)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        # the gradient compares the input with the maxima
        return [batch_residual(1, call.shape, "input")]

    def _windows(self) -> Windows:
        return Windows((self.p.window,) * 3, self.p.window, "SAME")


def _largest_slice(x: tf.Tensor, windows: Windows) -> tf.Tensor:
    """Returns the maximum of each window, [B, ..., C], for x [B, ..., C] of the same dtype."""
    slices = [y for _, y in window_slices(x, windows, fill=x.dtype.min)]
    return annotate_image(functools.reduce(tf.maximum, slices))
