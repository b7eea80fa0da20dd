"""What hosts make of a batch, and the cores that it takes."""

from __future__ import annotations

import pytest

from lingo.inspection.plan.hardware import HARDWARE
from lingo.inspection.plan.input_part import InputPart, host_examples, input_part
from lingo.inspection.plan.input_rate import InputRate
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
