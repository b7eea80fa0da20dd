"""The experiments of MLPerf's rounds: published schedules, targets, and what their rules fix."""

from __future__ import annotations

import math

import numpy as np
import pytest

import lingo
from lingo.layers import BatchNorm
from lingo.trainer.mlperf.hyperparameters import hyperparameters
from lingo.trainer.mlperf.run_log import find_log

SSD_STEPS = [0, 1145, 3206, 3207, 4007, 4008, 4580]


@pytest.mark.parametrize(
    ("name", "steps", "expected"),
    [
        (
            "resnet.v06_pod",  # the formula of MLPerf's reference
            [100, 977, 1500, 2983],
            [3.19197, 31.185545, 17.058027, 1.077457e-4],
        ),
        (
            "resnet.v07_multipod",
            [0, 303, 606, 1172, 1739],
            [0.0, 24.699 * 303 / (31 * 1_281_167 / 65_536), 24.698073, 6.185671, 1e-4],
        ),
        (
            "dlrm.v07_pod",
            [0, 1375, 2750, 49_315, 63_201, 77_087],
            [0.0, 23.949 / 2, 23.949, 23.949, 23.949 / 4, 0.0],
        ),
        ("ssd.v06_pod", SSD_STEPS, [0.0, 0.16, 0.16, 0.016, 0.016, 0.0016, 0.0016]),
        ("ssd.v07_pod", SSD_STEPS, [0.0, 0.16, 0.16, 0.016, 0.016, 0.0016, 0.0016]),
    ],
)
def test_learning_rates_are_the_published_ones(name: str, steps, expected) -> None:
    optimizer = lingo.get(f"mlperf.{name}").build().optimizer
    rates = np.asarray(optimizer.rates(np.array(steps))["learning_rate"], np.float64)
    np.testing.assert_allclose(rates, expected, rtol=1e-5 if "v06_pod" in name else 1e-4)


@pytest.mark.parametrize(
    ("name", "text", "every_steps"),
    [
        ("resnet.v06_pod", "resnet@0.6.0", math.floor(4 * 1_281_167 / 32_768)),
        ("resnet.v07_multipod", "resnet@0.7.0", math.floor(4 * 1_281_167 / 65_536)),
        ("ssd.v06_pod", "ssd@0.6.0", math.floor(5 * 117_266 / 2048)),
        ("ssd.v07_pod", "ssd@0.7.0", math.floor(5 * 117_266 / 2048)),
        ("dlrm.v07_pod", "dlrm@0.7.0", 75_867 // 20),
    ],
)
def test_runs_end_at_the_target_of_their_round(name: str, text: str, every_steps: int) -> None:
    experiment = lingo.get(f"mlperf.{name}").build()
    p, rules = experiment.p.evaluate, find_log(experiment).rules
    assert (str(rules), p.reach, p.goal) == (text, rules.target, "max")
    assert p.every_steps == every_steps


def test_what_the_closed_division_of_0_7_fixes_is_so() -> None:
    """As in the files closed_resnet_lars.yaml and closed_ssd.yaml of the compliance checker."""
    params = lingo.get("mlperf.resnet.v07_multipod")
    found = hyperparameters(params.build(), "resnet", "0.7.0")
    values = {key.removeprefix("lars_opt_"): entry.value for key, entry in found.items()}
    assert (values["lars_epsilon"], values["end_learning_rate"]) == (0.0, 1e-4)
    assert values["learning_rate_decay_poly_power"] == 2
    assert math.log2(values["weight_decay"] / 1e-4) == 0
    assert (values["learning_rate_warmup_epochs"], values["momentum"]) == (31, 0.951807)
    assert {norm.statistics_over for norm in params.all(BatchNorm)} == {values["model_bn_span"]}


def test_ssd_logs_the_numbers_of_the_published_flags() -> None:
    found = hyperparameters(lingo.get("mlperf.ssd.v07_pod").build(), "ssd", "0.7.0")
    values = {key: entry.value for key, entry in found.items()}
    assert values["opt_learning_rate_decay_boundary_epochs"] == [56, 70]
    assert (values["opt_weight_decay"], values["model_bn_span"]) == (5e-4, 64)
    assert (values["opt_learning_rate_warmup_steps"], values["global_batch_size"]) == (1145, 2048)


def test_dlrm_logs_the_numbers_of_the_published_settings() -> None:
    found = hyperparameters(lingo.get("mlperf.dlrm.v07_pod").build(), "dlrm", "0.7.0")
    values = {key: entry.value for key, entry in found.items()}
    assert values["opt_learning_rate_warmup_steps"] == 2_750
    assert (values["lr_decay_start_steps"], values["global_batch_size"]) == (49_315, 55_296)
    assert values["sgd_opt_learning_rate_decay_steps"] == 27_772
    assert values["sgd_opt_learning_rate_decay_poly_power"] == 2
