"""The positions of a window that moves over an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.context import current

_ONEDNN_BLOCK = 16  # channels that oneDNN computes at once with AVX-512

Padding = Literal["SAME", "VALID"]
"""SAME: a window at every `stride`-th position of a padded image; VALID: only those inside it."""


def check_kernel(p: Any) -> None:
    """Raises ParamError if kernel, stride or dilation make no sense, alone or together."""
    ranges.check_positive(p, "kernel", "stride", "dilation")
    if p.stride > 1 and p.dilation > 1:
        raise ParamError(
            f"stride={p.stride} with dilation={p.dilation}: one of the two has to be 1"
        )


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


def skip_positions(x: tf.Tensor, window: Sequence[int], stride: int) -> tuple[tf.Tensor, int]:
    """Returns images x, [B, ..., C] of any type, and the stride of windows that move over them.

    Where windows have a single position, it may leave out those between them: then the stride is 1.
    For less than 16 channels oneDNN, by which TensorFlow computes on CPUs, writes the gradient of
    such a kernel to memory that is not its own: https://github.com/uxlfoundation/oneDNN/issues/6035
    """
    channels: Any = x.shape[-1]
    if stride == 1 or max(window) > 1 or channels >= _ONEDNN_BLOCK or current().compiled:
        return x, stride
    return x[:, *[slice(None, None, stride)] * len(window)], 1
