"""Reads image models of timm, torchvision and Keras: a file of weights, or a folder of timm's hub.

config.json, or the name of the network  ->  its layers        (`ImageModel.architecture`)
model.safetensors                        ->  its weights       (`ImageModel.warm_start`)
pretrained_cfg of config.json            ->  size, mean, deviation and crop of images
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lingo.checkpoints.sources.find import find_source
from lingo.checkpoints.sources.hugging_face import CONFIG
from lingo.checkpoints.sources.warm_start import WarmStart, weight_shapes
from lingo.checkpoints.sources.weight_source import Tensor, UnusableSource, WeightSource
from lingo.config.params import ParamError, Params
from tasks.hugging_face.read import read_object
from tasks.image.task import ImageClassification
from tasks.pretrained.architecture import (
    ARCHITECTURES,
    IMAGENET,
    Architecture,
    find_architecture,
)
from tasks.pretrained.names import ImageLayout

HEAD = ".*/linear/.*"
"""Pattern of the weights of a network's last layer."""

CROP = 0.875
"""The usual side of the square that is seen, relative to an image's shorter side."""

_POSITIONS = ".*/vectors"
_POOLS = {"vit": "token"}  # family -> how timm pools; all others take the mean of all positions
_KNOWN_ARGUMENTS = {"img_size", "num_classes", "in_chans", "global_pool"}  # of timm's constructor


class ImageModel(NamedTuple):
    """An image classifier in a file."""

    path: str
    architecture: Architecture
    num_classes: int
    image_size: int  # height and width
    mean: tuple[float, ...]  # of pixels in 0..1, per colour
    std: tuple[float, ...]
    crop: float  # side of the square in the middle that is seen, relative to the shorter side
    class_names: tuple[str, ...] = ()

    def warm_start(self, *, image_size: int, new_head: bool) -> Params:
        """Returns the params of a WarmStart that reads the weights.

        `image_size` is the height and width of the images; a Vision Transformer's positions are
        interpolated if it is not the model's. `new_head` leaves the last layer out.
        """
        layout = ImageLayout.params(architecture=self.architecture.name)
        read = WarmStart.params(path=self.path, layout=layout, skip=(HEAD,) if new_head else ())
        if self.architecture.family == "vit" and image_size != self.image_size:
            grids = (self.architecture.grid(size) for size in (self.image_size, image_size))
            read.resize = {_POSITIONS: tuple(grids)}
        return read


def read_image_model(path: str, architecture: str = "") -> ImageModel:
    """Returns the classifier in a file or folder; raises ParamError if lingo has no such network.

    `architecture` names the network; "": config.json in the folder names it, or else the tensors.
    """
    place = Path(os.path.expanduser(path))
    source = _open(place)
    tensors = source.tensors if source else {}
    config = read_config(place)
    name = architecture or _config_name(config)
    found = find_architecture(name) if name else _recognize(path, tensors)
    _check_config(config, found)
    settings = config.get("pretrained_cfg")
    settings = settings if isinstance(settings, Mapping) else {}
    image_size = _image_size(settings, found)
    if tensors:
        _check_family(path, tensors, found, image_size)
    levels = _keras_levels(source) or found.levels
    mean, std = (
        _numbers(settings, key, default)
        for key, default in zip(("mean", "std"), levels, strict=True)
    )
    num_classes = _head_classes(tensors, found) or _config_classes(config)
    names = config.get("label_names")
    has_names = isinstance(names, list) and len(names) == num_classes
    return ImageModel(
        path,
        found,
        num_classes,
        image_size=image_size,
        mean=mean,
        std=std,
        crop=_crop(settings),
        class_names=tuple(map(str, names)) if isinstance(names, list) and has_names else (),
    )


def read_config(place: Path) -> dict[str, Any]:
    """Returns config.json of a folder, or of a file's folder, if it is timm's; else {}."""
    file = (place if place.is_dir() else place.parent) / CONFIG
    config = read_object(file) if os.path.lexists(file) else {}
    return config if isinstance(config.get("architecture"), str) else {}


def _open(place: Path) -> WeightSource | None:
    """Opens the weights in a file or folder; returns None for a folder with config.json alone.

    Raises ParamError if they cannot be used.
    """
    try:
        return find_source(place, step=None, averages=False)
    except UnusableSource as error:
        if place.is_dir() and read_config(place):  # reading the weights raises it again
            return None
        raise ParamError(str(error)) from None


def _keras_levels(source: WeightSource | None) -> tuple[tuple[float, ...], ...] | None:
    """Returns the mean and deviation of pixels in a file of Keras's; None if it has none.

    Keras's EfficientNets normalize images themselves, by (x - mean) / sqrt(variance). In those with
    published weights the variance is the deviation, and the result is divided by its root again.
    """
    layer = r"normalization(_\d+)?/"  # numbered after other models of the same process
    names = [name for name in source.tensors if re.match(layer, name)] if source else []
    found = {name.partition("/")[2]: source.read(name) for name in names} if source else {}
    if "mean" not in found or "variance" not in found:
        return None
    mean, variance = (found[name].ravel().astype(float) for name in ("mean", "variance"))
    is_published = np.allclose(variance, IMAGENET[1], rtol=1e-3)
    return tuple(mean.tolist()), tuple((variance if is_published else np.sqrt(variance)).tolist())


def _config_name(config: Mapping[str, Any]) -> str:
    """Returns the name of config.json's network with its library; "" without a name."""
    name = config.get("architecture", "")
    return name if not name or name in ARCHITECTURES else f"timm.{name}"


def _check_config(config: Mapping[str, Any], found: Architecture) -> None:
    """Raises ParamError if config.json changes the network."""
    arguments = config.get("model_args")
    arguments = arguments if isinstance(arguments, Mapping) else {}
    for key, wanted in (("global_pool", _POOLS.get(found.family, "avg")), ("in_chans", 3)):
        if (value := arguments.get(key, config.get(key, wanted))) != wanted:
            raise ParamError(
                f"{CONFIG} has {key}={value!r}; lingo's {found.name} supports only {wanted!r}"
            )
    if other := {*arguments} - _KNOWN_ARGUMENTS:
        raise ParamError(
            f"{CONFIG} has model_args.{min(other)}={arguments[min(other)]!r:.80}, which changes the"
            f" network: lingo reads {found.name} as the library makes it without arguments"
        )


def _image_size(settings: Mapping[str, Any], found: Architecture) -> int:
    """Returns the height and width of the images, in pixels."""
    size = settings.get("input_size", [3, found.image_size, found.image_size])
    match size:
        case [3, int(height), int(width)] if height == width > 0:
            return height
    raise ParamError(f"{CONFIG} has input_size={size!r:.80}; square images, [3, n, n], are wanted")


def _numbers(
    settings: Mapping[str, Any], key: str, default: tuple[float, ...]
) -> tuple[float, ...]:
    """Returns a list of numbers in config.json, as many as in the default.

    No number is below 0, and no deviation (`std`) is 0.
    """
    values = settings.get(key, default)
    if isinstance(values, list | tuple) and len(values) == len(default):
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        least = 1e-6 if key == "std" else 0.0
        if len(numbers) == len(default) and min(numbers) >= least:
            return tuple(map(float, numbers))
    raise ParamError(
        f"{CONFIG} has {key}={values!r:.80}, which is not a list of {len(default)} numbers"
        f" {'above' if key == 'std' else 'of at least'} 0"
    )


def _crop(settings: Mapping[str, Any]) -> float:
    """Returns the side of the square that is seen, relative to an image's shorter side."""
    crop = settings.get("crop_pct", CROP)
    if isinstance(crop, bool) or not isinstance(crop, int | float) or not 0 < crop <= 1:
        raise ParamError(f"{CONFIG} has crop_pct={crop!r:.80}; a number in 0..1 is wanted")
    return float(crop)


def _head_classes(tensors: Mapping[str, Tensor], found: Architecture) -> int | None:
    """Returns the number of classes of the file's last layer; None without one."""
    weight = f"model/layers/{len(found.places()) - 1}/linear/w"
    layout = ImageLayout.params(architecture=found.name).build()
    read = layout.reads({weight: (1, 1)})[weight]
    shape = read.ordered_shape(tensors[read.name].shape) if read.name in tensors else ()
    return shape[-1] if len(shape) == 2 else None


def _config_classes(config: Mapping[str, Any]) -> int:
    """Returns the number of classes in config.json; 0: the network has no last layer."""
    num_classes = config.get("num_classes", 1000)
    if type(num_classes) is not int or num_classes < 0:
        raise ParamError(f"{CONFIG} has num_classes={num_classes!r:.80}; a whole number is wanted")
    return num_classes


# ---- networks by their tensors -------------------------------------------------------------------


def _recognize(path: str, tensors: Mapping[str, Tensor]) -> Architecture:
    """Returns the network that has a file's tensors; raises ParamError if several or none have."""
    fitting = _find_fitting(tensors)
    if not fitting:
        raise ParamError(
            f"{path} does not say which network it has, and no network that lingo knows has its"
            " tensors: name one by --architecture, such as timm.resnet50, to see what differs"
        )
    if len({one._replace(name="", library="timm") for one in fitting}) > 1:
        raise ParamError(
            f"{path} does not say which network it has; its tensors fit {_names(fitting)}: name"
            f" one, --architecture={fitting[0].name}"
        )
    return fitting[0]


def _check_family(
    path: str, tensors: Mapping[str, Tensor], found: Architecture, image_size: int
) -> None:
    """Raises ParamError if a file has the tensors of other networks than the one that is named."""
    if not _fits(found, tensors, image_size) and (fitting := _find_fitting(tensors)):
        raise ParamError(f"{path} is no {found.name}: its tensors fit {_names(fitting)}")


def _find_fitting(tensors: Mapping[str, Tensor]) -> list[Architecture]:
    """Returns the networks whose tensors a file has, for images of the published size."""
    return [one for one in ARCHITECTURES.values() if _fits(one, tensors, one.image_size)]


def _names(architectures: Sequence[Architecture]) -> str:
    return " and ".join(one.name for one in architectures)


def _fits(architecture: Architecture, tensors: Mapping[str, Tensor], image_size: int) -> bool:
    """Whether a file has the tensors of a network for images of a height and width.

    Their names and shapes decide. The file may have further tensors.
    """
    num_classes = _head_classes(tensors, architecture)
    if num_classes is None:
        return False
    task = ImageClassification.params(
        model=architecture.model(num_classes=num_classes, image_size=image_size),
        num_classes=num_classes,
        image_shape=(image_size, image_size, 3),
    ).build()
    reads = ImageLayout.params(architecture=architecture.name).build().reads(weight_shapes(task))
    return all(
        read.name in tensors and read.part_shape(tensors[read.name].shape) == read.form
        for read in reads.values()
    )
