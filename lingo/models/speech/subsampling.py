"""Convolutions that make speech shorter: each layer halves the frames and the frequencies.

Axes: B batch, T frames, F frequencies, C channels, D output width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.norm import Norm
from lingo.layers.residual import ACTIVATION_COPIES, Residual, ResidualCall, batch_residual
from lingo.layers.vision.conv import Conv2D
from lingo.layers.window import Padding
from lingo.ops.activations import Activation, activate
from lingo.ops.shape import sizes_of

_KERNEL = 3  # frames and frequencies of a window
_STRIDE = 2


class ConvSubsampling(Layer):
    """3x3 convolutions of stride 2 over frames and frequencies, then a projection of each frame.

    Two layers make a frame per 4 frames, as in the Conformer (Gulati et al. 2020, sec. 2) and in
    LAS. With padding SAME a zero stands on each side, so that window t is around frame 2t whatever
    the length (TensorFlow's SAME moves windows by one frame if T is even), and T becomes
    ceil(T / 2). With VALID, windows lie inside, and T becomes floor((T - 1) / 2). Frames of padding
    are zeros for each convolution, so no result depends on how long the padding is.

    Caches, with padding SAME:
        past_<i>: the last frame of the input of convolution i, [1, F, C].
    """

    dim: int  # F, number of frequencies
    output_dim: int | None = None  # D, width of the projection; None: no projection
    channels: int  # C, of each convolution
    num_layers: int = 2  # number of convolutions
    padding: Padding = "SAME"  # SAME: zeros surround frames and frequencies; VALID: nothing does
    norm: Norm | None = None  # after each convolution; None: no normalization
    activation: Activation = "relu"  # after each convolution, or its normalization
    use_bias: bool = True  # whether convolutions and projection have biases
    conv: Conv2D = Conv2D  # each convolution
    projection: Linear = Linear.params(axes=(None, "embed"))  # the projection

    def check(self) -> None:
        ranges.check_positive(self.p, "dim", "channels", "num_layers")

    def setup(self) -> None:
        p, sizes = self.p, [self.p.dim]
        self.convs = [
            p.conv.build(
                dim=p.channels if i else 1,
                output_dim=p.channels,
                kernel=(_KERNEL, _KERNEL),
                stride=_STRIDE,
                padding="VALID",  # zeros are added before
                use_bias=p.use_bias,
            )
            for i in range(p.num_layers)
        ]
        self.norms = [p.norm.build(dim=p.channels) for _ in self.convs if p.norm is not None]
        for i in range(p.num_layers):
            if p.padding == "SAME":
                shape = [1, sizes[-1], p.channels if i else 1]
                self.cache(f"past_{i}", shape, axes=(None, None, None))
            sizes.append(self._count(sizes[-1]))
        if p.output_dim is not None:
            self.projection = p.projection.build(
                dim=sizes[-1] * p.channels, output_dim=p.output_dim, use_bias=p.use_bias
            )

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns [B, T', D], in the layer's dtype, for frames x [B, T, F], any float type.

        Without a projection, D is F' * C. Of `inputs` it reads `segments`, int32 [B, T]: frames of
        segment 0 are padding. `subsample` maps segments to the segments of the result.
        """
        around = (1, 1) if self.p.padding == "SAME" else (0, 0)
        return self._run(x, inputs.segments, lambda i, y: _pad_frames(y, *around))

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Computes the next frames: [B, C', D] for x [B, C, F]; C is a multiple of C / C' frames.

        `inputs.segments` are needed only where a recording ends inside of the chunk.
        """
        if self.p.padding != "SAME":
            raise ValueError(
                f"{self.path or type(self).__name__}: with padding=VALID a result needs frames of"
                " later chunks: take padding=SAME"
            )
        factor, count = _STRIDE**self.p.num_layers, x.shape[1]
        if count is None or count % factor:
            raise ValueError(
                f"{self.path or type(self).__name__}: {count} frames in a step, which has to have a"
                f" multiple of {factor}: a result is computed from {factor} frames"
            )

        def extend(i: int, y: tf.Tensor) -> tf.Tensor:
            self.new_cache(f"past_{i}", y[:, -1:])
            return tf.concat([getattr(self, f"past_{i}"), y], axis=1)

        return self._run(x, inputs.segments, extend)

    def subsample(self, segments: tf.Tensor) -> tf.Tensor:
        """Returns the document ids of the result's frames, int32 [B, T'], for int32 [B, T].

        With padding VALID a frame is padding if its window has any.
        """
        first = 0 if self.p.padding == "SAME" else _KERNEL - 1
        for _ in self.convs:
            segments = segments[:, first::_STRIDE]
        return segments

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for frames of shape [B, T, F]."""
        batch, length, size = shape
        for _ in self.convs:
            length, size = self._count(length), self._count(size)
        return (batch, length, self.p.output_dim or size * self.p.channels)

    def flops(self, shape: Sequence[int]) -> int:
        (batch, length, size), total = shape, 0
        for i, conv in enumerate(self.convs):
            more = _KERNEL - 1 if self.p.padding == "SAME" else 0
            total += conv.flops((batch, length + more, size + more, self.p.channels if i else 1))
            length, size = self._count(length), self._count(size)
        if self.p.output_dim is not None:
            total += self.projection.flops((batch, length, size * self.p.channels))
        return total

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        (batch, length, size), kept = call.shape, []
        for _ in self.convs:
            length, size = self._count(length), self._count(size)
            image = (batch, length, size, self.p.channels)
            copies = ACTIVATION_COPIES[self.p.activation] + (2 if self.norms else 0)
            kept.append(batch_residual(copies, image))
        return kept

    def _count(self, size: int) -> int:
        """Returns the number of windows along an axis."""
        return -(-size // _STRIDE) if self.p.padding == "SAME" else (size - 1) // _STRIDE

    def _run(self, x: tf.Tensor, segments: tf.Tensor | None, extend: Any) -> tf.Tensor:
        """Returns the result for frames x; `extend(i, y)` adds the frames before and after y."""
        y = tf.cast(x, self.p.dtype)[:, :, :, None]
        for i, conv in enumerate(self.convs):
            mask = None if segments is None else segments > 0
            if mask is not None:
                y *= tf.cast(mask, y.dtype)[:, :, None, None]
            y = extend(i, y)
            if self.p.padding == "SAME":
                y = tf.pad(y, [[0, 0], [0, 0], [1, 1], [0, 0]])
            y = conv(y)
            if segments is not None:
                first = 0 if self.p.padding == "SAME" else _KERNEL - 1
                segments = segments[:, first::_STRIDE]
            if self.norms:
                y = normalize(self.norms[i], y, segments)
            y = activate(y, self.p.activation)
        batch, length, size, channels = sizes_of(y)
        y = tf.reshape(y, [batch, length, size * channels])
        return y if self.p.output_dim is None else self.projection(y)


def normalize(norm: Norm, x: tf.Tensor, segments: tf.Tensor | None) -> tf.Tensor:
    """Returns norm(x), whose statistics leave out padding if the norm `takes_mask`.

    x is [B, T, ..., C], any float type. `segments`, int32 [B, T], are 0 at padding; None: none.
    """
    if segments is None or not norm.takes_mask:
        return norm(x)
    mask: Any = segments > 0
    for size in sizes_of(x)[2:-1]:
        mask = tf.repeat(tf.expand_dims(mask, -1), size, axis=-1)
    return norm(x, mask=mask)


def _pad_frames(x: tf.Tensor, before: int, after: int) -> tf.Tensor:
    return tf.pad(x, [[0, 0], [before, after], [0, 0], [0, 0]]) if before or after else x
