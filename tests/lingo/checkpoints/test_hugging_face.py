"""Weights beside a config.json of Hugging Face, whose rotary positions the model must have."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import lingo
from lingo.checkpoints.errors import CheckpointMismatch
from lingo.checkpoints.sources.warm_start import WarmStart, weight_shapes
from lingo.checkpoints.sources.weight_source import UnusableSource
from lingo.contract import Experiment

LLAMA = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
FLAG = (
    "Rotary.scaling=Llama3Scaling(factor=8.0, original_max_position_embeddings=8192,"
    " low_freq_factor=1.0, high_freq_factor=4.0)"
)


@pytest.fixture
def experiment(tmp_path: pathlib.Path) -> Any:
    """Builds an experiment that reads a file beside the given configuration."""

    def experiment(config: Any, *overrides: str, **fields: Any) -> Experiment:
        cfg = lingo.get("tiny(model_dim=8,num_layers=2)", "Attention.num_heads=2", *overrides)
        cfg.init_from = WarmStart.params(path=str(tmp_path), **fields)
        built = cfg.build()
        shapes = weight_shapes(built.task).items()
        save_file({k: np.zeros(s, "f") for k, s in shapes}, tmp_path / "model.safetensors")
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "config.json").write_text(text)
        return built

    return experiment


def test_scaled_positions_are_refused_by_a_model_without_and_the_flag_is_told(experiment) -> None:
    config = {"rope_theta": 500000.0, "rope_scaling": LLAMA}
    with pytest.raises(CheckpointMismatch) as caught:
        experiment(config).warm_start()
    message = str(caught.value)
    assert len(message.splitlines()) <= 3
    assert "config.json" in message
    assert "model/stack/layers/0/attention/positions" in message
    assert f"--set='{FLAG}'" in message
    assert "--set=Rotary.max_wavelength=500000.0" in message
    experiment(config, FLAG, "Rotary.max_wavelength=500000.0").warm_start()


def test_what_newer_files_and_wrapped_models_have_is_read(experiment) -> None:
    new = {"text_config": {"rope_parameters": LLAMA | {"rope_theta": 10000.0}}}
    with pytest.raises(CheckpointMismatch, match="Llama3Scaling"):
        experiment(new).warm_start()
    old = {"rope_scaling": {"type": "linear", "factor": 2}}
    with pytest.raises(CheckpointMismatch, match=r"Rotary\.scaling=LinearScaling\(factor=2\)"):
        experiment(old).warm_start()


def test_the_length_of_training_may_stand_beside_the_scaling(experiment) -> None:
    config = {"max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": 4.0}}
    flag = r"YarnScaling\(factor=4\.0, original_max_position_embeddings=4096\)"
    with pytest.raises(CheckpointMismatch, match=flag):
        experiment(config).warm_start()


def test_a_scaling_that_is_not_here_is_refused(experiment) -> None:
    config = {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}}
    with pytest.raises(CheckpointMismatch, match="'longrope', which lingo does not have"):
        experiment(config).warm_start()


@pytest.mark.parametrize(
    "config",
    [
        {},
        [],
        {"rope_scaling": None, "rope_theta": 10000},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    ],
)
def test_a_configuration_without_scaling_is_no_matter(experiment, config) -> None:
    experiment(config).warm_start()


def test_another_wavelength_is_refused_alone(experiment) -> None:
    with pytest.raises(CheckpointMismatch, match=r"Rotary\.max_wavelength=500000\.0") as caught:
        experiment({"rope_theta": 500000.0}).warm_start()
    assert "scaling" not in str(caught.value)


def test_layers_that_read_nothing_are_no_matter(experiment) -> None:
    experiment({"rope_scaling": LLAMA}, only=["model/embedding/.*"]).warm_start()
    experiment({"rope_scaling": LLAMA}, "Attention.positions=None").warm_start()


def test_a_broken_configuration_is_told(experiment) -> None:
    with pytest.raises(UnusableSource, match=r"config\.json is damaged: its content is not JSON"):
        experiment("{").warm_start()
