"""From the patches of an image to the logits of its class.

Axes: B batch, T patches, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.context import annotate
from lingo.layers.initial import ZEROS
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.residual import Residual, ResidualCall, batch_residual

Pooling = Literal["mean", "first"]
"""The vector that stands for an image: the mean of all, or the first, that of a `ClassToken`."""


class ClassToken(Layer):
    """Puts a trained vector, the same for all images, before those of the patches.

    Attention fills it with what the image shows (Dosovitskiy et al. 2021, eq. 1). Departs from the
    paper: the vector has no position of its own, which would be added to it.

    Weights:
        token: [D], initially zeros.
    """

    dim: int  # D, width of the vectors

    def setup(self) -> None:
        self.token = self.weight("token", [self.p.dim], axes=("embed",), init=ZEROS)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, 1 + T, D], in the layer's dtype, for patches x [B, T, D]."""
        x = tf.cast(x, self.p.dtype)
        token = tf.zeros_like(x[:, :1]) + self.token
        return annotate(tf.concat([token, x], axis=1), "batch", "length", "embed")

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for patches of shape [B, T, D]."""
        batch, length, dim = shape
        return (batch, 1 + length, dim)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []


class PatchHead(Layer):
    """Computes logits from one vector of an image, by a linear map or with a hidden layer.

    The hidden layer, tanh(v w + b), is the `rep_size` of ViT's authors (Dosovitskiy et al. 2021,
    sec. 3.1).
    """

    dim: int  # D, width of the vectors
    num_classes: int  # number of labels
    pooling: Pooling = "mean"  # what the logits are computed from
    hidden_dim: int | None = None  # width of the hidden layer; None: there is none
    linear: Linear = Linear.params(use_bias=True)  # both maps

    def check(self) -> None:
        ranges.check_positive(self.p, "hidden_dim")

    def setup(self) -> None:
        p = self.p
        self.hidden, dim, axis = None, p.dim, "embed"
        if p.hidden_dim is not None:
            self.hidden = p.linear.build(dim=dim, output_dim=p.hidden_dim, axes=("embed", "mlp"))
            dim, axis = p.hidden_dim, "mlp"
        self.linear = p.linear.build(dim=dim, output_dim=p.num_classes, axes=(axis, None))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns logits [B, num_classes], in the layer's dtype, for patches x [B, T, D]."""
        x = tf.cast(x, self.p.dtype)
        vector = tf.reduce_mean(x, axis=1) if self.p.pooling == "mean" else x[:, 0]
        if self.hidden is not None:
            vector = tf.tanh(self.hidden(vector))
        return self.linear(vector)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the logits for patches of shape [B, T, D]."""
        return (shape[0], self.p.num_classes)

    def flops(self, shape: Sequence[int]) -> int:
        batch, *_, dim = shape
        if self.hidden is None:
            return self.linear.flops([batch, dim])
        hidden_shape = [batch, self.p.hidden_dim]
        return self.hidden.flops([batch, dim]) + self.linear.flops(hidden_shape)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return [batch_residual(1, (call.shape[0], self.p.num_classes), "output")]
