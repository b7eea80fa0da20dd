"""The rate of an input on a core, by clocks of the test."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lingo.data.input import Input
from lingo.inspection.plan.input_rate import MAX_EXAMPLES, MIN_BATCHES, measure


class Counts(Input):
    """Examples without arrays."""

    def setup(self) -> None:
        self.made: list[int] = []

    def prepare(self, *, progress: object = None) -> None:
        del progress

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        self.made.append(len(numbers))
        return {}


def test_examples_are_counted_over_the_seconds_of_cores() -> None:
    data = Counts.params(batch_size=8).build()
    clock, core_clock = itertools.count(step=2.0), itertools.count(step=0.5)
    found = measure(
        data, 4, seconds=20, clock=lambda: next(clock), core_clock=lambda: next(core_clock)
    )
    assert found.examples_per_second == 4 / 0.5
    assert found.variation == 0
    assert data.made == [4] * 11  # the first does not count
    assert found.source == "measured here on 10 batches of 4"


def test_the_variation_is_that_of_the_time_of_batches() -> None:
    times = iter(np.cumsum([0, 1, 0, 3] * 10).tolist())
    data = Counts.params(batch_size=2 * MAX_EXAMPLES).build()
    found = measure(data, 2 * MAX_EXAMPLES, seconds=16, clock=lambda: next(times))
    assert found.variation == pytest.approx(0.5)  # times are 1 and 3
    assert set(data.made) == {MAX_EXAMPLES}


def test_a_few_batches_are_made_however_long_they_take() -> None:
    clock, data = itertools.count(step=100.0), Counts.params(batch_size=1).build()
    measure(data, 1, seconds=1, clock=lambda: next(clock))
    assert len(data.made) == MIN_BATCHES + 1
