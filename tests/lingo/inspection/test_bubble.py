"""The bubble of stages that differ: against sums by hand, in FLOPs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import lingo
from lingo.inspection import pipeline
from lingo.inspection.bubble import bubble_fraction
from lingo.inspection.pipelined import Pipelined, pipelined
from lingo.layers.linear import Linear
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.mesh.pipeline.schedule import fill_drain


class Map(Linear):
    """A linear map that stands in a chain."""

    def output_shape(self, shape: Any) -> Any:
        return [*shape[:-1], self.p.output_dim]


def alike(num_layers: int, fields: str, *overrides: str) -> Any:
    """Returns the report of a pipeline of so many equal layers."""
    small = ("exp.model_dim=8", "train_input.batch_size=8", "train_input.length=8")
    stack = (f"exp.num_layers={num_layers}", f"Stack=Pipeline({fields})")
    experiment = lingo.get("lm.source.tiny", *small, *stack, *overrides).build()
    (one,) = pipelined(experiment)
    return pipeline.report(one, experiment)


def chain(widths: list[int], num_stages: int, num_micro_batches: int) -> Pipelined:
    """Returns a chain of layers between some widths, for micro-batches of one row."""
    layers = [Map.params(dim=a, output_dim=b) for a, b in itertools.pairwise(widths)]
    fields = {"num_stages": num_stages, "num_micro_batches": num_micro_batches}
    layer = PipelinedChain.params(layers=layers, **fields).build()
    return Pipelined(layer, (1, widths[0]), 1.0, compiled=False, num_replicas=1)


def test_equal_stages_have_the_bubble_of_the_schedule_to_the_last_bit() -> None:
    for fields in ("num_stages=4, num_micro_batches=8", "num_stages=2, num_micro_batches=2"):
        report = alike(8, fields)
        assert report.bubble_fraction == report.schedule.bubble_fraction
    one = chain([3, 3, 3, 3, 3], 2, 4)
    schedule = fill_drain(2, 4, backward=3)
    assert bubble_fraction(one, schedule) == schedule.bubble_fraction


@pytest.mark.parametrize("remat", ["False", "True"])
def test_what_fills_up_blocks_is_idle_in_the_time_of_layers(remat: str) -> None:
    """6 layers in 4 stages: each takes 2 in each of 8 + 3 turns, of which 6 * 8 count."""
    report = alike(6, f"num_stages=4, num_micro_batches=8, remat={remat}")
    assert report.schedule.bubble_fraction == pytest.approx(3 / 11)
    assert report.bubble_fraction == pytest.approx(1 - 6 * 8 / (4 * 2 * 11))


def test_so_it_is_in_rounds() -> None:
    """5 layers in 2 rounds of 2 stages are blocks of 2: 2 * 8 + 1 turns."""
    report = alike(5, "num_stages=2, num_micro_batches=8, circular_repeats=2")
    assert report.bubble_fraction == pytest.approx(1 - 5 * 8 / (2 * 2 * 17))


def test_unlike_stages_wait_for_the_one_that_takes_longest() -> None:
    """Stages of a and b: all forward in (M - 1) max + a + b, and so backward, times 3."""
    one = chain([2, 3, 5, 7], 2, 4)
    a, b = 6 + 15, 35
    assert one.blocks == [[range(2), range(2, 3)]]
    expected = 1 - 4 * (a + b) / (2 * (3 * b + a + b))
    assert bubble_fraction(one, fill_drain(2, 4, backward=3)) == pytest.approx(expected)


def test_layers_that_multiply_nothing_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    one, schedule = chain([2, 3, 5, 7], 2, 4), fill_drain(2, 4, backward=3)
    monkeypatch.setattr(Map, "flops", lambda self, shape: 0)
    assert bubble_fraction(one, schedule) == schedule.bubble_fraction
