"""Layers that do not count their FLOPs are named."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lingo.config import registry
from lingo.config.params import ParamError
from lingo.contract import build_experiment
from lingo.data import Digits, ImageInput
from lingo.inspection.plan.uncounted import uncounted
from lingo.layers import Chain, Keras, Linear
from lingo.layers.layer import Layer
from lingo.optim import Adam
from tasks.image.task import ImageClassification


class Own(Layer):
    """A layer that multiplies, and does not count."""

    def setup(self) -> None:
        self.w = self.weight("w", [64, 64], axes=("embed", "mlp"))

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(shape)


def factory() -> None:
    """Returns nothing: it is not called before weights are asked for."""


def find(model: Layer.Params) -> list[str]:
    experiment = registry.get("image.lenet.digits", [])
    experiment.task.model = model
    return uncounted(build_experiment(experiment))
