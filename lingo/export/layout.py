"""Writes a trained network under the names that another program's files give to its tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lingo.checkpoints.sources.find import find_source
from lingo.checkpoints.sources.hugging_face import CONFIG
from lingo.checkpoints.sources.layout import WeightLayout
from lingo.checkpoints.sources.transfer import TensorRead
from lingo.checkpoints.sources.warm_start import weight_shapes
from lingo.checkpoints.sources.weight_source import UnusableSource
from lingo.config.params import ParamError
from lingo.layers.layer import Layer


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


def layout_config(
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
