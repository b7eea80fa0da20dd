"""Metric states add; nothing is averaged before the end."""

import math

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.metrics.metric import (
    Accumulator,
    add_states,
    mean,
    means,
    perplexity,
    weighted_mean,
)


def test_uneven_batches_give_the_mean_over_examples_not_over_batches():
    total = Accumulator()
    for batch in ([1.0, 2.0, 3.0], [10.0]):
        total.add({"loss": mean(sum(batch), len(batch))})
    total.add({"loss": mean(0.0, 0.0), "accuracy": mean(0.0, 0.0)})  # weight 0 has no result
    assert total.results() == {"loss": 4.0}  # a mean of means would be 6


def test_sums_are_kept_in_float64():
    total = Accumulator()
    total.add({"n": mean(np.float32(2**24), np.float32(2**24))})
    for _ in range(100):
        total.add({"n": mean(np.float32(1), np.float32(0))})
    assert total.states["n"]["sum"] == 2**24 + 100  # float32 would stay at 2 ** 24


def test_a_weighted_mean_does_not_depend_on_how_examples_are_split():
    draw = np.random.default_rng(0)
    values = draw.exponential(size=10_000).astype(np.float32)
    weights = draw.integers(0, 2, 10_000).astype(np.float32)
    found = []
    for size in (1000, 3333, 10_000):
        total = Accumulator()
        for i in range(0, 10_000, size):
            here = slice(i, i + size)
            total.add({"loss": weighted_mean(tf.constant(values[here]), weights[here])})
        found.append(total.results()["loss"])
    exact = (values.astype(float) * weights).sum() / weights.sum()
    assert found == pytest.approx([exact] * 3, rel=1e-14)


def test_states_of_any_entries_and_shapes_add():
    total = Accumulator()
    for _ in range(2):
        total.add({"confusion": {"counts": np.eye(2, dtype=np.int32)}})
    np.testing.assert_array_equal(total.states["confusion"]["counts"], 2 * np.eye(2))


def test_states_add_by_name_and_entry_though_batches_have_different_ones():
    sums = add_states({"a": {"x": 1.0}}, {"a": {"x": 2.0, "y": 3.0}, "b": {"z": 4.0}})
    assert add_states(sums, {"b": {"z": 5.0}}) == {"a": {"x": 3.0, "y": 3.0}, "b": {"z": 9.0}}
    assert add_states({}, sums) == sums


def test_only_a_single_mean_has_a_mean():
    with pytest.raises(ValueError, match="confusion is not the state of one mean"):
        means({"confusion": {"counts": 1.0}})
    with pytest.raises(ValueError, match="loss is not the state of one mean"):
        means({"loss": mean(np.ones(2), np.ones(2))})


def test_the_perplexity_of_a_large_mean_is_infinite():
    assert perplexity(1e4) == math.inf


def test_adding_continues_from_the_states_of_another_accumulator():
    first = Accumulator()
    first.add({"loss": mean(1.0, 2.0)})
    second = Accumulator(first.states)
    second.add({"loss": mean(3.0, 2.0)})
    assert (first.results(), second.results()) == ({"loss": 0.5}, {"loss": 1.0})
