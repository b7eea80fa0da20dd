"""Lingvo's dense language models: its learning rate, and devices that hold what they train."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config import experiment_index, registry
from lingo.optim import Adafactor
from lingo.runtimes.layout import bytes_per_device

NAMES = [n for n in sorted(experiment_index.index().entries) if n.startswith("lm.lingvo_dense.")]
DEVICE_BYTES = 16 * 2**30  # of a core of TPU v3


@pytest.mark.parametrize("name", NAMES)
def test_weights_slots_and_gradients_fit_a_device(name: str) -> None:
    experiment = registry.get(name).params.build()
    layout = experiment.runtime.layout(experiment.learner)
    found = bytes_per_device(experiment.learner, layout)
    assert sum(size.per_device for size in found.values()) < DEVICE_BYTES
    assert found["slots"].per_device < found["weights"].per_device / 5


@pytest.mark.parametrize("name", NAMES)
def test_the_learning_rate_is_the_inverse_root_of_the_step_after_10_000(name: str) -> None:
    optimizer = registry.get(name).params.build().optimizer
    assert isinstance(optimizer, Adafactor)
    (rates,) = optimizer.rates(np.array([0, 9_999, 40_000])).values()
    np.testing.assert_allclose(rates, [0.01, 0.01, 0.005], rtol=1e-6)
