"""The head of an image classifier.

Axes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config.lazy import tf
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.product import Product
from lingo.layers.residual import Residual, ResidualCall, batch_residual


class ImageHead(Layer):
    """Computes the logits of labels by a linear map of the mean over all positions."""

    dim: int  # channels of the last image
    num_classes: int  # number of labels
    dropout_rate: float = 0.0  # dropout rate of the mean
    linear: Linear = Linear.params(use_bias=True, axes=(None, None))  # from the mean to logits

    products = (Product("mean", has_weight=False, is_sum=True),)

    def check(self) -> None:
        check_rate("dropout_rate", self.p.dropout_rate)

    def setup(self) -> None:
        self.linear = self.p.linear.build(dim=self.p.dim, output_dim=self.p.num_classes)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns logits [B, num_classes], in the layer's dtype, for images x [B, H, W, C]."""
        [x] = self.operands("mean", input=tf.cast(x, self.p.dtype))
        mean = tf.reduce_mean(x, axis=[1, 2])
        return self.linear(dropout(self, mean, rate=self.p.dropout_rate))

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the logits for images of shape [B, H, W, C]."""
        return (shape[0], self.p.num_classes)

    def flops(self, shape: Sequence[int]) -> int:
        batch, *_, channels = shape
        return self.linear.flops([batch, channels])

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        logits = batch_residual(1, self.output_shape(call.shape), "output")
        # XLA keeps the input of the mean, though its gradient does not need it
        return [batch_residual(1, call.shape, "input"), logits]
