"""The bubble of stages that differ: against sums by hand, in FLOPs."""

import itertools
from typing import Any

import pytest

import lingo
from lingo.inspection.pipeline_workload import PipelineWorkload, find_pipelines
from lingo.layers.linear import Linear
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.mesh.pipeline.schedule import fill_drain


class Map(Linear):
    """A linear map that stands in a chain."""

    def output_shape(self, shape: Any) -> Any:
        return [*shape[:-1], self.p.output_dim]


def alike(num_layers: int, fields: str, *overrides: str) -> PipelineWorkload:
    """Returns a pipeline of so many equal layers."""
    small = ("exp.model_dim=8", "train_input.batch_size=8", "train_input.length=8")
    stack = (f"exp.num_layers={num_layers}", f"Stack=Pipeline({fields})")
    experiment = lingo.get("lm.source.tiny", *small, *stack, *overrides).build()
    (workload,) = find_pipelines(experiment)
    return workload


def chain(widths: list[int], num_stages: int, num_micro_batches: int) -> PipelineWorkload:
    """Returns a chain of layers between some widths, for micro-batches of one row."""
    layers = [Map.params(dim=a, output_dim=b) for a, b in itertools.pairwise(widths)]
    fields = {"num_stages": num_stages, "num_micro_batches": num_micro_batches}
    layer = PipelinedChain.params(layers=layers, **fields).build()
    return PipelineWorkload(layer, (1, widths[0]), 1.0, compiled=False, num_replicas=1)


def test_equal_stages_have_the_bubble_of_the_schedule_to_the_last_bit():
    for fields in ("num_stages=4, num_micro_batches=8", "num_stages=2, num_micro_batches=2"):
        workload = alike(8, fields)
        assert workload.bubble_fraction == workload.schedule.bubble_fraction
    workload = chain([3, 3, 3, 3, 3], 2, 4)
    assert workload.schedule == fill_drain(2, 4, backward=3)
    assert workload.bubble_fraction == workload.schedule.bubble_fraction


@pytest.mark.parametrize("remat", ["False", "True"])
def test_what_fills_up_a_stage_counts_as_idle(remat):
    """6 layers in 4 stages: each takes 2 in each of 8 + 3 steps, of which 6 * 8 count."""
    workload = alike(6, f"num_stages=4, num_micro_batches=8, remat={remat}")
    assert workload.schedule.bubble_fraction == pytest.approx(3 / 11)
    assert round(workload.bubble_fraction, 3) == 0.455
    assert workload.bubble_fraction == pytest.approx(1 - 6 * 8 / (4 * 2 * 11))


def test_what_fills_up_a_repeat_counts_as_idle():
    """5 layers in 2 repeats of 2 stages, 2 layers each: 2 * 8 + 1 steps."""
    workload = alike(5, "num_stages=2, num_micro_batches=8, circular_repeats=2")
    assert workload.bubble_fraction == pytest.approx(1 - 5 * 8 / (2 * 2 * 17))


def test_unlike_stages_wait_for_the_one_that_takes_longest():
    """Stages of a and b: all forward in (M - 1) max + a + b, and so backward, times 3."""
    workload = chain([2, 3, 5, 7], 2, 4)
    a, b = 6 + 15, 35
    assert workload.stage_layers == [[range(2), range(2, 3)]]
    expected = 1 - 4 * (a + b) / (2 * (3 * b + a + b))
    assert workload.bubble_fraction == pytest.approx(expected)


def test_layers_that_multiply_nothing_are_equal(monkeypatch):
    workload = chain([2, 3, 5, 7], 2, 4)
    monkeypatch.setattr(Map, "flops", lambda self, shape: 0)
    assert workload.bubble_fraction == workload.schedule.bubble_fraction
