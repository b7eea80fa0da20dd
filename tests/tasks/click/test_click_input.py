"""Clicks of a planted model: how features are distributed, and how often there is a click."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.params import ParamError
from tasks.click.click_input import ClickInput
from tests.lingo.data.documents import assert_starts_anywhere, specs_of

SIZES = (100, 3, 40_000_000, 7)


def clicks(**fields):
    return ClickInput.params(**{"batch_size": 4, "vocab_sizes": SIZES} | fields).build()


def test_a_batch_is_as_the_specs_say():
    data = clicks()
    data.check_repeatable()
    assert specs_of(data.batch(0)) == data.specs()
    assert data.offers() == {"num_numbers": 13, "vocab_sizes": SIZES}
    heldout = clicks(repeat=False, num_clicks=5)
    assert heldout.offers()["num_eval_examples"] == 5


def test_it_starts_anywhere():
    assert_starts_anywhere(clicks, range(3))


def test_numbers_are_standardized_and_small_categories_are_frequent():
    batch = clicks(batch_size=20_000).batch(0)
    np.testing.assert_allclose(batch["numbers"].mean(0), 0, atol=0.03)
    np.testing.assert_allclose(batch["numbers"].std(0), 1, atol=0.02)
    categories = batch["categories"]
    assert (categories >= 0).all()
    assert (categories < SIZES).all()
    below = np.arange(1, 100)
    shares = [(categories[:, 0] < v).mean() for v in below]
    np.testing.assert_allclose(shares, np.sqrt(below / 100), atol=0.02)
    assert categories[:, 2].max() > 0.99 * SIZES[2]


def test_clicks_are_as_frequent_as_the_planted_model_says():
    batch = clicks(batch_size=40_000).batch(0)
    logits = batch["planted_logits"]
    np.testing.assert_allclose(logits.std(), 1.4, rtol=0.15)
    chances = 1 / (1 + np.exp(-logits))
    for tenth in np.array_split(np.argsort(logits), 10):
        deviation = np.sqrt(0.25 / len(tenth))
        assert abs(batch["labels"][tenth].mean() - chances[tenth].mean()) < 4 * deviation


def test_the_planted_logit_is_that_of_slow_numpy():
    data = clicks(vocab_sizes=(4,) * 8, num_numbers=2)
    numbers, categories = np.zeros([1, 2]), np.zeros([1, 8], np.int32)
    zero = data.planted_logits(numbers, categories)

    def change(*features: int) -> float:
        other = categories.copy()
        other[0, list(features)] = 1
        return float((data.planted_logits(numbers, other) - zero)[0])

    # the sixth feature is in pairs, the seventh is not
    assert change(0, 5) != pytest.approx(change(0) + change(5), abs=1e-6)
    assert change(0, 6) == pytest.approx(change(0) + change(6), abs=1e-12)
    slope = data.planted_logits(np.array([[1.0, 0.0]]), categories) - zero
    twice = data.planted_logits(np.array([[2.0, 0.0]]), categories) - zero
    np.testing.assert_allclose(twice, 2 * slope)


def test_splits_and_seeds_differ_but_share_the_planted_model():
    one, seed, split = (clicks(**f) for f in ({}, {"seed": 1}, {"split": "heldout"}))
    batch = one.batch(0)
    for other in (seed, split):
        assert not np.isclose(other.batch(0)["numbers"], batch["numbers"]).all(1).any()
        logits = other.planted_logits(batch["numbers"], batch["categories"])
        np.testing.assert_allclose(logits, batch["planted_logits"], rtol=1e-5)


def test_a_second_pass_has_new_examples():
    data = clicks(num_clicks=4)
    assert not (data.batch(0)["numbers"] == data.batch(1)["numbers"]).any()


@pytest.mark.parametrize(
    "fields", [{"vocab_sizes": (3, 0)}, {"num_numbers": 0}, {"num_clicks": 0}, {"scale": -1.0}]
)
def test_what_cannot_be_drawn_is_refused(fields):
    (name,) = fields
    with pytest.raises(ParamError, match=name):
        clicks(**fields)
