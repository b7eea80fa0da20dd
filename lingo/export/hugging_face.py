"""Writes a trained model as a model folder of Hugging Face's hub.

An export reverses an import. It needs the `config.json` of the folder that the model was imported
from, or of another folder with the same model. From this file an experiment is made that reads such
a folder. If the experiment's model equals the trained model, its WarmStart says from which tensor
each weight would be read. The export writes the weight to this tensor.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from lingo.checkpoints.sources.find import find_source
from lingo.checkpoints.sources.hugging_face import CONFIG
from lingo.checkpoints.sources.layout import WeightLayout
from lingo.checkpoints.sources.safetensors import import_safetensors
from lingo.checkpoints.sources.transfer import TensorRead
from lingo.checkpoints.sources.warm_start import WarmStart, weight_shapes
from lingo.checkpoints.sources.weight_source import UnusableSource
from lingo.config import registry
from lingo.config.base import regular_file
from lingo.config.params import ParamError, Params, fields
from lingo.config.text import flatten, render
from lingo.contract import Experiment
from lingo.data.files import DataError
from lingo.data.hugging_face_tokenizer import LibraryTokenizer
from lingo.layers import path
from lingo.layers.layer import Layer
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.layers.tree import ParamSpec
from lingo.layers.wrap.remat import Remat
from lingo.storage.files import new_folder, storage_error

PRETRAINED = "huggingface.pretrained_model"
"""Name of the experiment that reads a model folder of transformers, of any supported type."""

CLASSIFIER = "image.pretrained.classifier"
"""Name of the experiment that reads an image classifier of timm, torchvision or Keras."""

WEIGHTS = "model.safetensors"
_MAX_CONFIG_BYTES = 4 << 20

FloatType = Literal["float32", "bfloat16"]
"""The dtype of the written weights."""

_MAX_LINES = 10  # the largest number of differences that an error lists
_EXECUTION_LAYERS = (Stack, Repeat, Pipeline, Remat)  # layers that only say how others are run
_TRAINING_FIELDS = {  # fields that do not change what a trained model computes
    "adapts_if_frozen",
    "balance_loss",
    "balance_scale",
    "blockwise",
    "decay",
    "dispatch",
    "drop_path_rate",
    "dropout_form",
    "dropout_rate",
    "dtype",
    "init",
    "jitter",
    "statistics_over",
    "z_loss",
    "zero_init",
}


def find_experiment(place: Path, *, has_architecture: bool = False) -> str:
    """Returns the name of lingo's experiment that reads a folder or file of another program.

    It is the image classifiers' one for a file, for a folder whose config.json names an
    `architecture`, as timm's do, or if the caller names one.
    """
    if has_architecture or not place.is_dir():
        return CLASSIFIER
    try:
        content = json.loads(regular_file.read(place / CONFIG, max_bytes=_MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):  # the experiment reads it again, and tells it
        return PRETRAINED
    is_image = isinstance(content, dict) and isinstance(content.get("architecture"), str)
    return CLASSIFIER if is_image and "model_type" not in content else PRETRAINED


def export_hugging_face(
    experiment: Experiment,
    weights: Mapping[str, np.ndarray],
    folder: Path,
    *,
    states: Mapping[str, np.ndarray] | None = None,
    config: Path | None = None,
    dtype: FloatType = "float32",
    class_names: Sequence[str] = (),
) -> None:
    """Writes config.json, model.safetensors and the tokenizer's files into a new folder.

    If an error occurs, nothing is written. The weights are in memory twice.

    Args:
        experiment: the trained model's experiment.
        weights: path of a single layer's weight -> float32 array of any shape.
        folder: the new folder, whose parent must exist.
        states: path of a single layer's moving statistic -> float32 array; None: no statistics.
        config: a folder whose config.json describes the model. None: the folder that the
            experiment's weights were imported from.
        dtype: the dtype of the weights in model.safetensors, which config.json records.
        class_names: names of a classifier's classes, which config.json gets.

    Raises:
        ParamError: if the folder exists, config.json is missing or describes another model, or
            `dtype` is unknown.
        MissingPackage: if `safetensors` is not installed.
        StorageError: if the folder cannot be written.
    """
    if dtype not in (types := get_args(FloatType)):
        raise ParamError(f"{dtype=} is not one of {', '.join(types)}")
    import_safetensors()
    own, arrays = experiment.init_from, {**weights, **(states or {})}
    if config is None and own is not None and own.layout is not None:
        original, layout = Path(os.path.expanduser(own.p.path)), own.layout
        model = _convert_layout(experiment, layout, arrays, original, class_names)
    else:
        source = _import_folder(experiment) if config is None else config
        place = f"exp.path={str(source.absolute())!r}"
        imported: Params = registry.get(find_experiment(source), [place]).params
        warm_start = imported.init_from.build()
        if (layout := warm_start.layout) is not None:
            model = _convert_layout(experiment, layout, arrays, source, class_names)
        else:
            _check_model(experiment.task, imported.task.build(), source / CONFIG)
            tensors = convert_weights(warm_start, weights, experiment.task.weights())
            model = _HubFiles(json.loads((source / CONFIG).read_text()), tensors)
    _write(model, folder, dtype, _tokenizer_files(experiment))


class _HubFiles(NamedTuple):
    """What a model's folder has besides a tokenizer."""

    settings: dict[str, Any]  # config.json
    tensors: dict[str, np.ndarray]  # model.safetensors


def _convert_layout(
    experiment: Experiment,
    layout: WeightLayout,
    arrays: Mapping[str, np.ndarray],
    original: Path,
    class_names: Sequence[str],
) -> _HubFiles:
    """Returns the files of a model whose network a layout describes.

    `original` is the file or folder of the import.
    """
    task = experiment.task
    _check_model(task, layout.task(task).build(), repr(layout.p))
    tensors = layout_tensors(layout, task, arrays) | ignored_tensors(layout, original)
    return _HubFiles(_layout_config(layout, task, original, class_names), tensors)


def _write(
    model: _HubFiles, folder: Path, dtype: FloatType, tokenizer: Mapping[str, bytes]
) -> None:
    """Writes a model's folder, with the tokenizer's files, name -> content."""
    names = {"dtype", "torch_dtype"} & {*model.settings} or {"dtype"}
    settings = model.settings | dict.fromkeys(names, dtype)
    with new_folder(folder) as partial:
        for name, content in tokenizer.items():
            (partial / name).write_bytes(content)
        (partial / CONFIG).write_text(json.dumps(settings, indent=2) + "\n")
        typed = {
            name: value.astype(dtype, copy=False) if value.dtype.kind == "f" else value
            for name, value in model.tensors.items()
        }
        _save(typed, partial / WEIGHTS)
        # the library makes files that only the owner can read
        shutil.copymode(partial / CONFIG, partial / WEIGHTS)


def convert_weights(
    warm_start: WarmStart, weights: Mapping[str, np.ndarray], specs: Mapping[str, ParamSpec]
) -> dict[str, np.ndarray]:
    """Returns the float32 tensors, by name, from which a WarmStart would read the weights.

    In these tensors, the axes of heads and of a head's features are merged into one axis.

    Args:
        warm_start: says which tensor each weight is read from.
        weights: path of a single layer's weight -> array.
        specs: path -> description of a weight, with stacked layers as one weight.
    """
    by_name = {name: spec for where, spec in specs.items() for name in path.names(where)}
    reads = warm_start.reads({name: spec.shape for name, spec in by_name.items()})
    if lost := [name for name in weights if name not in reads]:
        raise ParamError(f"a model of Hugging Face's hub has no tensor for the weight {lost[0]}")
    parts: dict[str, dict[int, np.ndarray]] = {}  # tensor's name -> {part's index: part}
    for name, read in reads.items():
        shape = _merge_heads(by_name[name])
        parts.setdefault(read.name, {})[read.part[0]] = read.undo(weights[name], shape)
    return {
        name: np.ascontiguousarray(np.concatenate([arrays[i] for i in sorted(arrays)], axis=-1))
        for name, arrays in parts.items()
    }


def _merge_heads(spec: ParamSpec) -> tuple[int, ...]:
    """Returns a weight's shape after merging the axes of heads and of a head's features."""
    shape: list[int] = []
    for size, axis in zip(spec.shape, spec.axes, strict=True):
        if axis == "head_dim" and shape:
            shape[-1] *= size
        else:
            shape.append(size)
    return tuple(shape)


def _import_folder(experiment: Experiment) -> Path:
    """Returns the folder that the weights of an experiment were imported from."""
    if experiment.init_from is None:
        raise ParamError(
            "the run was not imported from a model of the hub: format=savedmodel writes a program;"
            f" for format=huggingface name by `config` a folder whose {CONFIG} describes the model"
        )
    place = Path(os.path.expanduser(experiment.init_from.p.path))
    source = place if place.is_dir() else place.parent
    if not (source / CONFIG).is_file():
        raise ParamError(
            f"the run was imported from {source}, which has no {CONFIG} now: set"
            " `config` to a folder that has it"
        )
    return source


def _tokenizer_files(experiment: Experiment) -> Mapping[str, bytes]:
    """Returns the tokenizer's files, name -> content; {} if its library is not `tokenizers`."""
    for tokenizer in experiment.p.train_input.all(LibraryTokenizer):
        try:
            return tokenizer.build().hub_files()
        except DataError as error:
            raise ParamError(f"the export would lack the tokenizer: {error}") from None
    return {}


def _save(tensors: dict[str, np.ndarray], file: Path) -> None:
    library, writer = import_safetensors(), importlib.import_module("safetensors.numpy")
    try:
        writer.save_file(tensors, file, metadata={"format": "pt"})
    except library.SafetensorError as error:
        raise storage_error(file, error) from error


# ---- whether config.json describes the model -----------------------------------------------------


def _check_model(trained: Layer, described: Layer, source: Path | str) -> None:
    """Raises ParamError unless the trained and the described task have the same model.

    `source` is what describes a task, a config.json or another text; the error names it.
    """
    ours, theirs = _settings(trained), _settings(described)
    there = f"in {source.name}" if isinstance(source, Path) else "there"
    lines = [
        f"{where}: {ours.get(where, 'absent')}, but {theirs.get(where, 'absent')} {there}"
        for where in sorted({*ours, *theirs})
        if ours.get(where) != theirs.get(where)
    ]
    if lines:
        more = [f"... and {len(lines) - _MAX_LINES} more"] if len(lines) > _MAX_LINES else []
        text = "\n  ".join([*lines[:_MAX_LINES], *more])
        raise ParamError(f"the model is not the one that {source} describes:\n  {text}")


def _settings(task: Layer) -> dict[str, str]:
    """Returns the layer classes, settings and weight shapes that make up a task's model, by path.

    Settings that do not change what a trained model computes are left out.
    """
    settings: dict[str, str] = {}
    for layer in itertools.islice(task.tree(), 1, None):
        if isinstance(layer, _EXECUTION_LAYERS):
            continue
        values = {"": type(layer).__name__} | {
            f".{name}": _text(getattr(layer.p, name))
            for name in fields(type(layer))
            if name not in _TRAINING_FIELDS
        }
        for where in path.names(layer.path):
            settings |= {where + name: text for name, text in values.items() if text}
    for where, spec in task.weights().items():
        settings |= dict.fromkeys(path.names(where), f"shape {list(spec.shape)}")
    return settings


def _text(value: Any) -> str:
    """Returns a setting as text; "" for inner layers, whose settings are listed separately."""
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, Params):
        return repr(value)
    return "" if issubclass(first.cls, Layer) else render(flatten(first)).replace("\n", " ").strip()


# ---- networks under the names that another library's files give to their tensors ----------------


def layout_tensors(
    layout: WeightLayout, task: Layer, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the float32 tensors, by name, from which a layout reads a task's weights and states.

    Args:
        layout: says which tensor each weight is read from.
        task: the trained task, with the layout's network.
        arrays: path of a single layer's weight or state -> array of any shape.

    Raises:
        ParamError: if the network has a weight that the layout does not know.
    """
    parts: dict[str, dict[int, np.ndarray]] = {}  # tensor's name -> {part's index: part}
    reads: dict[str, TensorRead] = {}
    for weight, read in layout.reads(weight_shapes(task)).items():
        parts.setdefault(read.name, {})[read.part[0]] = read.undo(arrays[weight], read.form)
        reads[read.name] = read
    return {
        name: reads[name].join([arrays[i] for i in sorted(arrays)])
        for name, arrays in parts.items()
    }


def ignored_tensors(layout: WeightLayout, original: Path | None) -> dict[str, np.ndarray]:
    """Returns the tensors of the original file that no weight is read from, {} without the file.

    They may have any shape. They do not change results, but other programs may look for them.
    """
    if original is None:
        return {}
    try:
        source = find_source(original, step=None, averages=False)
    except UnusableSource:  # it may have been deleted since
        return {}
    return {name: source.read(name) for name in source.tensors if layout.is_ignored(name)}


def _layout_config(
    layout: WeightLayout, task: Layer, original: Path | None, class_names: Sequence[str]
) -> dict[str, Any]:
    """Returns the content of `config.json` of an export; `original` is the file of the import."""
    content: Any = {}
    if original is not None:
        file = (original if original.is_dir() else original.parent) / CONFIG
        if file.is_file():
            try:
                content = json.loads(file.read_text())
            except ValueError as error:
                raise ParamError(f"{file} is not JSON: {error}") from None
    ours = isinstance(content, dict) and isinstance(content.get("architecture"), str)
    return layout.config(task, content if ours else {}, class_names)
