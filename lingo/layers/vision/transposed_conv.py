"""Transposed convolution of images, which enlarges them.

Axes: B batch, H height, W width, C input channels, F output channels; kernels are [kh, kw].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.initial import ZEROS, FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.product import Product
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.layers.vision.split_image import (
    annotate_image,
    has_copies,
    is_split,
    num_parts_of,
    pad_end,
    split_again,
    static_sizes,
)
from lingo.layers.vision.window import Padding
from lingo.ops.shape import sizes_of


class TransposedConv2D(Layer):
    """The transpose of a 2D convolution: each position of the input adds to a window of the output.

    With padding SAME the result has height H * stride, as if windows that reach over the border
    were cut off; with VALID it holds all windows: (H - 1) * stride + kh, or H * stride if the
    stride is larger than kh. An output sums kh kw C / stride^2 inputs on average, so the variance
    of activations after a ReLU stays if initial weights have variance 2 stride^2 / (kh kw C). The
    default has this for a stride of 2; for others set `init=FanIn(scale=...)` to 2 stride^2.

    Weights:
        w: [kh, kw, C, F].
        b: [F], with `use_bias`.
    """

    dim: int  # channels of the input
    output_dim: int  # channels of the output
    kernel: tuple[int, int] = (3, 3)  # height and width of the window
    stride: int = 2  # from one window to the next, in both directions
    padding: Padding = "SAME"  # whether windows are cut off at the border
    use_bias: bool = False  # whether b is added
    init: Initializer = FanIn.params(scale=8.0)  # of w; b starts at zero
    axes: tuple[str | None, str | None] = (None, None)  # logical axes of input and output channels

    products = (Product("w"),)

    def check(self) -> None:
        ranges.check_positive(self.p, "kernel", "stride")

    def setup(self) -> None:
        p = self.p
        fan_in = math.prod(p.kernel) * p.dim
        shape, axes = [*p.kernel, p.dim, p.output_dim], (None, None, *p.axes)
        self.w = self.weight("w", shape, axes=axes, init=p.init.build(), fan_in=fan_in)
        if p.use_bias:
            self.b = self.weight("b", [p.output_dim], axes=p.axes[1:], init=ZEROS)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H', W', F], in the layer's dtype, for images x [B, H, W, C]."""
        p = self.p
        x, w = self.operands("w", input=tf.cast(x, p.dtype))
        _, *sizes, _ = self.output_shape(sizes_of(x))
        x, whole = self._align(x)
        shape = tf.stack(self.output_shape(sizes_of(x)))
        y = tf.nn.conv2d_transpose(x, tf.transpose(w, [0, 1, 3, 2]), shape, p.stride, p.padding)
        y = y + self.b if p.use_bias else y
        return split_again(y, sizes, p.axes[1], whole=whole)

    def _align(self, x: tf.Tensor) -> tuple[tf.Tensor, list[bool]]:
        """Returns images with rows added until parts on devices are equal, and which are whole.

        With padding VALID, or windows that reach further than the next device, they are gathered.
        """
        if not is_split(x):
            return x, []
        p, sizes, whole = self.p, static_sizes(x), [False, False]
        for i, num_parts in enumerate(num_parts_of(len(sizes))):
            if num_parts > 1:
                part = -(-sizes[i] // num_parts)
                whole[i] = p.padding == "VALID" or p.kernel[i] > (part + 1) * p.stride
                sizes[i] = sizes[i] if whole[i] else part * num_parts
        if not all(whole) and has_copies(whole):
            sizes, whole = static_sizes(x), [True] * len(sizes)
        return annotate_image(pad_end(x, sizes), p.axes[0], whole=whole), whole

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for images of shape [B, H, W, C]."""
        batch, *image, _ = shape
        p = self.p
        more = [max(k - p.stride, 0) if p.padding == "VALID" else 0 for k in p.kernel]
        sizes = [size * p.stride + n for size, n in zip(image, more, strict=True)]
        return (batch, *sizes, p.output_dim)

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the operations for images of shape [B, H, W, C], including those cut off."""
        return 2 * math.prod(self.p.kernel) * math.prod(shape) * self.p.output_dim

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return [batch_residual(1, call.shape, "input")]
