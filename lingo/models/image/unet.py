"""The 3D U-Net, which labels each voxel of a volume (Cicek et al. 2016).

    UNet3D.params(dim=1, num_classes=2, width=8, num_levels=2)

Axes: B batch, D depth, H height, W width, C input channels, F output channels, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.layer import Layer
from lingo.layers.norm import Norm
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.layers.vision.conv import Conv3D, UpConv3D
from lingo.layers.vision.conv_norm import convolve_and_normalize
from lingo.layers.vision.pool import MaxPool3D
from lingo.layers.window import annotate_image


class ConvNorm3D(Layer):
    """A 3D convolution, a normalization of its channels, and a ReLU."""

    dim: int  # channels of the input
    output_dim: int  # channels of the output
    conv: Conv3D = Conv3D
    norm: Norm = BatchNorm

    def setup(self) -> None:
        p = self.p
        self.conv = p.conv.build(dim=p.dim, output_dim=p.output_dim)
        self.norm = p.norm.build(dim=p.output_dim)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, D', H', W', F], in the layer's dtype, for volumes x [B, D, H, W, C]."""
        return tf.nn.relu(convolve_and_normalize(x, conv=self.conv, norm=self.norm))

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for volumes of shape [B, D, H, W, C]."""
        return self.conv.output_shape(shape)

    def flops(self, shape: Sequence[int]) -> int:
        return self.conv.flops(shape) + self.norm.flops(self.conv.output_shape(shape))


class UNet3D(Layer):
    """Computes the logits of each voxel from volumes at several resolutions.

    On the way down, each level has two 3x3x3 convolutions, then a 2x2x2 maximum. On the way up, the
    volume is doubled, joined with the same level's volume from the way down, and convolved twice.
    Level i has width * 2^i channels after its first convolution, and twice as many after its other
    convolutions. The network's last convolution has a 1x1x1 window. With 4 levels, width 32, 3
    channels and 3 classes it is the paper's network. The paper's 19,069,955 weights include one
    vector per convolution. Here each convolution has two vectors: the beta and gamma of its
    normalization.
    """

    dim: int  # C, channels of the volumes
    num_classes: int  # K
    width: int = 32  # channels after the first convolution
    num_levels: int = 4  # resolutions; each has half the size of the one before, rounded up
    unit: ConvNorm3D = ConvNorm3D  # each convolution but the last
    enlarge: UpConv3D = UpConv3D
    pool: MaxPool3D = MaxPool3D
    conv: Conv3D = Conv3D.params(use_bias=True)  # the last convolution

    def check(self) -> None:
        ranges.check_positive(self.p, "width", "num_levels")

    def setup(self) -> None:
        p = self.p
        dims = [2 * p.width * 2**level for level in range(p.num_levels)]
        inputs = [p.dim, *dims]
        self.pool = p.pool.build()
        down = [
            maps
            for before, dim in zip(inputs, dims, strict=False)
            for maps in ((before, dim // 2), (dim // 2, dim))
        ]
        ways_up = list(reversed(list(zip(dims[1:], dims, strict=False))))
        up = [maps for below, dim in ways_up for maps in ((below + dim, dim), (dim, dim))]
        self.down = [p.unit.build(dim=before, output_dim=after) for before, after in down]
        self.enlargements = [p.enlarge.build(dim=below, output_dim=below) for below, _ in ways_up]
        self.up = [p.unit.build(dim=before, output_dim=after) for before, after in up]
        self.conv = p.conv.build(dim=dims[0], output_dim=p.num_classes, kernel=(1, 1, 1))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns logits [B, D, H, W, K], in the layer's dtype, for volumes x [B, D, H, W, C]."""
        levels: list[tf.Tensor] = []
        for i in range(0, len(self.down), 2):
            x = self.pool(x) if levels else x
            x = self.down[i + 1](self.down[i](x))
            levels.append(x)
        x = levels.pop()
        for i, enlarge in enumerate(self.enlargements):
            same = levels.pop()
            _, depth, height, width, _ = same.shape
            x = annotate_image(enlarge(x)[:, :depth, :height, :width])
            x = tf.concat([same, x], axis=-1)
            x = self.up[2 * i + 1](self.up[2 * i](x))
        return self.conv(x)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the logits for volumes of shape [B, D, H, W, C]."""
        return (*shape[:-1], self.p.num_classes)

    def flops(self, shape: Sequence[int]) -> int:
        shapes: list[Sequence[int]] = []  # of each level
        total = 0
        for i in range(0, len(self.down), 2):
            if shapes:
                total += self.pool.flops(shape)
                shape = self.pool.output_shape(shape)
            for unit in self.down[i : i + 2]:
                total += unit.flops(shape)
                shape = unit.output_shape(shape)
            shapes.append(shape)
        below = shapes.pop()
        for i, enlarge in enumerate(self.enlargements):
            total += enlarge.flops(below)
            *volume, dim = shapes.pop()
            shape = (*volume, dim + below[-1])
            for unit in self.up[2 * i : 2 * i + 2]:
                total += unit.flops(shape)
                shape = unit.output_shape(shape)
            below = shape
        return total + self.conv.flops(below)
