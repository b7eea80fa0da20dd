"""Overrides of the batch size of inputs, also inside others."""

from __future__ import annotations

import pytest

from lingo.config import registry
from lingo.config.params import ParamError, Params
from lingo.contract import build_experiment
from lingo.data.repeated_input import RepeatedInput
from lingo.datasets import GlyphInput
from lingo.inspection.plan.batch_setting import batch_settings, check_batch


def settings(data: Params) -> list[str]:
    params = registry.get("image.resnet.glyphs", []).params
    params.train_input = data
    return batch_settings(params, 8)


def test_sizes_that_are_set_are_set() -> None:
    inner = GlyphInput.params(batch_size=4)
    assert settings(inner) == ["train_input.batch_size=8"]
    assert settings(RepeatedInput.params(input=inner)) == ["train_input.input.batch_size=8"]


def test_an_input_without_a_size_is_refused() -> None:
    with pytest.raises(ParamError, match="--batch=8: RepeatedInput has no batch_size that is set"):
        settings(RepeatedInput.params(input=GlyphInput.params()))


def test_an_input_that_makes_another_size_is_refused() -> None:
    resolved = registry.get("image.resnet.glyphs", [])
    experiment = build_experiment(resolved)
    check_batch(experiment, resolved.params.train_input.batch_size)
    with pytest.raises(ParamError, match=r"--batch=8: .* makes batches of 64 with it"):
        check_batch(experiment, 8)
