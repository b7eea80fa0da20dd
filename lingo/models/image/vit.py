"""Vision Transformers (Dosovitskiy et al. 2021), by default the plain ones of Beyer et al. (2022).

    Chain.params(layers=vit(size="S", num_classes=1000))

Axes: B batch, H height, W width, C channels, T patches, D model width.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from lingo.config.params import ParamError, Params
from lingo.layers.feed_forward import FeedForward
from lingo.layers.norm import LayerNorm
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.mask import Bidirectional
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.stack import Stack
from lingo.layers.vision.patch import (
    ClassToken,
    LearnedImagePositions,
    PatchEmbedding,
    PatchHead,
    Pooling,
    SinusoidImagePositions,
    patch_grid,
)

POSITIONS = {"sinusoid": SinusoidImagePositions, "learned": LearnedImagePositions}


class Encoder(NamedTuple):
    """The sizes of an encoder. The hidden width of its feed-forward networks is 4 * dim."""

    dim: int  # D
    num_layers: int
    num_heads: int


SIZES = {
    "XXS": Encoder(64, 4, 4),
    "Ti": Encoder(192, 12, 3),
    "S": Encoder(384, 12, 6),
    "B": Encoder(768, 12, 12),
    "L": Encoder(1024, 24, 16),
    "H": Encoder(1280, 32, 16),
}
"""Name -> sizes (Dosovitskiy et al. 2021, table 1; Ti and S from Touvron et al. 2021, table 1).

XXS is not published; it is for images of a few pixels.
"""


def vit(
    *,
    size: str,
    num_classes: int,
    image_shape: tuple[int, int, int] = (224, 224, 3),
    patch: int = 16,
    positions: Literal["sinusoid", "learned"] = "sinusoid",
    pooling: Pooling = "mean",
    token_position: bool = False,
    hidden_dim: int | None = None,
) -> list[Params]:
    """Returns the layers of a Vision Transformer, in order: from images [B, H, W, C] to logits.

    They are the embedding of patches, their positions, a pre-norm encoder, a last normalization,
    and the head. The defaults are from Beyer et al. (2022); the original ViT has
    `positions="learned", pooling="first", token_position=True`. With 1000 classes and
    images of 224 x 224, ViT-S/16 has 21,974,632 weights, and 22,122,472 with `hidden_dim=384`.

    Args:
        size: XXS, Ti, S, B, L or H.
        num_classes: number of labels.
        image_shape: (H, W, C) of the images.
        patch: height and width of a patch, in pixels, a divisor of H and W.
        positions: computed from sines and cosines, or trained.
        pooling: whether the head takes the mean of all patches, or a class token.
        token_position: whether the class token, too, has a trained position.
        hidden_dim: width of a hidden layer of the head; None: the head is linear.

    Raises:
        ParamError: if there is no such size, patches do not fill the images, or `token_position`
            is set without a class token and learned positions.
    """
    if size not in SIZES:
        raise ParamError(f"{size=} is not one of {', '.join(SIZES)}")
    if positions not in POSITIONS:
        raise ParamError(f"{positions=} is not one of {', '.join(POSITIONS)}")
    if token_position and (pooling != "first" or positions != "learned"):
        raise ParamError(
            f"{token_position=} is for pooling='first' with positions='learned', got {pooling=},"
            f" {positions=}"
        )
    dim, *image = SIZES[size].dim, *image_shape[:2]
    added = [POSITIONS[positions].params(dim=dim, grid=patch_grid(image, patch))]
    if token_position:
        added[0].num_tokens = 1
    if pooling == "first":
        added.insert(0 if token_position else 1, ClassToken.params(dim=dim))
    return [
        PatchEmbedding.params(dim=image_shape[2], output_dim=dim, patch=patch),
        *added,
        encoder_stack(SIZES[size]),
        LayerNorm.params(dim=dim),
        PatchHead.params(dim=dim, num_classes=num_classes, pooling=pooling, hidden_dim=hidden_dim),
    ]


def encoder_stack(encoder: Encoder) -> Params:
    """Returns an encoder with all biases, in which every patch sees all patches."""
    layer = TransformerLayer.params(
        dim=encoder.dim,
        attention=Attention.params(num_heads=encoder.num_heads, mask=Bidirectional, use_bias=True),
        ffn=FeedForward.params(activation="gelu", use_bias=True),
        norm=LayerNorm,
    )
    return Stack.params(layer=layer, num_layers=encoder.num_layers)
