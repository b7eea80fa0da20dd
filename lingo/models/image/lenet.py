"""LeNet-5: two convolutions and a hidden layer (LeCun et al. 1998, sec. II.B), in Lingvo's sizes.

    Chain.params(layers=lenet5(num_classes=10))

Axes: B batch, H height, W width, C input channels, F output channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.layer import Layer
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.layers.vision.conv import Conv2D
from lingo.layers.vision.image_head import ImageHead
from lingo.layers.vision.pool import MaxPool, Pool


class ConvPool(Layer):
    """A convolution, a ReLU, the maximum of each window, and dropout."""

    dim: int  # channels of the input
    output_dim: int  # channels of the output
    kernel: tuple[int, int] = (5, 5)  # height and width of the convolution's window
    dropout_rate: float = 0.0  # of the result
    conv: Conv2D = Conv2D
    pool: Pool | None = MaxPool  # None: no pooling

    def check(self) -> None:
        check_rate("dropout_rate", self.p.dropout_rate)

    def setup(self) -> None:
        p = self.p
        self.conv = p.conv.build(dim=p.dim, output_dim=p.output_dim, kernel=p.kernel)
        self.pool = p.pool.build() if p.pool else None

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H', W', F], in the layer's dtype, for images x [B, H, W, C]."""
        y = tf.nn.relu(self.conv(x))
        y = self.pool(y) if self.pool else y
        return dropout(self, y, rate=self.p.dropout_rate)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for images of shape [B, H, W, C]."""
        shape = self.conv.output_shape(shape)
        return self.pool.output_shape(shape) if self.pool else tuple(shape)

    def flops(self, shape: Sequence[int]) -> int:
        pool = self.pool.flops(self.conv.output_shape(shape)) if self.pool else 0
        return self.conv.flops(shape) + pool

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        if self.pool and self.pool.num_indices:
            return []  # the max pooling keeps the ReLU's result
        origin = "own" if self.pool else "output"
        return [batch_residual(1, self.conv.output_shape(call.shape), origin)]


def lenet5(
    *,
    num_classes: int,
    image_shape: tuple[int, int, int] = (28, 28, 1),
    dropout_rate: float = 0.2,
) -> list[Params]:
    """Returns the layers of LeNet-5, in order: from images [B, H, W, C] to logits.

    The sizes are from Lingvo's `image.mnist.LeNet5`: convolutions of 20 and 50 channels without a
    bias, each followed by a maximum of 2x2 windows and dropout, a hidden layer of 300, and the
    logits. It has 763,810 weights for images of 28 x 28 and ten classes. The hidden layer is a
    convolution whose window is the whole image.

    Args:
        num_classes: number of labels.
        image_shape: (H, W, C) of the images.
        dropout_rate: after each maximum.
    """
    channels = image_shape[2]
    units = [
        ConvPool.params(dim=channels, output_dim=20, dropout_rate=dropout_rate),
        ConvPool.params(dim=20, output_dim=50, dropout_rate=dropout_rate),
    ]
    shape: Sequence[int] = (1, *image_shape)
    for unit in units:
        shape = unit.build().output_shape(shape)
    _, height, width, channels = shape
    hidden = ConvPool.params(dim=channels, output_dim=300, kernel=(height, width), pool=None)
    hidden.conv.set(padding="VALID", use_bias=True)
    return [*units, hidden, ImageHead.params(dim=300, num_classes=num_classes)]
