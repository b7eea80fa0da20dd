"""Image networks as timm, torchvision and Keras define them, in lingo's layers.

    find_architecture("timm.resnet50").layers(num_classes=1000)

What differs between the libraries is a field of lingo's layers: where windows lie, the epsilon and
the decay of batch norms, biases before a norm, the position of a class token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from lingo.config.params import ParamError, Params, suggest
from lingo.layers import BatchNorm, Chain, Conv2D, DepthwiseConv2D, MaxPool
from lingo.models.image import efficientnet, resnet, vit
from lingo.models.image.resnet import STAGES as RESNET_STAGES

Library = Literal["timm", "torchvision", "keras"]
Family = Literal["resnet", "efficientnet", "vit"]

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and deviation of pixels
_HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))  # -1 to 1
_CAFFE = (tuple(n / 255 for n in (123.68, 116.779, 103.939)), (1 / 255,) * 3)  # 0 to 255, shifted
_VIT_SIZES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H"}


class Place(NamedTuple):
    """The role of a layer in a network."""

    kind: str  # first part of the keys in `NAMES`
    stage: int = 0  # from 1
    index: int = 0  # of a block in its stage, from 0


class Architecture(NamedTuple):
    """A network of a library."""

    name: str  # library.network
    library: Library
    family: Family
    size: str  # of the family: 50, b0, B
    image_size: int = 224  # height and width of the images that it was published for
    patch: int = 16  # of a Vision Transformer
    padding: Literal["SAME", "CENTERED"] = "CENTERED"
    epsilon: float = 1e-5  # of batch norms
    decay: float = 0.9  # of batch norms
    levels: tuple[tuple[float, ...], tuple[float, ...]] = IMAGENET

    def model(self, *, num_classes: int, image_size: int | None = None) -> Params:
        """Returns the params of the network, from images [B, H, W, 3] to logits.

        `image_size` is H and W; None: the published size. Only a Vision Transformer depends on it.
        """
        build = {"resnet": self._resnet, "efficientnet": self._efficientnet, "vit": self._vit}
        model = Chain.params(layers=build[self.family](num_classes, image_size or self.image_size))
        if self.family != "vit":
            norms = model.all(BatchNorm)
            norms.set(epsilon=self.epsilon, decay=self.decay, moving_moment="variance")
        return model

    def _resnet(self, num_classes: int, image_size: int) -> list[Params]:
        del image_size
        is_keras = self.library == "keras"
        layers = resnet.resnet(
            num_layers=int(self.size),
            num_classes=num_classes,
            version="v1" if is_keras else "v1.5",
        )
        for layer in layers:
            layer.all(Conv2D).set(padding=self.padding, use_bias=is_keras)
            layer.all(MaxPool).set(padding=self.padding)
        return layers

    def _efficientnet(self, num_classes: int, image_size: int) -> list[Params]:
        del image_size
        scaling = efficientnet.SCALINGS[self.size]
        layers = efficientnet.efficientnet(scaling, num_classes=num_classes)
        for layer in layers:
            layer.all(Conv2D).set(padding=self.padding)
            layer.all(DepthwiseConv2D).set(padding=self.padding)
        return layers

    def _vit(self, num_classes: int, image_size: int) -> list[Params]:
        return vit.vit(
            size=self.size,
            num_classes=num_classes,
            image_shape=(image_size, image_size, 3),
            patch=self.patch,
            positions="learned",
            pooling="first",
            token_position=True,
        )

    def grid(self, image_size: int | None = None) -> tuple[int, int]:
        """Returns the rows and columns of a Vision Transformer's patches in square images."""
        side = (image_size or self.image_size) // self.patch
        return side, side

    def places(self) -> list[Place]:
        """Returns the role of each layer of the network, in order."""
        if self.family == "vit":
            kinds = ("patches", "token", "positions", "block", "norm", "head")
            return [Place(kind) for kind in kinds]
        if self.family == "resnet":
            counts = RESNET_STAGES[int(self.size)][1]
            return [Place("stem"), Place("pool"), *_blocks(counts), Place("head")]
        depth = efficientnet.SCALINGS[self.size].depth
        counts = [math.ceil(stage.num_blocks * depth) for stage in efficientnet.STAGES]
        blocks = [
            place._replace(kind="narrow") if place.stage == 1 else place
            for place in _blocks(counts)
        ]
        return [Place("stem"), *blocks, Place("top"), Place("head")]


def _blocks(counts: Any) -> Iterator[Place]:
    for stage, count in enumerate(counts, 1):
        for index in range(count):
            yield Place("block", stage, index)


def _resnets() -> Iterator[Architecture]:
    for size in ("18", "34", "50", "101", "152"):
        yield Architecture(f"torchvision.resnet{size}", "torchvision", "resnet", size)
        yield Architecture(f"timm.resnet{size}", "timm", "resnet", size)
    keras = Architecture("", "keras", "resnet", "", epsilon=1.001e-5, decay=0.99, levels=_CAFFE)
    for size in ("50", "101", "152"):
        yield keras._replace(name=f"keras.ResNet{size}", size=size)


def _efficientnets() -> Iterator[Architecture]:
    for size, scaling in efficientnet.SCALINGS.items():
        name = f"efficientnet_{size}"
        timm = Architecture(f"timm.{name}", "timm", "efficientnet", size, scaling.image_size)
        yield timm
        yield timm._replace(name=f"timm.tf_{name}", padding="SAME", epsilon=1e-3)
        torch = timm._replace(name=f"torchvision.{name}", library="torchvision")
        is_large = size in ("b5", "b6", "b7")
        yield torch._replace(epsilon=1e-3, decay=0.99) if is_large else torch
        keras = timm._replace(name=f"keras.EfficientNet{size.upper()}", library="keras")
        yield keras._replace(padding="SAME", epsilon=1e-3, decay=0.99)


def _vits() -> Iterator[Architecture]:
    for word, size, patch in (("b", "B", 16), ("b", "B", 32), ("l", "L", 16), ("l", "L", 32)):
        name = f"torchvision.vit_{word}_{patch}"
        yield Architecture(name, "torchvision", "vit", size, patch=patch)
    for word, patch, *sizes in (
        ("tiny", 16, 224, 384),
        ("small", 16, 224, 384),
        ("small", 32, 224, 384),
        ("base", 8, 224),
        ("base", 16, 224, 384),
        ("base", 32, 224, 384),
        ("large", 16, 224, 384),
        ("large", 32, 224, 384),
        ("huge", 14, 224),
    ):
        for image_size in sizes:
            fields: dict[str, Any] = {"image_size": image_size, "patch": patch}
            name = f"timm.vit_{word}_patch{patch}_{image_size}"
            yield Architecture(name, "timm", "vit", _VIT_SIZES[word], **fields, levels=_HALVES)

    for word, image_size in (("tiny", 224), ("small", 224), ("base", 224), ("base", 384)):
        name = f"timm.deit_{word}_patch16_{image_size}"
        yield Architecture(name, "timm", "vit", _VIT_SIZES[word], image_size)


ARCHITECTURES: Mapping[str, Architecture] = {
    one.name: one for one in (*_resnets(), *_efficientnets(), *_vits())
}
"""Every network that lingo computes exactly, by its name."""

_REASONS = {
    "resnext": "its convolutions have groups",
    "wide_resnet": "the middle of its blocks is wider",
    "resnetv2": "its blocks begin with the norm",
    "V2": "its blocks are others",
    "efficientnetv2": "its first blocks are fused convolutions",
    "efficientnet_v2": "its first blocks are fused convolutions",
    "distilled": "it has a second token",
    "_clip_": "it has a norm before its blocks",
    "siglip": "it pools by attention",
    "_gap_": "it has a norm after the mean of all patches",
    "dinov": "it scales what each layer adds",
    "_reg": "it has register tokens",
    "_rope": "its positions are rotated",
    "vit_h_14": "it is published for other sizes of images per set of weights",
    "seresnet": "it has squeeze-and-excitation",
    "mobilenet": "it is another network",
}


def find_architecture(name: str) -> Architecture:
    """Returns the network with this name, such as "timm.resnet50.a1_in1k".

    What follows the second point, timm's tag of the weights, is left out. Raises ParamError for a
    name that is not in `ARCHITECTURES`, with the reason if it is known.
    """
    short = ".".join(name.split(".")[:2])
    if short in ARCHITECTURES:
        return ARCHITECTURES[short]
    reason = next((why for part, why in _REASONS.items() if part in short), "")
    why = f": lingo lacks it, because {reason}." if reason else f".{suggest(short, ARCHITECTURES)}"
    families = "ResNet, EfficientNet and ViT of timm, torchvision and Keras"
    raise ParamError(
        f"architecture={name!r} is not one of the {len(ARCHITECTURES)} known networks{why} The"
        f" known networks are {families}, such as timm.resnet50, torchvision.vit_b_16,"
        " keras.EfficientNetB0"
    )
