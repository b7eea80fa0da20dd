"""What gradients need of layers of images and volumes.

A convolution with batch norm keeps its result and the deviation from the mean. Maxima keep for each
window where its largest element was: an index for each dim. Means keep nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lingo.inspection.plan.residual import ACTIVATION_RESIDUALS, POSITION_AXES, Residual
from lingo.layers.flops import Record
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.norm import Norm
from lingo.layers.sequence.dot_product import DotProductAttention
from lingo.layers.vision.amoebanet import AmoebaNetHead, AmoebaNetStem
from lingo.layers.vision.amoebanet_cell import Cell
from lingo.layers.vision.auxiliary_head import AuxiliaryHead
from lingo.layers.vision.botnet import AttentionNorm
from lingo.layers.vision.conv import Conv2D
from lingo.layers.vision.conv3d import Conv3D, EnlargingConv3D, MaxPool3D
from lingo.layers.vision.conv_norm import ConvNorm
from lingo.layers.vision.depthwise_conv import DepthwiseConv2D, SeparableConv2D
from lingo.layers.vision.image_attention import ImageAttention
from lingo.layers.vision.image_head import ImageHead
from lingo.layers.vision.lenet import ConvPool
from lingo.layers.vision.patch_embedding import PatchEmbedding
from lingo.layers.vision.patch_head import PatchHead
from lingo.layers.vision.pool import MaxPool, Pool
from lingo.layers.vision.relu_conv_norm import FactorizedReduction, ReluConvNorm, SeparableUnit
from lingo.layers.vision.resnet import ResNetBlock
from lingo.layers.vision.squeeze_excite import SqueezeExcite
from lingo.layers.vision.ssd import ExtraMap, Ssd
from lingo.layers.vision.stochastic_depth import StochasticDepth
from lingo.layers.vision.unet import ConvNorm3D, UNet3D

_NORM_COPIES = 2  # of the result of a convolution: itself, and the deviation from its mean
_INDICES = 4  # of a maximum: its example, row, column and channel

_PARTS = (Conv2D, Conv3D, EnlargingConv3D, Linear, MaxPool3D, Norm, Pool)
_WHOLES = (
    AmoebaNetStem,
    AttentionNorm,
    AuxiliaryHead,
    Cell,
    ConvNorm,
    ConvNorm3D,
    ConvPool,
    DotProductAttention,
    ExtraMap,
    FactorizedReduction,
    ImageAttention,
    PatchEmbedding,
    ReluConvNorm,
    SeparableUnit,
    SqueezeExcite,
    Ssd,
    UNet3D,
)
"""Layers whose rules have what their `_PARTS` keep, too."""


def has_parts(layer: Layer) -> bool:
    """Returns whether the rule of a layer has the residuals of convolutions and norms inside."""
    return isinstance(layer, _WHOLES)


def image_residuals(
    layer: Layer, shape: Sequence[int], calls: Record, *, is_part: bool
) -> list[Residual] | None:
    """Returns the residuals of a layer of images, but for those of layers inside; None: no rule.

    Args:
        layer: any layer.
        shape: of its input, or of that of the nearest layer around it that counts its operations.
        calls: the shape that each layer gets.
        is_part: whether a layer around it `has_parts`.
    """
    match layer:
        case _ if is_part and isinstance(layer, _PARTS):
            return []
        case AmoebaNetHead() | ImageHead() | PatchHead():  # the vector that it multiplies
            return [Residual(1, (shape[0], layer.p.dim), ("batch", None))]
        case ConvNorm() | ConvNorm3D() | AttentionNorm():
            activation = layer.p.activation if isinstance(layer, ConvNorm) else "relu"
            more = 0 if activation == "identity" else ACTIVATION_RESIDUALS[activation]
            return [_image(_NORM_COPIES + more, layer.output_shape(shape))]
        case AmoebaNetStem():
            return [_image(_NORM_COPIES, layer.conv.output_shape(shape))]
        case FactorizedReduction():
            return [_image(_NORM_COPIES, layer.output_shape(shape))]
        case ReluConvNorm() | SeparableUnit():
            return list(_of_units(layer, shape))
        case Cell():
            return list(_of_cell(layer, calls[layer].shape))
        case AuxiliaryHead():
            return list(_of_auxiliary_head(layer, shape))
        case ConvPool():
            return list(_of_conv_pool(layer, shape))
        case ExtraMap():
            hidden = layer.reduce.output_shape(shape)
            return [_image(1, hidden), _image(1, layer.shrink.output_shape(hidden))]
        case ResNetBlock() | Conv2D() | Conv3D() | EnlargingConv3D():
            return [_image(1, layer.output_shape(shape))]
        case DepthwiseConv2D():
            # products of its channels at each place of the window are added
            return [_image(math.prod(layer.p.kernel), layer.output_shape(shape))]
        case Pool():
            return [_image(1 + _num_indices(layer), layer.output_shape(shape))]
        case SqueezeExcite():
            return [_image(1, shape)]
        case ImageAttention():
            return list(_of_image_attention(layer, shape))
        case UNet3D():  # what is joined before the first convolution of each level
            return [_image(1, calls[one].shape) for one in layer.up[::2]]
        case Norm() if len(shape) in (4, 5):  # of its own: the deviation, its result
            return [_image(2, shape)]
        case Ssd():  # logits of anchors, and their softmax
            codes, logits = layer.output_shape(shape)
            return [Residual(n, one, ("batch", None, None)) for n, one in ((1, codes), (2, logits))]
        case PatchEmbedding() | StochasticDepth():
            return []
        case _:
            return None


def _of_units(layer: ReluConvNorm | SeparableUnit, shape: Sequence[int]) -> Iterator[Residual]:
    """Yields what convolutions with a norm keep, and the ReLU before each but the first.

    Units that read the same tensor share the first, which is that of the cell.
    """
    for i, conv in enumerate(layer.convs):
        if i:
            yield _image(1, shape)
        if isinstance(conv, SeparableConv2D):
            yield _image(1, conv.depthwise.output_shape(shape))
        shape = conv.output_shape(shape)
        yield _image(_NORM_COPIES, shape)


def _of_cell(layer: Cell, shapes: Sequence[Sequence[int]]) -> Iterator[Residual]:
    """Yields the ReLU of each tensor that units read, and where maxima were.

    `before` has that of the cell before this one.
    """
    yield _image(1, shapes[0])
    nodes = layer.node_shapes(shapes)
    units = (ReluConvNorm, SeparableUnit)
    read = {node for node, one in layer.edges() if isinstance(one, units)}
    for node in sorted(read if layer.align else read - {1}):
        yield _image(1, nodes[node])
    for node, one in layer.edges():
        if isinstance(one, MaxPool):
            yield _image(_INDICES, one.output_shape(nodes[node]))


def _of_auxiliary_head(layer: AuxiliaryHead, shape: Sequence[int]) -> Iterator[Residual]:
    shape = layer.pool.output_shape(shape)
    yield _image(1, shape)
    for conv in layer.convs:
        shape = conv.output_shape(shape)
        yield _image(_NORM_COPIES + ACTIVATION_RESIDUALS["relu"], shape)


def _of_conv_pool(layer: ConvPool, shape: Sequence[int]) -> Iterator[Residual]:
    shape = layer.conv.output_shape(shape)
    yield _image(1, shape)
    if layer.pool is not None:
        yield _image(1 + _num_indices(layer.pool), layer.pool.output_shape(shape))


def _of_image_attention(layer: ImageAttention, shape: Sequence[int]) -> Iterator[Residual]:
    """Yields what attention keeps of places; queries twice more, for rows and for columns."""
    heads, places = layer.p.num_heads, math.prod(layer.p.image)
    names = ("batch", "length", "heads", None)
    yield Residual(6, (shape[0], places, heads, layer.p.output_dim // heads), names)
    weights = (shape[0], heads, places, places)
    yield Residual(1, weights, ("batch", "heads", "length", None), is_squeezed=True)


def _num_indices(layer: Pool) -> int:
    """Returns how many numbers say where the largest element of a window was."""
    return _INDICES if isinstance(layer, MaxPool) else 0


def _image(copies: int, shape: Sequence[int]) -> Residual:
    return Residual(copies, tuple(shape), ("batch", *POSITION_AXES[len(shape)], None))
