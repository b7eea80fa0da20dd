"""The Conformer: Transformer layers with a convolution inside (Gulati et al. 2020).

    x += dropout(ffn(norm(x))) / 2
    x += dropout(attention(norm(x)))      # the order of these two is a field
    x += dropout(conv(norm(x)))
    x += dropout(ffn(norm(x))) / 2
    norm(x)

Axes: B batch, T frames, D model width, F frequencies of the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.context import annotate
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.feed_forward import FeedForward
from lingo.layers.initial import ZEROS, FanIn, Initializer
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.norm import LayerNorm, Norm
from lingo.layers.product import Product
from lingo.layers.residual import (
    ACTIVATION_COPIES,
    SEQUENCE_AXES,
    Residual,
    ResidualCall,
    batch_residual,
)
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.convolution import DepthwiseConv1D
from lingo.layers.sequence.mask import Bidirectional
from lingo.layers.sequence.transformer_xl import TransformerXl
from lingo.layers.stacks.stack import Stack
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.models.speech.subsampling import ConvSubsampling, normalize
from lingo.ops.activations import Activation, activate

Order = Literal["mhsa", "conv", "mhsa_before_conv", "conv_before_mhsa"]
"""Which sublayers stand between the feed-forward networks, and in which order, as in Lingvo.

`mhsa` is attention, `conv` the convolution."""

_SUBLAYERS: dict[str, tuple[str, ...]] = {
    "mhsa": ("attention",),
    "conv": ("conv",),
    "mhsa_before_conv": ("attention", "conv"),
    "conv_before_mhsa": ("conv", "attention"),
}


class ConformerConv(Layer):
    """A gated projection, a depthwise convolution, a norm, an activation and a projection.

    This is the convolution module of Gulati et al. 2020, sec. 2.2; `ConformerLayer` normalizes its
    input and adds the residual. Padding is zero for the convolution, and statistics of `BatchNorm`
    and `GroupNorm` leave it out. A row is one recording: the convolution does not separate packed
    documents.

    Weights:
        w_in: [D, 2, D], to the gate and to the value, which sigmoid(gate) multiplies.
        b_in: [2, D], initially zeros.
        w_out: [D, D].
        b_out: [D], initially zeros.
    """

    dim: int  # width of the input and of the output
    kernel: int = 32  # frames of the convolution's window
    is_causal: bool = False  # whether the window ends with its own frame, as for streaming
    # after the convolution; streaming needs statistics that are moving averages, cumulative
    # (GroupNorm.is_cumulative) or over each frame (LayerNorm)
    norm: Norm = BatchNorm
    activation: Activation = "silu"  # after the norm
    conv: DepthwiseConv1D = DepthwiseConv1D.params(use_bias=True, axis="mlp", init=FanIn)
    init: Initializer = FanIn  # of the two projections

    products = (Product("w_in"), Product("w_out"))

    def check(self) -> None:
        ranges.check_positive(self.p, "kernel")

    def setup(self) -> None:
        p, init = self.p, self.p.init.build()
        axes = ("embed", None, "mlp")
        self.w_in = self.weight("w_in", [p.dim, 2, p.dim], axes=axes, init=init)
        self.b_in = self.weight("b_in", [2, p.dim], axes=axes[1:], init=ZEROS)
        self.conv = p.conv.build(dim=p.dim, kernel=p.kernel, is_causal=p.is_causal)
        self.norm = p.norm.build(dim=p.dim)
        self.w_out = self.weight("w_out", [p.dim, p.dim], axes=("mlp", "embed"), init=init)
        self.b_out = self.weight("b_out", [p.dim], axes=("embed",), init=ZEROS)

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns [B, T, D], in the layer's dtype, for x [B, T, D], any float type.

        Of `inputs` it reads `segments`, int32 [B, T]: frames of segment 0 are padding.
        """
        y = self.conv(self._gate(x, inputs.segments))
        return self._project(normalize(self.norm, y, inputs.segments))

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        y = self.conv.step(self._gate(x, inputs.segments), index)
        return self._project(self.norm.step(y, index))

    def flops(self, shape: Sequence[int]) -> int:
        shape = tuple(shape)
        inside = self.conv.flops(shape) + self.norm.flops(self.conv.output_shape(shape))
        return inside + 2 * math.prod(shape) * 3 * self.p.dim

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        size, axes = tuple(call.shape), (*SEQUENCE_AXES, "mlp")
        copies = ACTIVATION_COPIES[self.p.activation]
        return [
            batch_residual(1, size, "input"),
            Residual(1, size, axes),  # the value
            Residual(1, size, axes, is_elementwise=True),  # sigmoid(gate)
            Residual(copies, size, axes, is_elementwise=True),
        ]

    def _gate(self, x: tf.Tensor, segments: tf.Tensor | None) -> tf.Tensor:
        """Returns value * sigmoid(gate), [B, T, D], zeros at padding, for x [B, T, D]."""
        x = tf.cast(x, self.p.dtype)
        y = tf.einsum("btd,dgf->btgf", *self.operands("w_in", input=x)) + self.b_in
        y = gate(annotate(y, "batch", "length", None, "mlp"))
        return y if segments is None else y * tf.cast(segments > 0, y.dtype)[:, :, None]

    def _project(self, x: tf.Tensor) -> tf.Tensor:
        x = annotate(activate(x, self.p.activation), "batch", "length", "mlp")
        y = tf.einsum("btf,fd->btd", *self.operands("w_out", input=x)) + self.b_out
        return annotate(y, "batch", "length", "embed")


class ConformerLayer(Layer):
    """Half a feed-forward step, attention and convolution, another half step, and a norm.

    The order of the formula above is Lingvo's and the paper's (Gulati et al. 2020, eq. 1). With the
    defaults, `DepthwiseConv1D.use_bias=False` and width d, a layer with a kernel of k frames has
    24 d^2 + (k + 31) d weights.

    For streaming, take `Attention.mask=LocalWindow(window=left)` or `Causal`, and
    `ConformerConv.is_causal=True`.
    """

    dim: int  # width of the input and of the output
    ffn: FeedForward = FeedForward.params(activation="silu", use_bias=True)  # built twice
    attention: Layer = Attention.params(mask=Bidirectional, positions=TransformerXl, use_bias=True)
    conv: ConformerConv = ConformerConv  # the convolution
    order: Order = "mhsa_before_conv"  # what stands between the feed-forward networks
    norm: Norm = LayerNorm  # before each sublayer and at the end
    dropout_rate: float = 0.0  # dropout rate of each sublayer's output

    def check(self) -> None:
        check_rate("dropout_rate", self.p.dropout_rate)

    def setup(self) -> None:
        p = self.p
        self.sublayers = ("first_ffn", *_SUBLAYERS[p.order], "last_ffn")
        for name in self.sublayers:
            part = p.ffn if name.endswith("ffn") else getattr(p, name)
            setattr(self, f"{name}_norm", p.norm.build(dim=p.dim))
            setattr(self, name, part.build(dim=p.dim))
        self.out_norm = p.norm.build(dim=p.dim)

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns [B, T, D], in the layer's dtype, for x [B, T, D], any float type.

        Of `inputs` it reads `segments` and `position_ids`.
        """
        return self._run(x, inputs)

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        return self._run(x, inputs, index)

    def flops(self, shape: Sequence[int]) -> int:
        return sum(getattr(self, name).flops(tuple(shape)) for name in self.sublayers)

    def _run(self, x: tf.Tensor, inputs: CallInputs, index: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the result for x; with an `index` it calls the sublayers' `step`."""
        inputs = CallInputs(segments=inputs.segments, position_ids=inputs.position_ids)
        of_step = inputs._replace(segments=None)
        x = annotate(tf.cast(x, self.p.dtype), "batch", "length", "embed")

        def compute(name: str, x: tf.Tensor) -> tf.Tensor:
            layer = getattr(self, name)
            if index is None:
                return layer(x, inputs=inputs)
            return layer.step(x, index, inputs=inputs if name == "conv" else of_step)

        for name in self.sublayers:
            change = compute(name, compute(f"{name}_norm", x))
            change = dropout(self, change, rate=self.p.dropout_rate, name=f"{name}_dropout")
            x = annotate(
                x + (0.5 * change if name.endswith("ffn") else change), "batch", "length", "embed"
            )
        return compute("out_norm", x)


class ConformerEncoder(Layer):
    """Convolutions that make a recording shorter, then Conformer layers (Gulati et al. 2020).

    The sizes S, M and L of the paper have 16, 16 and 17 layers of width 144, 256 and 512, with 4, 4
    and 8 heads, and kernels of 32 frames.
    """

    dim: int  # F, number of frequencies
    output_dim: int  # D, width of the layers
    # shortens the recording; its default has as many channels as the layers
    subsampling: ConvSubsampling = ConvSubsampling
    stack: Layer = Stack.params(layer=ConformerLayer, num_layers=16)  # the layers
    dropout_rate: float = 0.0  # dropout rate of the layers' input

    def check(self) -> None:
        check_rate("dropout_rate", self.p.dropout_rate)

    def setup(self) -> None:
        p = self.p
        self.subsampling = p.subsampling.build(
            dim=p.dim, output_dim=p.output_dim, channels=p.output_dim
        )
        self.stack = p.stack.build(dim=p.output_dim)

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns [B, T', D], in the layer's dtype, for frames x [B, T, F], any float type.

        Of `inputs` it reads `segments`, int32 [B, T]: frames of segment 0 are padding.
        """
        return self._run(x, inputs.segments)

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Computes the next frames: [B, C / 4, D] for x [B, C, F]; C is a multiple of 4.

        `index` is the number of earlier frames. `inputs.segments` are needed only where a recording
        ends inside of the chunk.
        """
        return self._run(x, inputs.segments, index)

    def subsample(self, segments: tf.Tensor) -> tf.Tensor:
        """Returns the document ids of the result's frames, int32 [B, T'], for int32 [B, T]."""
        return self.subsampling.subsample(segments)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for frames of shape [B, T, F]."""
        return self.subsampling.output_shape(shape)

    def flops(self, shape: Sequence[int]) -> int:
        shape = tuple(shape)
        inside = self.subsampling.output_shape(shape)
        return self.subsampling.flops(shape) + self.stack.flops(inside)

    def _run(
        self, x: tf.Tensor, segments: tf.Tensor | None, index: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns the result for frames x; with an `index` it calls `step` of the layers inside."""
        inputs, later = CallInputs(segments=segments), NO_INPUTS
        if segments is not None:
            later = CallInputs(segments=self.subsample(segments))
        if index is None:
            x = dropout(self, self.subsampling(x, inputs=inputs), rate=self.p.dropout_rate)
            return self.stack(x, inputs=later)
        x = self.subsampling.step(x, index, inputs=inputs)
        return self.stack.step(x, index // 2**self.subsampling.p.num_layers, inputs=later)


def gate(x: tf.Tensor) -> tf.Tensor:
    """Returns the gated values, [..., D], for [..., 2, D]: first the gates, then the values.

    This is Lingvo's order. x has any float type.

    >>> gate(tf.constant([[3.0, 4.0], [1.0, 2.0]])).numpy().round(4)
    array([0.9526, 1.964 ], dtype=float32)
    """
    gates, values = tf.unstack(x, axis=-2)
    return tf.sigmoid(gates) * values
