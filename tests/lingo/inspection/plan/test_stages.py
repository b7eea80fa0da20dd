"""The bytes and FLOPs of unlike layers in stages add up to the bytes and FLOPs of one device."""

from __future__ import annotations

from typing import Any

import pytest

import lingo
from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.inspection.plan.estimate import Estimator
from lingo.inspection.plan.hardware import HARDWARE
from lingo.inspection.plan.search import rank_own
from lingo.inspection.plan.stages import StagePlan, find_chain, plan_stages
from lingo.inspection.plan.workload import workload
from lingo.mesh.pipeline import bubble_fraction

DIGITS = "image.amoebanet.digits(num_filters=8)"
H100 = HARDWARE["h100"]
STATE = ("weights", "slots", "gradients", "statistics")


def settings(stages: int, micro_batches: int) -> tuple[str, str]:
    return (
        f"Chain=PipelinedChain(num_stages={stages}, num_micro_batches={micro_batches})",
        f"runtime=Local(stage_devices={stages})",
    )


def planned(name: str, stages: int, micro_batches: int, *more: str) -> StagePlan:
    built = lingo.get(name, *settings(stages, micro_batches), *more).build()
    chain = find_chain(built)
    assert chain is not None
    return plan_stages(built, chain, H100)


def one_device(name: str, *more: str) -> Any:
    def build(settings: Any) -> Experiment:
        return lingo.get(name, *more, *settings).build()

    built = build(())
    return rank_own(built, Estimator(workload(built), H100, build), H100).best[0]


@pytest.mark.parametrize("stages", [2, 3])
def test_stages_share_the_state_and_flops_of_one_device(stages: int) -> None:
    plan, whole = planned(DIGITS, stages, 4), one_device(DIGITS)
    for kind in STATE:
        assert sum(stage.bytes[kind] for stage in plan.stages) == whole.bytes[kind]
    flops = sum(stage.size.flops for stage in plan.stages) * plan.schedule.num_micro_batches
    assert flops == plan.flops
    assert 3 * flops == pytest.approx(whole.flops)


def test_a_stage_keeps_the_inputs_of_all_micro_batches() -> None:
    first, second = planned(DIGITS, 2, 4).stages
    assert first.bytes["boundaries"] == 64 * 8 * 8 * 4  # the images
    assert second.bytes["boundaries"] == 4 * second.size.input_bytes
    assert first.size.output_bytes == second.size.input_bytes


def test_smaller_micro_batches_need_fewer_bytes_inside_a_stage() -> None:
    few, many = (planned(DIGITS, 2, number).stages for number in (2, 16))
    for one, other in zip(few, many, strict=True):
        assert other.bytes["activations"] < 0.2 * one.bytes["activations"]
        assert other.state_bytes == one.state_bytes


def test_the_bubble_is_that_of_the_schedule_and_more_if_stages_differ() -> None:
    for micro_batches in (4, 16):
        plan = planned(DIGITS, 4, micro_batches)
        forward = max(stage.forward_seconds for stage in plan.stages)
        backward = max(stage.backward_seconds for stage in plan.stages)
        # no schedule is shorter than the slowest stage, or longer than if all were as slow
        bound = (micro_batches + 3) * (forward + backward)
        assert micro_batches * (forward + backward) < plan.schedule.makespan <= bound
        assert plan.schedule.bubble_fraction > bubble_fraction(4, micro_batches)
        assert plan.step_seconds > plan.schedule.makespan


def test_a_chain_without_a_device_for_each_stage_is_refused() -> None:
    chain, _ = settings(2, 4)
    with pytest.raises(ParamError, match=r"has stage_devices=1: .*stage_devices=2\)"):
        find_chain(lingo.get(DIGITS, chain).build())
    assert find_chain(lingo.get(DIGITS).build()) is None
