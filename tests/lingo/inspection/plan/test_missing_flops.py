"""Layers that do not count their FLOPs are named."""

from __future__ import annotations

from typing import Any

import pytest

from lingo.config import registry
from lingo.config.params import ParamError, Params
from lingo.contract import Experiment, build_experiment
from lingo.inspection.plan.missing_flops import missing_flops
from lingo.inspection.plan.workload import workload
from lingo.layers import Keras
from lingo.layers.layer import Layer


class Own(Layer):
    """A layer that multiplies, and does not count."""

    def setup(self) -> None:
        self.w = self.weight("w", [64, 64], axes=("embed", "mlp"))

    def output_shape(self, shape: Any) -> Any:
        return shape


def factory() -> None:
    """Is not called, since nobody asks for weights."""


def digits() -> Any:
    return registry.get("image.lenet.digits", [])


def build(model: Params) -> Experiment:
    resolved = digits()
    resolved.params.task.model = model
    return build_experiment(resolved)


def test_all_layers_of_lenet_count() -> None:
    assert missing_flops(build(digits().params.task.model)) == []


def test_a_layer_that_does_not_count_is_named_by_its_path() -> None:
    model = digits().params.task.model
    model.layers = [Own.params(), *model.layers]
    assert missing_flops(build(model)) == ["model/layers/0 (Own)"]


def test_a_task_that_counts_nothing_is_refused_with_its_layers() -> None:
    with pytest.raises(ParamError, match=r"counts no FLOPs.* `flops\(shape\)` of model \(Keras\)"):
        workload(build(Keras.params(factory=factory)))
