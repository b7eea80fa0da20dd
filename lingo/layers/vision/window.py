"""The positions of a window that moves over an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.context import current

Padding = Literal["SAME", "VALID"]
"""SAME: a window at every `stride`-th position of a padded image; VALID: only those inside it."""


def check_kernel(p: Any) -> None:
    """Raises ParamError if kernel, stride or dilation make no sense, alone or together."""
    ranges.check_positive(p, "kernel", "stride", "dilation")
    if p.stride > 1 and p.dilation > 1:
        raise ParamError(
            f"stride={p.stride} with dilation={p.dilation}: one of the two has to be 1"
        )


def check_channels(x: tf.Tensor, dim: int) -> None:
    """Raises ParamError if images x, [B, ..., C], do not have `dim` channels.

    TensorFlow convolves a multiple of `dim` in groups, and says nothing.
    """
    if x.shape[-1] not in (None, dim):
        raise ParamError(f"dim={dim}, but the input has {x.shape[-1]} channels, as {x.shape}")


def count_windows(
    image: Sequence[int], window: Sequence[int], stride: int, padding: Padding, dilation: int = 1
) -> tuple[int, ...]:
    """Returns how many windows fit along each axis of an image; raises ParamError if none.

    With `dilation` a window has that distance from one of its positions to the next.
    """
    window = [(length - 1) * dilation + 1 for length in window]
    room = zip(image, window, strict=True)
    starts = [size if padding == "SAME" else size - length + 1 for size, length in room]
    if min(starts) < 1:
        raise ParamError(
            f"a window {list(window)} does not fit into an image {list(image)}: take larger images,"
            " a smaller window, or padding=SAME"
        )
    return tuple(-(-start // stride) for start in starts)


def padding_sizes(size: int, length: int, stride: int, dilation: int) -> tuple[int, int]:
    """Returns how many zeros SAME puts before and after an axis, for windows of a length."""
    num_windows = -(-size // stride)
    total = max((num_windows - 1) * stride + (length - 1) * dilation + 1 - size, 0)
    return total // 2, total - total // 2


def is_product(window: Sequence[int]) -> bool:
    """Whether a convolution with windows of these lengths is computed by `multiply_positions`.

    What XLA compiles stays a convolution, which it cuts over the devices of a mesh.
    """
    return max(window) == 1 and not current().compiled


def multiply_positions(x: tf.Tensor, w: tf.Tensor, stride: int) -> tf.Tensor:
    """Returns the convolution with a kernel of a single position, which is a matrix product.

    It is [B, ..., F] for images x [B, ..., C] and w [1, ..., 1, C, F], of the same float type.
    TensorFlow computes convolutions on CPUs by oneDNN, whose gradients of such kernels are slower:
    with them, a step of ResNet-50 with 16 images of 64 pixels takes 7 % longer on two cores without
    AVX-512. With a stride and fewer than 16 channels these gradients also write to memory that is
    not theirs: https://github.com/uxlfoundation/oneDNN/issues/6035
    """
    every = slice(None, None, stride)
    x = x if stride == 1 else x[:, *[every] * (len(x.shape) - 2)]
    return tf.tensordot(x, tf.reshape(w, w.shape[-2:]), 1)
