"""Recognizers have the sizes that they say."""

from __future__ import annotations

import pytest

import lingo
from params.asr import conformer, tones

ENCODERS = {"s": 8_713_152, "m": 27_331_584, "l": 115_120_128}
"""Weights of encoders by the formula of a block, 24 d^2 + (k + 32) d, and sub-sampling."""


def sizes(name: str) -> dict[str, int]:
    """Returns the number of weights of each part of a task."""
    found = {"encoder": 0, "head": 0}
    for path, spec in lingo.get(name).build().task.weights().items():
        found[path.partition("/")[0]] += spec.size
    return found


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_have_the_sizes_of_the_formula(name: str) -> None:
    found = sizes(f"asr.conformer.{name}")
    assert found["encoder"] == ENCODERS[name]
    text = getattr(conformer, name).__doc__
    assert f"{found['encoder']:,} weights" in text
    assert f"With the head it has {sum(found.values()):,}." in text


def test_the_learning_rate_rises_to_its_peak() -> None:
    optimizer = lingo.get("asr.conformer.s").optimizer
    schedule = optimizer.schedule.build()
    rate = optimizer.learning_rate * float(schedule(conformer.WARMUP_STEPS - 1))
    assert rate == pytest.approx(0.05 / 144**0.5, rel=1e-5)


def test_the_small_one_has_the_size_that_it_says() -> None:
    total = sum(sizes("asr.tones.words").values())
    assert f"{total:,} weights" in (tones.words.__doc__ or "")
