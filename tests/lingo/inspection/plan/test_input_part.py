"""What hosts make of a batch, the cores that it takes, and steps that wait for uneven hosts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lingo.data.input import Input
from lingo.inspection.plan.hardware import HARDWARE
from lingo.inspection.plan.input_part import (
    MAX_EXAMPLES,
    MIN_BATCHES,
    MIN_STEPS,
    InputPart,
    InputRate,
    host_examples,
    input_part,
    measure,
    num_steps,
    simulate_step,
)
from lingo.mesh.rules import RECIPES
from lingo.mesh.topology import topology

BATCH_AXES = RECIPES["1d"].activations["batch"]


@pytest.mark.parametrize(
    ("sizes", "devices_per_host", "expected"),
    [
        ({"data": 16}, 8, 32),  # two hosts, half of the batch each
        ({"data": 2, "model": 8}, 4, 32),  # four hosts: two make the same half
        ({"stage": 2, "data": 8}, 8, 64),  # both make all: each has a stage of all examples
        ({}, 8, 64),
        ({"data": 3}, 1, 22),  # padded to 66
    ],
)
def test_a_host_makes_the_parts_of_its_devices(
    sizes: dict[str, int], devices_per_host: int, expected: int
) -> None:
    assert expected == host_examples(
        topology(sizes), BATCH_AXES, batch_size=64, devices_per_host=devices_per_host
    )


def part(rate: InputRate | None, step_seconds: float = 0.1) -> InputPart:
    return input_part(
        HARDWARE["h100"]._replace(cores_per_host=10),
        num_devices=32,
        examples=100,
        batch_size=400,
        batch_bytes=4000,
        step_seconds=step_seconds,
        rate=rate,
    )


def test_hosts_and_rates_are_those_of_the_step() -> None:
    assert part(None) == InputPart(4, 10, 100, 4000.0, 40000.0, None)


def test_cores_are_those_that_make_the_examples_in_time() -> None:
    need = part(InputRate(200.0)).need
    assert need is not None
    assert need.cores == pytest.approx(5)
    assert need.hosts == 2  # of 10 cores, for 4 x 5 of them
    assert (need.limit, need.slowdown, need.simulated_steps) == ("step", 1.0, 0)
    assert need.step_seconds == need.even_seconds == 0.1
    assert need.one_thread_seconds == 0.5


def test_an_input_that_is_too_slow_is_the_limit() -> None:
    need = part(InputRate(50.0)).need
    assert need is not None
    assert need.limit == "input"
    assert need.even_seconds == pytest.approx(0.2)
    assert need.hosts == 8


def test_uneven_hosts_take_longer() -> None:
    need = part(InputRate(100.0, variation=0.5)).need
    assert need is not None
    assert need.simulated_steps > 0
    assert need.slowdown > 1.01
    assert need.step_seconds == need.even_seconds * need.slowdown


# ---- rate of a core, by clocks of the test


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


# ---- uneven hosts: closed forms, and what can only help


@pytest.mark.parametrize(("step", "batch"), [(2.0, 1.0), (1.0, 3.0), (1.0, 0.0)])
def test_even_hosts_take_the_longer_of_step_and_batch(step: float, batch: float) -> None:
    for variation in (0.0, 1e-6):
        found = simulate_step(
            step_seconds=step, batch_seconds=batch, variation=variation, num_hosts=64
        )
        assert found == pytest.approx(max(step, batch), rel=1e-4)


@pytest.mark.parametrize("num_hosts", [1, 2, 8, 64])
def test_without_a_queue_a_step_waits_for_the_largest_of_exponentials(num_hosts: int) -> None:
    """The expected maximum of n exponentials of mean m is m (1 + 1/2 + ... + 1/n)."""
    found = simulate_step(
        step_seconds=0, batch_seconds=2, variation=1, num_hosts=num_hosts, depth=1, steps=20_000
    )
    harmonic = sum(1 / n for n in range(1, num_hosts + 1))
    assert found == pytest.approx(2 * harmonic, rel=0.03)  # three standard errors of one host


def test_one_host_of_one_batch_ahead_takes_the_longer_of_two() -> None:
    """E max(s, X) = s + m exp(-s / m), X exponential of mean m."""
    found = simulate_step(
        step_seconds=1.5, batch_seconds=1, variation=1, num_hosts=1, depth=1, steps=20_000
    )
    assert found == pytest.approx(1.5 + math.exp(-1.5), rel=0.02)


def test_a_host_alone_loses_nothing_where_it_is_the_limit() -> None:
    found = simulate_step(
        step_seconds=0, batch_seconds=1, variation=1, num_hosts=1, depth=3, steps=20_000
    )
    assert found == pytest.approx(1, rel=0.03)


def test_longer_queues_help_and_more_hosts_or_variation_do_not() -> None:
    def simulate(num_hosts: int = 16, variation: float = 0.5, depth: int = 2) -> float:
        return simulate_step(
            step_seconds=1.0,
            batch_seconds=0.9,
            variation=variation,
            num_hosts=num_hosts,
            depth=depth,
        )

    by_depth = [simulate(depth=depth) for depth in (1, 2, 4, 16)]
    assert by_depth == sorted(by_depth, reverse=True)
    assert simulate(1) < simulate(16) < simulate(256)
    assert simulate(variation=0.1) < simulate(variation=0.5) < simulate(variation=1)
    assert by_depth[1] == simulate()  # the seed is fixed


def test_many_hosts_are_simulated_for_fewer_steps() -> None:
    assert num_steps(1) == num_steps(2000) == 2000
    assert num_steps(2**17) == MIN_STEPS
