"""AmoebaNet-B and AmoebaNet-D (Real et al. 2019) at the sizes of GPipe's experiments.

    Chain.params(layers=amoebanet(num_layers=18, num_filters=208, num_classes=1000))

Each layer passes a pair of tensors to the next (`lingo.models.image.amoebanet_cell`).

Axes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

from typing import Any, Literal

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.norm import Norm
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.layers.stacks.stack import Chain
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.layers.vision.conv import Conv2D
from lingo.layers.vision.conv_norm import convolve_and_normalize
from lingo.models.image.amoebanet_cell import (
    Cell,
    NormalCell,
    NormalCellB,
    Pair,
    ReductionCell,
    ReductionCellB,
    Shape,
)
from lingo.models.image.auxiliary_head import AuxiliaryHead


class AmoebaNetStem(Layer):
    """A 3x3 convolution of the image. The first cell takes its result as both inputs."""

    dim: int = 3  # channels of the images
    output_dim: int  # channels of the result
    stride: int = 2  # how many times smaller the result is
    conv: Conv2D = Conv2D
    norm: Norm = BatchNorm

    def setup(self) -> None:
        p = self.p
        self.conv = p.conv.build(dim=p.dim, output_dim=p.output_dim, kernel=(3, 3), stride=p.stride)
        self.norm = p.norm.build(dim=p.output_dim)

    def __call__(self, x: tf.Tensor) -> Pair:
        """Returns [B, H', W', C'] twice, in the layer's dtype, for images x [B, H, W, C]."""
        y = convolve_and_normalize(x, conv=self.conv, norm=self.norm)
        return y, y

    def output_shape(self, shape: Shape) -> tuple[Shape, Shape]:
        """Returns the shapes of the pair for images of shape [B, H, W, C]."""
        output = self.conv.output_shape(shape)
        return output, output

    def flops(self, shape: Shape) -> int:
        return self.conv.flops(shape) + self.norm.flops(self.conv.output_shape(shape))


class AmoebaNetHead(Layer):
    """Computes logits by a linear map of the mean over all positions."""

    dim: int  # channels of the last cell's result
    num_classes: int  # number of labels
    dropout_rate: float = 0.0  # of the mean
    linear: Linear = Linear.params(use_bias=True, axes=(None, None))

    def check(self) -> None:
        check_rate("dropout_rate", self.p.dropout_rate)

    def setup(self) -> None:
        self.linear = self.p.linear.build(dim=self.p.dim, output_dim=self.p.num_classes)

    def __call__(self, pair: Pair) -> Any:
        """Returns logits [B, num_classes] for the pair's first tensor, the last cell's result.

        If logits of auxiliary heads follow the pair, the result is a tuple: this head's logits,
        then the auxiliary logits.
        """
        x, _, *auxiliary = pair
        mean = dropout(self, tf.reduce_mean(x, axis=[1, 2]), rate=self.p.dropout_rate)
        logits = self.linear(mean)
        return (logits, *auxiliary) if auxiliary else logits

    def output_shape(self, shape: tuple[Shape, ...]) -> Any:
        """Returns the shape of the logits for the inputs' shapes; a tuple with auxiliary logits."""
        x, _, *auxiliary = shape
        own = (x[0], self.p.num_classes)
        return (own, *auxiliary) if auxiliary else own

    def flops(self, shape: tuple[Shape, ...]) -> int:
        batch, *_, channels = shape[0]
        return self.linear.flops([batch, channels])

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return [batch_residual(1, (call.shape[0], self.p.num_classes), "output")]


Version = Literal["B", "D"]
"""AmoebaNet-B or -D, whose cells evolution found."""


def amoebanet(
    *,
    num_layers: int,
    num_filters: int,
    num_classes: int,
    channels: int = 3,
    version: Version = "D",
    small_images: bool = False,
    drop_path_rate: float = 0.0,
    dropout_rate: float = 0.0,
    auxiliary_image: tuple[int, int] | None = None,
) -> list[Params]:
    """Returns the layers of an AmoebaNet (L, D), in order: from images [B, H, W, C] to logits.

    They are the stem, three groups of L / 3 normal cells with a reduction cell between groups, and
    the head. Every reduction doubles the filters. Number of weights of AmoebaNet-D with 1000
    classes, here and as published (Huang et al. 2019, table 1):

        (L, D)       (18, 208)    (18, 416)    (18, 544)      (36, 544)      (72, 512)
        here        81,505,540  319,024,120  542,734,840  1,055,832,376  1,844,858,344
        published         82 M        318 M        542 M         1.05 B          1.8 B

    The paper rounds the first number, and truncates the third and fourth. The second is 319.0 M
    here. AmoebaNet-B (18, 512) has 560,053,608 weights; 557 M are published (sec. 4). An auxiliary
    head adds 9,257,704 for images of 480 x 480. The difference of 3 M is 0.5 %. No way of counting
    explains it: scales and offsets of norms are 0.5 M, and a stem of 32 channels, as in the
    authors' implementation for TPUs, saves 0.1 M.

    Raises ParamError if L is not a multiple of 3, or D is not a multiple of 4.

    Args:
        num_layers: L, the number of normal cells.
        num_filters: D, the filters of the first normal cells.
        num_classes: number of labels.
        channels: C, the channels of the images.
        version: B or D.
        small_images: whether the stem has D filters and no reductions, for images of a few pixels.
            The stem for ImageNet is a convolution of stride 2 to D / 4 channels, then two reduction
            cells.
        drop_path_rate: cell i of n, from i = 1, drops operations with the probability
            drop_path_rate * i / n (Zoph et al. 2018, which also raises it during training).
        dropout_rate: the head's.
        auxiliary_image: (H, W) of the images; the second group then ends with an auxiliary head,
            whose size depends on (H, W). None: there is no auxiliary head.
    """
    if num_layers < 3 or num_layers % 3:
        raise ParamError(f"{num_layers=} is not a multiple of 3: there are three groups of cells")
    if num_filters < 4 or num_filters % 4:
        raise ParamError(f"{num_filters=} is not a multiple of 4, as bottlenecks and stem need")
    normal, reduction = CELLS[version]
    group: list[type[Cell]] = [normal] * (num_layers // 3)
    if small_images:
        width, stem, stride = num_filters, [], 1
    else:
        width, stem, stride = num_filters // 4, [reduction, reduction], 2
    layers: list[Params] = [AmoebaNetStem.params(dim=channels, output_dim=width, stride=stride)]
    dim, before_dim, after_reduction = width, width, False
    cells = [*stem, *group, reduction, *group, reduction, *group]
    for i, cell in enumerate(cells, 1):
        width *= cell.stride
        layers.append(
            cell.params(
                dim=dim,
                before_dim=before_dim,
                num_filters=width,
                after_reduction=after_reduction,
                drop_path_rate=drop_path_rate * i / len(cells),
            )
        )
        dim, before_dim = width * len(cell.genotype.result), dim
        after_reduction = cell is reduction
    layers.append(AmoebaNetHead.params(dim=dim, num_classes=num_classes, dropout_rate=dropout_rate))
    if auxiliary_image is not None:
        index = len(layers) - 2 - len(group)  # before the last reduction
        head = _auxiliary_head(layers[:index], (1, *auxiliary_image, channels), num_classes)
        layers.insert(index, head)
    return layers


def _auxiliary_head(before: list[Params], shape: Shape, num_classes: int) -> Params:
    """Returns the auxiliary head behind layers, for images of shape [1, H, W, C]."""
    result: Any = Chain.params(layers=before).build().output_shape(shape)
    _, *image, dim = result[0]
    return AuxiliaryHead.params(dim=dim, image=tuple(image), num_classes=num_classes)


CELLS: dict[Version, tuple[type[Cell], type[Cell]]] = {
    "B": (NormalCellB, ReductionCellB),
    "D": (NormalCell, ReductionCell),
}
"""The normal and the reduction cell of each version."""
