"""Convolutions of sequences: over all channels, and of each channel alone.

Axes: B batch, T positions, C input channels, F output channels, M filters for each channel; kernels
have k positions.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.convolution import Conv, DepthwiseConv
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.window import Windows


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


class DepthwiseConv1D(DepthwiseConv):
    """A convolution along the positions of a sequence, with separate filters for each channel.

    Output channels c * M to c * M + M - 1 come from input channel c. Inputs are [B, T, C], and
    results are [B, T', C * M]. Initial weights have variance 2 / k, as in `DepthwiseConv2D`.

    With `is_causal`, a result depends on the k positions up to its own: zeros stand before the
    sequence, T' is T, and `step` computes the next positions. Otherwise a result also depends on
    later positions, and `padding` is as in `Conv1D`.

    Weights:
        w: [k, C, M].
        b: [C * M], with `use_bias`.

    Caches, with `is_causal`:
        past: [(k - 1) * dilation, C], the last positions.
    """

    kernel: int = 3  # positions of the window
    is_causal: bool = False  # whether no result depends on later positions

    rank = 1

    def check(self) -> None:
        super().check()
        if self.p.is_causal and self.p.stride > 1:
            raise ParamError(
                f"stride={self.p.stride} with is_causal=True: a causal convolution has a result"
                " for each position: take stride=1"
            )

    def setup(self) -> None:
        super().setup()
        if self.p.is_causal:
            self.cache("past", [self._num_before, self.p.dim], axes=(None, self.p.axis))

    @property
    def _num_before(self) -> int:
        """The number of earlier positions that a result of a causal convolution depends on."""
        return (self.p.kernel - 1) * self.p.dilation

    def windows(self) -> Windows:
        windows = super().windows()
        return windows._replace(padding="VALID") if self.p.is_causal else windows

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, T', C * M], in the layer's dtype, for x [B, T, C], any float type."""
        if self.p.is_causal:
            x = tf.pad(x, [[0, 0], [self._num_before, 0], [0, 0]])
        return super().__call__(x)

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        if not self.p.is_causal:
            raise ValueError(
                f"{self.path or type(self).__name__} reads later positions, so it cannot be"
                " computed step by step: take is_causal=True"
            )
        if not self._num_before:
            return super().__call__(x)
        x = tf.concat([self.past, tf.cast(x, self.p.dtype)], axis=1)
        self.new_cache("past", tf.ensure_shape(x[:, -self._num_before :], self.past.shape))
        return super().__call__(x)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for x of shape [B, T, C]."""
        if not self.p.is_causal:
            return super().output_shape(shape)
        return (*shape[:2], self.filters().output_dim)
