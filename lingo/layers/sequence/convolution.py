"""Convolution of sequences.

Axes: B batch, T positions, C input channels, F output channels; kernels have k positions.
"""

from __future__ import annotations

from lingo.layers.convolution import Conv


class Conv1D(Conv):
    """A convolution along the positions of a sequence, such as sound.

    With padding SAME, zeros surround the sequence and the result has length ceil(T / stride); with
    VALID, windows lie inside the sequence. A result also depends on later positions, and on other
    documents in the same example. Initial weights have variance 2 / (k C), as in `Conv2D`.
    Inputs are [B, T, C], and results are [B, T', F].

    Weights:
        w: [k, C, F].
        b: [F], with `use_bias`.
    """

    kernel: int = 3  # positions of the window

    rank = 1
