"""Collectives that are combined."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from lingo.config import registry
from lingo.contract import Experiment, build_experiment
from lingo.inspection.plan.candidate import Candidate
from lingo.inspection.plan.estimate import Estimator, ExchangeTime
from lingo.inspection.plan.exchange import Exchange
from lingo.inspection.plan.hardware import HARDWARE
from lingo.inspection.plan.workload import workload
from lingo.mesh.topology import topology

SUM = Exchange("all-reduce", ("data",), "gradients", tensors=10, bytes=100, collectives=10)


@pytest.mark.parametrize(
    ("most_bytes", "iterations", "collectives"),
    [(0, 1, 10), (1000, 1, 1), (40, 1, 3), (5, 1, 10), (1000, 5, 5), (15, 5, 10)],
)
def test_tensors_are_combined_up_to_so_many_bytes_in_each_iteration(
    most_bytes: float, iterations: float, collectives: float
) -> None:
    combined = SUM.combine(most_bytes, iterations=iterations)
    assert combined == SUM._replace(collectives=collectives)


def sums(experiment: str, combined_bytes: float, *overrides: str) -> ExchangeTime:
    """Returns the sum of all gradients along `data`, of eight devices."""

    def build(more: Sequence[str]) -> Experiment:
        return build_experiment(registry.get(experiment, [*overrides, *more]))

    hardware = HARDWARE["tpu_v3"]._replace(combined_bytes=combined_bytes)
    estimator = Estimator(workload(build(())), hardware, build)
    (found,) = estimator.estimate(Candidate(topology({"data": 8}))).exchanges
    return found


def test_combined_sums_take_fewer_latencies_for_the_same_bytes() -> None:
    combined, single = (sums("image.resnet.resnet50", most) for most in (30 * 2**20, 0))
    assert single.exchange.collectives == single.exchange.tensors == 161
    assert combined.exchange.collectives == math.ceil(single.exchange.bytes / (30 * 2**20))
    assert combined.exchange.bytes == single.exchange.bytes
    latency = 2 * (1e-6 + 1e-6 + 1e-7)  # there and back: two sides of 2 chips, 2 cores of a chip
    saved = (161 - combined.exchange.collectives) * latency
    assert single.seconds - combined.seconds == pytest.approx(saved)


def test_gradients_of_a_layer_in_a_loop_are_combined() -> None:
    found = sums("lm.source.tiny(num_layers=4)", 30 * 2**20, "Stack=Repeat").exchange
    assert found.tensors == 4 * 9 + 3  # those of a layer; the table, of two gradients, and a norm
    assert found.collectives == 4 + 1
