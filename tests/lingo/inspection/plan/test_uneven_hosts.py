"""The simulation of uneven hosts: its closed forms, and what can only help."""

from __future__ import annotations

import math

import pytest

from lingo.inspection.plan.uneven_hosts import MIN_STEPS, num_steps, simulate_step


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
