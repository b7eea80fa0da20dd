"""Convolution of sequences.

Axes: B batch, T positions, C input channels, F output channels; kernels have k positions.
"""

from __future__ import annotations

from lingo.config.lazy import tf
from lingo.layers.vision.conv import Convolution
from lingo.layers.vision.window import check_kernel


class Conv1D(Convolution):
    """A convolution along positions of sequences [B, T, C], such as those of sound.

    With padding SAME, zeros surround the sequence and the result has length ceil(T / stride); with
    VALID, windows lie inside the sequence. A result depends on later positions, too, and on those
    of other documents in an example. Initial weights have variance 2 / (k C), as in `Conv2D`.

    Weights:
        w: [k, C, F].
        b: [F], with `use_bias`.
    """

    kernel: int = 3  # positions of the window
    stride: int = 1  # from one window to the next
    dilation: int = 1  # from one position of a window to the next

    positions = ("length",)

    def check(self) -> None:
        check_kernel(self.p)

    def window(self) -> tuple[int, ...]:
        return (self.p.kernel,)

    def convolve(self, x: tf.Tensor) -> tf.Tensor:
        p = self.p
        return tf.nn.conv1d(x, self.w, p.stride, p.padding, dilations=p.dilation)
