"""Counts the positions of a window that moves over an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lingo.config.params import ParamError

Padding = Literal["SAME", "VALID"]
"""SAME: a window at every `stride`-th position of a padded image; VALID: only those inside it."""


def count_windows(
    image: Sequence[int], window: Sequence[int], stride: int, padding: Padding
) -> tuple[int, ...]:
    """Returns how many windows fit into an image's height and width; raises ParamError if none."""
    room = zip(image, window, strict=True)
    starts = [size if padding == "SAME" else size - length + 1 for size, length in room]
    if min(starts) < 1:
        raise ParamError(
            f"a window {list(window)} does not fit into an image {list(image)}: take larger images,"
            " a smaller window, or padding=SAME"
        )
    return tuple(-(-start // stride) for start in starts)
