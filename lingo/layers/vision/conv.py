"""Convolutions of images and of volumes: images with a depth.

Axes: B batch, D depth, H height, W width, C input channels, F output channels; kernels are
[kh, kw] or [kd, kh, kw].
"""

from __future__ import annotations

from lingo.layers.convolution import Conv


class Conv2D(Conv):
    """A 2D convolution.

    With padding SAME, zeros surround the image and the result has height ceil(H / stride); with
    VALID, windows lie inside the image. Initial weights have variance 2 / (kh kw C), which
    preserves the variance of activations after a ReLU (He et al. 2015, eq. 10). Inputs are
    [B, H, W, C], results [B, H', W', F].

    Weights:
        w: [kh, kw, C, F].
        b: [F], with `use_bias`.
    """

    kernel: tuple[int, int] = (3, 3)  # height and width of the window

    rank = 2


class Conv3D(Conv):
    """A 3D convolution: `Conv2D` of volumes, [B, D, H, W, C] to [B, D', H', W', F].

    Weights:
        w: [kd, kh, kw, C, F].
        b: [F], with `use_bias`.
    """

    kernel: tuple[int, int, int] = (3, 3, 3)  # depth, height and width of the window

    rank = 3
