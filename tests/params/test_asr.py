"""Recognizers have the sizes that they say."""

from __future__ import annotations

import collections
import re

import numpy as np
import pytest

import lingo
from lingo.data.bucketed_input import rows_of_equal_size
from params.asr import conformer, librispeech, tones

ENCODERS = {"s": 8_713_152, "m": 27_331_584, "l": 115_120_128}
"""Weights of encoders by the formula of a block, 24 d^2 + (k + 32) d, and sub-sampling."""


TRANSDUCERS = {"s": 10_338_816, "m": 30_735_168, "l": 118_605_632}
"""Weights with transducers; the paper has 10.3, 30.7 and 118.8 million."""


def sizes(name: str) -> collections.Counter[str]:
    """Returns the number of weights of each part of a task."""
    found = collections.Counter[str]()
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


@pytest.mark.parametrize("name", TRANSDUCERS)
def test_transducers_have_an_embedding_an_lstm_and_a_joint_network(name: str) -> None:
    found, dim = sizes(f"asr.conformer.{name}_transducer"), {"s": 144, "m": 256, "l": 512}[name]
    width = 320 if name == "s" else 640
    assert found["encoder"] == ENCODERS[name]
    assert found["prediction"] == 1024 * 320 + 4 * width * (320 + width + 1)
    assert found["joint"] == (dim + width + 1) * 320 + 321 * 1024
    assert found.total() == TRANSDUCERS[name]
    text = getattr(conformer, f"{name}_transducer").__doc__
    assert f"{found.total():,} weights" in text


@pytest.mark.parametrize(("name", "total"), [("grapheme", 132_078_844), ("wpm", 183_664_872)])
def test_las_has_the_size_of_lingos(name: str, total: int) -> None:
    assert sizes(f"asr.librispeech.{name}").total() == total
    assert f"{total:,} weights" in (getattr(librispeech, name).__doc__ or "")


def test_the_rate_of_las_halves_after_its_hold() -> None:
    steps = np.array([0, 49_999, 50_000, 150_000, 250_000, 714_385, 714_386, 10**6])
    rates = librispeech.halved_after_hold().build()(steps)
    np.testing.assert_allclose(rates, [1, 1, 1, 0.5, 0.25, 0.01, 0.01, 0.01], rtol=1e-5)


@pytest.mark.parametrize("name", ["grapheme", "wpm"])
def test_noise_is_in_lstms_attention_embedding_and_softmax_as_in_lingvo(name: str) -> None:
    """Lingvo's convolutions, projections and batch norms have none (`enable_vn` is False)."""
    built = lingo.get(f"asr.librispeech.{name}").build()
    noise = built.learner.weight_noise
    assert (noise.p.stddev, noise.p.start_step) == (0.075, 20_000)
    names = [where for where in built.task.weights() if not re.fullmatch(noise.p.pattern, where)]
    kinds = {re.sub(r"/\d+/\w+$", "", where) for where in names}
    assert kinds == {
        *("encoder/subsampling/convs", "encoder/subsampling/norms"),
        *("encoder/projections", "encoder/norms"),
    }


def test_batches_of_las_have_lingos_sizes() -> None:
    data = lingo.get("asr.librispeech.grapheme").train_input
    rows = rows_of_equal_size(data.boundaries, data.batch_size)
    assert rows == [96, 48, 48, 48, 48, 48, 48, 48]


@pytest.mark.parametrize("name", ["words", "transducer", "attention"])
def test_the_small_ones_have_the_size_that_they_say(name: str) -> None:
    total = sizes(f"asr.tones.{name}").total()
    assert f"{total:,} weights" in (getattr(tones, name).__doc__ or "")
    assert total < 600_000
