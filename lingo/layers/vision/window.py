"""The positions of a window that moves over an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from lingo.config import ranges
from lingo.config.params import ParamError

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
