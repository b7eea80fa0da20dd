"""Reads and writes the weights of image networks under the names of timm, torchvision and Keras."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lingo.checkpoints.sources.layout import WeightLayout
from lingo.checkpoints.sources.transfer import TensorRead
from lingo.config.params import ParamError, Params
from lingo.layers.layer import Layer
from tasks.pretrained.architecture import Place, find_architecture
from tasks.pretrained.names import BLOCKS, IGNORED, KINDS, NAMES

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
