"""Schedules of pipelines: published bubbles and memory, and every step in its place."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest

from lingo.mesh.pipeline.schedule import (
    Schedule,
    Step,
    Work,
    assign_times,
    circular,
    fill_drain,
    one_forward_one_backward,
)

SIZES = list(itertools.product(range(1, 7), range(1, 7)))
TIMES = [(1, 1), (1, 2), (3, 1), (2, 5)]
FLAT = [fill_drain, one_forward_one_backward]
ALL = [make(k, m) for make in FLAT for k, m in SIZES]
ALL += [circular(k, m, 2) for k, m in SIZES if m >= k]


def all_work(schedule: Schedule) -> list[Work]:
    return [work for stage in schedule.stages for work in stage]


def starts(schedule: Schedule) -> dict[Step, float]:
    return {work.step: work.start for work in all_work(schedule)}


def with_equal_stages(schedule: Schedule, forward: float, backward: float) -> Schedule:
    ones = np.ones([schedule.num_repeats, schedule.num_stages])
    return schedule.with_durations(forward * ones, backward * ones)


def assert_valid(schedule: Schedule, forward: int, backward: int) -> None:
    """Compares with the rules of a pipeline, step by step and unit of time by unit."""
    stages, repeats = schedule.num_stages, schedule.num_repeats
    began, units = starts(schedule), set[tuple[int, int]]()
    for s, m, r in itertools.product(
        range(stages), range(schedule.num_micro_batches), range(repeats)
    ):
        # What comes before and after it in the network, were it not cut into stages and repeats.
        index = r * stages + s
        if index > 0:
            before = Step((index - 1) % stages, m, (index - 1) // stages, False)
            assert began[Step(s, m, r, False)] >= began[before] + forward
        if index < repeats * stages - 1:
            after = Step((index + 1) % stages, m, (index + 1) // stages, True)
            assert began[Step(s, m, r, True)] >= began[after] + backward
        assert began[Step(s, m, r, True)] >= began[Step(s, m, r, False)] + forward
    for stage, works in enumerate(schedule.stages):
        for work in works:
            assert work.step.stage == stage
            assert work.end - work.start == (backward if work.step.backward else forward)
            mine = {(stage, t) for t in range(int(work.start), int(work.end))}
            assert not mine & units
            units |= mine
    num_steps = 2 * stages * schedule.num_micro_batches * repeats
    assert len(all_work(schedule)) == len(began) == num_steps
    assert min(t for _, t in units) == 0


def live_by_counting(schedule: Schedule) -> tuple[int, ...]:
    """Counts in every unit of time what has gone forward on a stage and not all the way back."""
    spans: dict[tuple[int, int, int], list[float]] = {}
    for w in all_work(schedule):
        spans.setdefault(w.step[:3], []).extend([w.start, w.end])
    return tuple(
        max(
            sum(stage == s and min(span) <= t < max(span) for (stage, _, _), span in spans.items())
            for t in range(int(schedule.makespan))
        )
        for s in range(schedule.num_stages)
    )


@pytest.mark.parametrize("make", FLAT)
@pytest.mark.parametrize(("forward", "backward"), TIMES)
def test_flat_schedules_are_valid_and_take_m_plus_k_minus_1_steps(
    make: Callable[..., Schedule], forward: int, backward: int
) -> None:
    for stages, batches in SIZES:
        schedule = with_equal_stages(make(stages, batches), forward, backward)
        assert_valid(schedule, forward, backward)
        assert schedule.makespan == (batches + stages - 1) * (forward + backward)
        assert schedule.bubble_fraction == (stages - 1) / (batches + stages - 1)


@pytest.mark.parametrize(("forward", "backward"), TIMES)
def test_circular_schedules_are_valid_and_fill_once_for_all_repeats(
    forward: int, backward: int
) -> None:
    for (stages, batches), repeats in itertools.product(SIZES, (1, 2, 3)):
        if batches < stages:
            continue
        schedule = with_equal_stages(circular(stages, batches, repeats), forward, backward)
        assert_valid(schedule, forward, backward)
        ticks = repeats * batches + stages - 1
        assert schedule.makespan == ticks * (forward + backward)
        assert schedule.bubble_fraction == (stages - 1) / ticks
        forwards = [w for w in all_work(schedule) if not w.step.backward]
        assert max(w.end for w in forwards) == ticks * forward


def test_live_activations_are_what_counting_every_unit_of_time_gives() -> None:
    for schedule in ALL:
        assert schedule.live_activations() == live_by_counting(schedule)


def test_memory_of_one_forward_one_backward_is_that_of_stages_still_to_come() -> None:
    for stages, batches in SIZES:
        live = one_forward_one_backward(stages, batches).live_activations()
        assert live == tuple(min(batches, stages - s) for s in range(stages))


def test_one_forward_one_backward_alternates_between_warm_up_and_drain() -> None:
    order = "".join("FB"[w.step.backward] for w in one_forward_one_backward(4, 8).stages[1])
    assert order == "FF" + "FB" * 6 + "BB"


def test_circular_in_one_repeat_is_fill_drain() -> None:
    assert circular(3, 5, 1).stages == fill_drain(3, 5).stages


# ---- orders and times


def first_come(stages: int, batches: int, rng: random.Random) -> list[list[Step]]:
    """Returns orders that can be kept: those of a random interleaving of all micro-batches."""
    draws = [m for m in range(batches) for _ in range(2 * stages)]
    rng.shuffle(draws)
    passed, orders = [0] * batches, [list[Step]() for _ in range(stages)]
    for m in draws:
        backward = passed[m] >= stages
        stage = 2 * stages - 1 - passed[m] if backward else passed[m]
        orders[stage].append(Step(stage, m, 0, backward))
        passed[m] += 1
    return orders


def test_a_step_of_any_order_begins_when_its_stage_is_free_and_its_input_is_there() -> None:
    rng = random.Random(0)
    for _ in range(100):
        stages, batches = rng.randint(1, 5), rng.randint(1, 5)
        orders = first_come(stages, batches, rng)
        lasts = {step: rng.randint(1, 9) for order in orders for step in order}
        works = assign_times(orders, 1, lasts.__getitem__)
        assert [[work.step for work in stage] for stage in works] == orders
        ends = {work.step: work.end for stage in works for work in stage}
        for order in orders:
            for before, step in zip([None, *order], order, strict=False):
                s, m, _, backward = step
                if backward:
                    needed = Step(s, m, 0, False) if s == stages - 1 else Step(s + 1, m, 0, True)
                else:
                    needed = Step(s - 1, m, 0, False)
                start = max(ends.get(needed, 0), ends[before] if before else 0)
                assert ends[step] == start + lasts[step]


# ---- unequal stages


def test_fill_drain_takes_the_longest_way_through_unequal_stages() -> None:
    # Forwards and backwards do not mix, so each half is a flow shop of equal jobs: one goes through
    # all stages, the others follow each other on the slowest. (All times are sums of sixteenths.)
    rng = random.Random(0)
    for stages, batches in SIZES:
        forward = [rng.randint(1, 20) / 16 for _ in range(stages)]
        backward = [rng.randint(1, 20) / 16 for _ in range(stages)]
        schedule = fill_drain(stages, batches).with_durations([forward], [backward])
        halves = [sum(times) + (batches - 1) * max(times) for times in (forward, backward)]
        last = max(work.end for work in all_work(schedule) if not work.step.backward)
        assert last == halves[0]
        assert schedule.makespan == sum(halves)


def test_stages_keep_the_order_of_the_schedule() -> None:
    schedule = one_forward_one_backward(4, 6)
    unequal = schedule.with_durations([[3, 1, 0.5, 2]], [[1, 5, 0.1, 2]])
    for before, after in zip(schedule.stages, unequal.stages, strict=True):
        assert [work.step for work in before] == [work.step for work in after]
        assert all(a.end <= b.start for a, b in itertools.pairwise(after))


def test_busy_time_is_the_work_of_each_stage() -> None:
    schedule = circular(2, 3, 2).with_durations([[1, 2], [3, 4]], [[0.5, 0], [0, 0.25]])
    assert schedule.busy == (3 * 4.5, 3 * 6.25)
    expected = 1 - 3 * 10.75 / (2 * schedule.makespan)
    assert schedule.bubble_fraction == pytest.approx(expected, rel=1e-12)


def test_nothing_takes_no_time_and_has_no_bubble() -> None:
    schedule = fill_drain(2, 2).with_durations([[0, 0]], [[0, 0]])
    assert (schedule.makespan, schedule.bubble_fraction) == (0.0, 0.0)
