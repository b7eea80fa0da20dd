"""Scaled rotary positions against the frequencies that transformers computes.

`tools/oracles/rotary_scaling.py` wrote these.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.layers import (
    LinearScaling,
    Llama3Scaling,
    NtkScaling,
    Rotary,
    RotaryScaling,
    YarnScaling,
)
from lingo.layers.context import apply
from lingo.layers.sequence.rotary_scaling import rotary_frequencies

CASES = json.loads((pathlib.Path(__file__).parent / "rotary_scaling.json").read_text())
LLAMA = Llama3Scaling.params(factor=8.0, original_max_position_embeddings=16)
POSITIONS = np.arange(6, dtype=np.int32)[None]
X = np.random.default_rng(0).normal(size=[1, 6, 2, 8]).astype(np.float32)


def scaling_of(case: dict[str, Any]) -> RotaryScaling:
    """Returns the scaling that a case of transformers has."""
    fields = dict(case["rope_parameters"])
    kind, _ = fields.pop("rope_type"), fields.pop("rope_theta")
    if kind == "dynamic":  # frequencies at one length, of a model of length 2,048
        growth = fields["factor"] * case["length"] / 2048 - (fields["factor"] - 1)
        return NtkScaling.params(factor=growth).build()
    classes = {"linear": LinearScaling, "yarn": YarnScaling, "llama3": Llama3Scaling}
    return classes[kind].params(**fields).build()


@pytest.mark.parametrize("name", CASES)
def test_frequencies_and_magnitudes_are_those_of_transformers(name: str) -> None:
    case = CASES[name]
    scaling, theta = scaling_of(case), case["rope_parameters"]["rope_theta"]
    found = scaling.frequencies(theta, case["head_dim"] // 2)
    np.testing.assert_allclose(found, case["frequencies"], rtol=2e-6)
    assert scaling.magnitude() == pytest.approx(case["attention_factor"], rel=1e-12)


def rotate(**fields: Any) -> np.ndarray:
    layer = Rotary.params(head_dim=8, max_wavelength=50.0, **fields).build()
    return apply(layer, {}, [X], POSITIONS, method="rotate")[0][0].numpy()


def test_heads_turn_by_the_scaled_frequencies() -> None:
    frequencies = LLAMA.build().frequencies(50.0, 4)
    assert not np.allclose(frequencies, rotary_frequencies(50.0, 4))
    pairs = (X[..., :4] + 1j * X[..., 4:]) * np.exp(
        1j * POSITIONS[:, :, None, None] * frequencies.astype(np.float32)
    )
    expected = np.concatenate([pairs.real, pairs.imag], axis=-1)
    np.testing.assert_allclose(rotate(scaling=LLAMA), expected, atol=1e-5)


def test_the_magnitude_is_that_of_what_turns_and_of_nothing_else() -> None:
    yarn = YarnScaling.params(factor=4.0, original_max_position_embeddings=16, truncate=False)
    one = yarn.copy().set(attention_factor=1.0)
    ratio = rotate(scaling=yarn, fraction=0.5) / rotate(scaling=one, fraction=0.5)
    expected = [1.1386294] * 2 + [1.0] * 2
    np.testing.assert_allclose(ratio[0, 0, 0], expected * 2, rtol=1e-5)


def test_a_factor_of_one_changes_nothing() -> None:
    for kind in (LinearScaling, NtkScaling):
        np.testing.assert_array_equal(rotate(scaling=kind.params(factor=1.0)), rotate())


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (LinearScaling.params(factor=0.0), "factor=0.0"),
        (LLAMA.copy().set(low_freq_factor=4.0), "low_freq_factor=4.0.*high_freq_factor=4.0"),
        (
            YarnScaling.params(factor=2.0, original_max_position_embeddings=16, beta_slow=32.0),
            "beta_slow=32.0.*beta_fast=32.0",
        ),
    ],
)
def test_numbers_that_scale_nothing_are_refused(params: Any, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        Rotary.params(head_dim=8, scaling=params).build()
