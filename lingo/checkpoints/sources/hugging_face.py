"""Checks a model's rotary positions against Hugging Face's `config.json` next to the weights.

Frequencies are not weights: with wrong frequencies a model reads every tensor, but computes
nonsense.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lingo.checkpoints.errors import CheckpointMismatch
from lingo.checkpoints.sources.safetensors import Safetensors
from lingo.checkpoints.sources.weight_source import (
    WeightSource,
    corrupt_source,
    printable,
    read_small_file,
)
from lingo.config.params import fields
from lingo.layers import path
from lingo.layers.layer import Layer
from lingo.layers.sequence.positions import Rotary
from lingo.layers.sequence.rotary_scaling import (
    LinearScaling,
    Llama3Scaling,
    RotaryScaling,
    YarnScaling,
)

CONFIG = "config.json"

_MAX_BYTES = 4 << 20
_SCALINGS = {"linear": LinearScaling, "llama3": Llama3Scaling, "yarn": YarnScaling}
# `mrope` rotates texts as `default` does; `dynamic` scales only texts longer than in training
_UNSCALED = ("default", "mrope", "dynamic")
_THETAS = ("rope_theta", "rope_local_base_freq")
_LENGTHS = ("original_max_position_embeddings", "max_position_embeddings")


class _Difference(NamedTuple):
    """A difference between a model's rotary positions and a configuration."""

    theirs: str
    ours: str
    flag: str  # an override that removes the difference; "" without one


def check_rotary(model: Layer, source: WeightSource, weights: Collection[str]) -> None:
    """Compares rotary positions with the source's configuration, if it has one.

    Only attention layers that read some of `weights` are compared. A scaling that the model sets is
    not compared: its change of frequencies is intended.

    Raises:
        CheckpointMismatch: if the model rotates by other frequencies than the configuration says.
        UnusableSource: if the configuration is not JSON.
    """
    file = source.path.parent / CONFIG
    if not isinstance(source, Safetensors) or not file.exists():
        return
    config, reading = _read(file), {name.rpartition("/")[0] for name in weights}
    for rotary in (layer for layer in model.tree() if isinstance(layer, Rotary)):
        names = [n for n in path.names(rotary.path) if n.rpartition("/")[0] in reading]
        if names and (found := list(_differences(rotary, config))):
            raise CheckpointMismatch(_describe(file, names[0], found))


def _differences(rotary: Rotary, config: dict[str, Any]) -> Iterator[_Difference]:
    # Models that also read images have the text model's configuration in `text_config`.
    text = _as_dict(config.get("text_config")) or config
    rope = _as_dict(text.get("rope_scaling")) or _as_dict(text.get("rope_parameters"))
    parts = [rope, *map(_as_dict, rope.values())]  # one per kind of layer, if kinds differ
    scaled = [part for part in parts if _kind(part) not in _UNSCALED]
    if scaled and rotary.scaling is None:
        kind, flag = printable(str(_kind(scaled[0]))), ""
        if kind in _SCALINGS:
            flag = f"--set='Rotary.scaling={_template(_SCALINGS[kind], text | scaled[0])}'"
        else:
            kind = f"{kind!r}, which lingo does not have"
        yield _Difference(f"rope_scaling of type {kind}", "scaling=None", flag)
    thetas = [part[key] for part in (text, *parts) for key in _THETAS if key in part]
    thetas = [theta for theta in thetas if isinstance(theta, (int, float))]
    if thetas and rotary.p.max_wavelength not in thetas:
        ours, theirs = rotary.p.max_wavelength, max(thetas)
        flag = f"--set=Rotary.max_wavelength={theirs}"
        yield _Difference(f"rope_theta={theirs}", f"max_wavelength={ours}", flag)


def _template(scaling: type[RotaryScaling], config: dict[str, Any]) -> str:
    """Returns the override's text for a scaling with the numbers of a configuration."""
    lengths = [config[key] for key in _LENGTHS if key in config]
    values = config | ({_LENGTHS[0]: lengths[0]} if lengths else {})
    given = [
        f"{name}={values[name]}"
        for name in fields(scaling)
        if isinstance(values.get(name), (int, float))
    ]
    return f"{scaling.__name__}({', '.join(given)})"


def _describe(file: Path, where: str, found: Sequence[_Difference]) -> str:
    theirs, ours, flags = zip(*found, strict=True)
    lines = [f"{file} has {' and '.join(theirs)}; {where} has {' and '.join(ours)}."]
    if flags := [flag for flag in flags if flag]:
        lines.append(f"The weights were trained with: {' '.join(flags)}")
    if found[0].ours == "scaling=None":
        lines.append("A scaling that is set is not compared, such as LinearScaling(factor=1.0).")
    return "\n".join(lines)


def _read(file: Path) -> dict[str, Any]:
    try:
        return _as_dict(json.loads(read_small_file(file, max_bytes=_MAX_BYTES)))
    except (ValueError, RecursionError) as error:
        raise corrupt_source(file, f"its content is not JSON: {printable(str(error))}") from None


def _kind(part: dict[str, Any]) -> Any:
    return part.get("rope_type", part.get("type", "default"))


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
