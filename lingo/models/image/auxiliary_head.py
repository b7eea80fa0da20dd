"""A second head in the middle of a network, whose loss trains the layers before it.

Axes: B batch, H height, W width, C channels, K classes.
"""

from __future__ import annotations

from typing import Any

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.flops import passes_tensors
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.norm import Norm
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.layers.vision.conv import Conv2D
from lingo.layers.vision.conv_norm import convolve_and_normalize
from lingo.layers.vision.pool import AveragePool
from lingo.models.image.amoebanet_cell import Pair, Shape


class AuxiliaryHead(Layer):
    """Appends logits to a tuple, computed from its first tensor (Szegedy et al. 2015, sec. 5).

    The layers are a ReLU, means of 5x5 windows, a 1x1 convolution, a convolution whose window is as
    large as the image, and a linear map. A normalization and a ReLU follow each convolution, as in
    the authors' implementation of AmoebaNet. The image size is fixed, because the last window has
    the size of the image.
    """

    dim: int  # channels of the first tensor
    image: tuple[int, int]  # height and width of the first tensor, at least 5
    num_classes: int  # K, number of labels
    widths: tuple[int, int] = (128, 768)  # channels of the two convolutions
    pool: AveragePool = AveragePool.params(window=(5, 5), stride=3, padding="VALID")
    conv: Conv2D = Conv2D
    norm: Norm = BatchNorm
    linear: Linear = Linear.params(use_bias=True, axes=(None, None))

    def setup(self) -> None:
        p = self.p
        self.pool = p.pool.build()
        _, *window, _ = self.pool.output_shape([1, *p.image, p.dim])
        narrow, wide = p.widths
        self.convs = [
            p.conv.build(dim=p.dim, output_dim=narrow, kernel=(1, 1)),
            p.conv.build(dim=narrow, output_dim=wide, kernel=tuple(window), padding="VALID"),
        ]
        self.norms = [p.norm.build(dim=width) for width in p.widths]
        self.linear = p.linear.build(dim=wide, output_dim=p.num_classes)

    def __call__(self, state: Pair) -> Pair:
        """Returns `state`, ([B, H, W, C], any other tensors), with logits [B, K] appended.

        Raises ParamError if (H, W) is not `image`.
        """
        self._check(state[0].shape)
        y = self.pool(tf.nn.relu(tf.cast(state[0], self.p.dtype)))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            y = tf.nn.relu(convolve_and_normalize(y, conv=conv, norm=norm))
        return *state, self.linear(y[:, 0, 0])

    @passes_tensors
    def output_shape(self, shape: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """Returns the shapes of the tensors and of the logits; raises ParamError as a call does."""
        self._check(shape[0])
        return *shape, (shape[0][0], self.p.num_classes)

    def _check(self, shape: Any) -> None:
        if tuple(shape[1:3]) != tuple(self.p.image):
            raise ParamError(
                f"{self}: the head of a network is for images of one size, here"
                f" image={self.p.image}, but its input is {tuple(shape[1:3])}"
            )

    def flops(self, shape: tuple[Shape, ...]) -> int:
        total, x = self.pool.flops(shape[0]), self.pool.output_shape(shape[0])
        for conv, norm in zip(self.convs, self.norms, strict=True):
            total += conv.flops(x)
            x = conv.output_shape(x)
            total += norm.flops(x)
            x = norm.output_shape(x)
        return total + self.linear.flops([x[0], x[-1]])
