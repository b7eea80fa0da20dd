"""Names and layouts of weights in files of timm, torchvision and Keras.

`NAMES` maps a part of a network, as lingo's layers call it, to its name in a file and its kind:

    "block/branch/0/conv": "{block}.conv1:conv"      model/layers/5/branch/0/conv/w is
                                                     layer2.0.conv1.weight

`KINDS` maps a kind to the weights of such a part: the end of their names, and how their axes lie.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lingo.checkpoints.sources.layout import WeightLayout
from lingo.checkpoints.sources.transfer import TensorRead
from lingo.config.params import ParamError, Params
from lingo.layers.layer import Layer
from tasks.pretrained.architecture import Place, find_architecture


class Leaf(NamedTuple):
    """A weight of a part: the end of its name in the file, and the form of its tensor."""

    suffix: str
    order: tuple[int, ...] = ()  # as in `TensorRead`
    part: tuple[int, int] = (0, 1)  # as in `TensorRead`
    ones: int = 0  # axes of size 1 in front of the weight's axes, in the ordered tensor
    num_kept: int = 0  # as in `TensorRead`
    flip: int | None = None  # as in `TensorRead`
    split: int | None = None  # an axis of the tensor that is this axis and the next of the weight

    def read(self, name: str, shape: tuple[int, ...]) -> TensorRead:
        """Returns how a weight of `shape` is read from the tensors of the part with this name."""
        form = (*[1] * self.ones, *shape)
        if self.split is not None:
            i = self.ones + self.split
            form = (*form[:i], form[i] * form[i + 1], *form[i + 2 :])
        return TensorRead(
            name + self.suffix,
            shape,
            part=self.part,
            order=self.order,
            flip=self.flip,
            form=form,
            num_kept=self.num_kept,
        )


_OIHW = (2, 3, 1, 0)  # [F, C, kh, kw] as [kh, kw, C, F]
_MATRIX = (1, 0)

_NORM = {"gamma": Leaf(".weight"), "beta": Leaf(".bias")}
_TORCH = {
    "conv": {"w": Leaf(".weight", _OIHW), "b": Leaf(".bias")},
    "depthwise": {"w": Leaf(".weight", (2, 3, 0, 1))},
    # a matrix that is a convolution of single positions there
    "pointwise": {"w": Leaf(".weight", _OIHW, ones=2), "b": Leaf(".bias")},
    "linear": {"w": Leaf(".weight", _MATRIX), "b": Leaf(".bias")},
    "batch_norm": _NORM
    | {"moving_mean": Leaf(".running_mean"), "moving_variance": Leaf(".running_var")},
    "norm": {"scale": Leaf(".weight"), "bias": Leaf(".bias")},
    "positions": {"vectors": Leaf("", ones=1, num_kept=1)},
    "token": {"token": Leaf("", ones=2)},
}


def _attention(weight: str, bias: str, output: str) -> dict[str, Leaf]:
    """Returns the weights of an attention whose queries, keys and values are one product."""
    leaves = {
        "w_output": Leaf(f"{output}.weight", _MATRIX, split=0),
        "b_output": Leaf(f"{output}.bias"),
    }
    for i, name in enumerate(("query", "key", "value")):
        leaves[f"w_{name}"] = Leaf(weight, _MATRIX, (i, 3), split=1)
        leaves[f"b_{name}"] = Leaf(bias, part=(i, 3), split=0)
    return leaves


def _feed_forward(first: str, second: str) -> dict[str, Leaf]:
    return {
        "w_in": Leaf(f"{first}.weight", _MATRIX),
        "b_in": Leaf(f"{first}.bias"),
        "w_out": Leaf(f"{second}.weight", _MATRIX),
        "b_out": Leaf(f"{second}.bias"),
    }


KINDS: Mapping[str, Mapping[str, Mapping[str, Leaf]]] = {
    "timm": _TORCH
    | {
        "attention": _attention(".qkv.weight", ".qkv.bias", ".proj"),
        "feed_forward": _feed_forward(".fc1", ".fc2"),
    },
    "torchvision": _TORCH
    | {
        "attention": _attention(".in_proj_weight", ".in_proj_bias", ".out_proj"),
        "feed_forward": _feed_forward(".0", ".3"),
    },
    "keras": {
        "conv": {"w": Leaf("/kernel"), "b": Leaf("/bias")},
        # Keras's ResNets read blue first
        "blue_first": {"w": Leaf("/kernel", flip=2), "b": Leaf("/bias")},
        "depthwise": {"w": Leaf("/kernel")},
        "pointwise": {"w": Leaf("/kernel", ones=2), "b": Leaf("/bias")},
        "linear": {"w": Leaf("/kernel"), "b": Leaf("/bias")},
        "batch_norm": {
            name: Leaf(f"/{name}") for name in ("gamma", "beta", "moving_mean", "moving_variance")
        },
    },
}
"""Library -> kind of part -> weight's name in lingo -> its form."""

_TORCH_RESNET = {
    "stem/conv": "conv1:conv",
    "stem/norm": "bn1:batch_norm",
    "block/branch/0/conv": "{block}.conv1:conv",
    "block/branch/0/norm": "{block}.bn1:batch_norm",
    "block/branch/1/conv": "{block}.conv2:conv",
    "block/branch/1/norm": "{block}.bn2:batch_norm",
    "block/branch/2/conv": "{block}.conv3:conv",
    "block/branch/2/norm": "{block}.bn3:batch_norm",
    "block/shortcut/conv": "{block}.downsample.0:conv",
    "block/shortcut/norm": "{block}.downsample.1:batch_norm",
    "head/linear": "fc:linear",
}


def _torchvision_block(prefix: str, units: tuple[str, ...]) -> dict[str, str]:
    """Returns the names in an EfficientNet's block whose parts are numbered in order."""
    names: dict[str, str] = {}
    for i, unit in enumerate(units):
        if unit == "squeeze_excite":
            names[f"{prefix}/{unit}/reduce"] = f"{{block}}.block.{i}.fc1:pointwise"
            names[f"{prefix}/{unit}/expand"] = f"{{block}}.block.{i}.fc2:pointwise"
        else:
            kind = "depthwise" if unit == "depthwise" else "conv"
            names[f"{prefix}/{unit}/conv"] = f"{{block}}.block.{i}.0:{kind}"
            names[f"{prefix}/{unit}/norm"] = f"{{block}}.block.{i}.1:batch_norm"
    return names


_UNITS = ("expand", "depthwise", "squeeze_excite", "project")

NAMES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "timm": {
        "resnet": _TORCH_RESNET,
        "efficientnet": {
            "stem/conv": "conv_stem:conv",
            "stem/norm": "bn1:batch_norm",
            "narrow/depthwise/conv": "{block}.conv_dw:depthwise",
            "narrow/depthwise/norm": "{block}.bn1:batch_norm",
            "narrow/squeeze_excite/reduce": "{block}.se.conv_reduce:pointwise",
            "narrow/squeeze_excite/expand": "{block}.se.conv_expand:pointwise",
            "narrow/project/conv": "{block}.conv_pw:conv",
            "narrow/project/norm": "{block}.bn2:batch_norm",
            "block/expand/conv": "{block}.conv_pw:conv",
            "block/expand/norm": "{block}.bn1:batch_norm",
            "block/depthwise/conv": "{block}.conv_dw:depthwise",
            "block/depthwise/norm": "{block}.bn2:batch_norm",
            "block/squeeze_excite/reduce": "{block}.se.conv_reduce:pointwise",
            "block/squeeze_excite/expand": "{block}.se.conv_expand:pointwise",
            "block/project/conv": "{block}.conv_pwl:conv",
            "block/project/norm": "{block}.bn3:batch_norm",
            "top/conv": "conv_head:conv",
            "top/norm": "bn2:batch_norm",
            "head/linear": "classifier:linear",
        },
        "vit": {
            "patches/conv": "patch_embed.proj:conv",
            "token": "cls_token:token",
            "positions": "pos_embed:positions",
            "block/attention_norm": "{block}.norm1:norm",
            "block/attention": "{block}.attn:attention",
            "block/ffn_norm": "{block}.norm2:norm",
            "block/ffn": "{block}.mlp:feed_forward",
            "norm": "norm:norm",
            "head/linear": "head:linear",
        },
    },
    "torchvision": {
        "resnet": _TORCH_RESNET,
        "efficientnet": {
            "stem/conv": "features.0.0:conv",
            "stem/norm": "features.0.1:batch_norm",
            **_torchvision_block("narrow", _UNITS[1:]),
            **_torchvision_block("block", _UNITS),
            "top/conv": "features.8.0:conv",
            "top/norm": "features.8.1:batch_norm",
            "head/linear": "classifier.1:linear",
        },
        "vit": {
            "patches/conv": "conv_proj:conv",
            "token": "class_token:token",
            "positions": "encoder.pos_embedding:positions",
            "block/attention_norm": "{block}.ln_1:norm",
            "block/attention": "{block}.self_attention:attention",
            "block/ffn_norm": "{block}.ln_2:norm",
            "block/ffn": "{block}.mlp:feed_forward",
            "norm": "encoder.ln:norm",
            "head/linear": "heads.head:linear",
        },
    },
    "keras": {
        "resnet": {
            "stem/conv": "conv1_conv:blue_first",
            "stem/norm": "conv1_bn:batch_norm",
            "block/branch/0/conv": "{block}_1_conv:conv",
            "block/branch/0/norm": "{block}_1_bn:batch_norm",
            "block/branch/1/conv": "{block}_2_conv:conv",
            "block/branch/1/norm": "{block}_2_bn:batch_norm",
            "block/branch/2/conv": "{block}_3_conv:conv",
            "block/branch/2/norm": "{block}_3_bn:batch_norm",
            "block/shortcut/conv": "{block}_0_conv:conv",
            "block/shortcut/norm": "{block}_0_bn:batch_norm",
            "head/linear": "predictions:linear",
        },
        "efficientnet": {
            "stem/conv": "stem_conv:conv",
            "stem/norm": "stem_bn:batch_norm",
            "narrow/depthwise/conv": "{block}_dwconv:depthwise",
            "narrow/depthwise/norm": "{block}_bn:batch_norm",
            "narrow/squeeze_excite/reduce": "{block}_se_reduce:pointwise",
            "narrow/squeeze_excite/expand": "{block}_se_expand:pointwise",
            "narrow/project/conv": "{block}_project_conv:conv",
            "narrow/project/norm": "{block}_project_bn:batch_norm",
            "block/expand/conv": "{block}_expand_conv:conv",
            "block/expand/norm": "{block}_expand_bn:batch_norm",
            "block/depthwise/conv": "{block}_dwconv:depthwise",
            "block/depthwise/norm": "{block}_bn:batch_norm",
            "block/squeeze_excite/reduce": "{block}_se_reduce:pointwise",
            "block/squeeze_excite/expand": "{block}_se_expand:pointwise",
            "block/project/conv": "{block}_project_conv:conv",
            "block/project/norm": "{block}_project_bn:batch_norm",
            "top/conv": "top_conv:conv",
            "top/norm": "top_bn:batch_norm",
            "head/linear": "predictions:linear",
        },
    },
}
"""Library -> family -> part of a network -> name in the file and kind, separated by a colon."""

BLOCKS: Mapping[str, Mapping[str, str]] = {
    "timm": {
        "resnet": "layer{stage}.{index}",
        "efficientnet": "blocks.{stage_from_0}.{index}",
        "vit": "blocks.{index}",
    },
    "torchvision": {
        "resnet": "layer{stage}.{index}",
        "efficientnet": "features.{stage}.{index}",
        "vit": "encoder.layers.encoder_layer_{index}",
    },
    "keras": {
        "resnet": "conv{stage_from_2}_block{index_from_1}",
        "efficientnet": "block{stage}{letter}",
    },
}
"""Library -> family -> name of a block: stages count from 1, blocks of a stage from 0."""

IGNORED = (r".*\.num_batches_tracked", r"normalization(_\d+)?/(mean|variance|count)")
"""Patterns of tensors that no weight is read from: PyTorch's counts of steps, and the levels of
pixels in Keras's EfficientNets, which are `mean` and `std` of the task."""


_LAYER = re.compile(r"model/layers/(\d+)/(?:layers/(\d+)/)?(.*)")
_KERAS_FIRST_STAGE = 2  # of ResNets: the stem is stage 1


class ImageLayout(WeightLayout):
    """The tensors of an image network in a file of timm, torchvision or Keras."""

    architecture: str  # one of `ARCHITECTURES`, such as timm.resnet50

    def setup(self) -> None:
        self.found = find_architecture(self.p.architecture)
        self._places = self.found.places()

    def reads(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, TensorRead]:
        return {weight: self._read(weight, shape) for weight, shape in shapes.items()}

    def is_ignored(self, tensor: str) -> bool:
        return any(re.fullmatch(pattern, tensor) for pattern in IGNORED)

    def task(self, trained: Layer) -> Params:
        p = trained.p
        model = self.found.model(num_classes=p.num_classes, image_size=p.image_shape[0])
        return p.copy().set(model=model)

    def config(
        self, trained: Layer, original: Mapping[str, Any], class_names: Sequence[str]
    ) -> dict[str, Any]:
        p = trained.p
        height, width, channels = p.image_shape
        library, _, name = self.found.name.partition(".")
        levels = {field: _per_channel(getattr(p, field), channels) for field in ("mean", "std")}
        settings = {"input_size": [channels, height, width], "num_classes": p.num_classes, **levels}
        content = {key: value for key, value in original.items() if key != "label_names"} | {
            "architecture": name if library == "timm" else self.found.name,
            "num_classes": p.num_classes,
            "pretrained_cfg": _as_dict(original.get("pretrained_cfg")) | settings,
        }
        arguments = _as_dict(original.get("model_args"))
        if "num_classes" in arguments:
            arguments["num_classes"] = p.num_classes
        if self.found.family == "vit" and height != self.found.image_size:
            arguments["img_size"] = height
        if arguments:
            content["model_args"] = arguments
        if class_names:
            content["label_names"] = list(class_names)
        return content

    def _read(self, weight: str, shape: tuple[int, ...]) -> TensorRead:
        architecture = self.found
        match = _LAYER.fullmatch(weight)
        if match is None or int(match[1]) >= len(self._places):
            raise self._unknown(weight)
        place, (part, _, leaf) = self._places[int(match[1])], match[3].rpartition("/")
        if match[2] is not None:
            place = place._replace(index=int(match[2]))
        key = f"{place.kind}/{part}" if part else place.kind
        entry = NAMES[architecture.library][architecture.family].get(key)
        if entry is None:
            raise self._unknown(weight)
        name, _, kind = entry.partition(":")
        form = KINDS[architecture.library][kind].get(leaf)
        if form is None:
            raise self._unknown(weight)
        return form.read(name.replace("{block}", self._block(place)), shape)

    def _block(self, place: Place) -> str:
        """Returns the name of a block in the file."""
        return BLOCKS[self.found.library][self.found.family].format(
            stage=place.stage,
            stage_from_0=place.stage - 1,
            stage_from_2=place.stage - 1 + _KERAS_FIRST_STAGE,
            index=place.index,
            index_from_1=place.index + 1,
            letter=chr(ord("a") + place.index),
        )

    def _unknown(self, weight: str) -> ParamError:
        return ParamError(
            f"{self.found.name} has no tensor for the weight {weight}: its layers are others"
        )


def _per_channel(value: Any, channels: int) -> list[float]:
    return [float(n) for n in (value if isinstance(value, tuple) else (value,) * channels)]


def _as_dict(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
