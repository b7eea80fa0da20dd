"""Schedules of pipelines: published bubbles and memory, and every step in its place."""

import itertools
import random

import numpy as np
import pytest

from lingo.mesh.pipeline.schedule import Step, circular, fill_drain, one_forward_one_backward

SIZES = list(itertools.product(range(1, 7), range(1, 7)))
TIMES = [(1, 1), (1, 2), (3, 1), (2, 5)]
FLAT = [fill_drain, one_forward_one_backward]
REPEATED = [(k, m, r) for k, m in SIZES for r in (1, 2, 3) if m >= k]
ALL = [make(k, m) for make in FLAT for k, m in SIZES]
ALL += [circular(*sizes) for sizes in REPEATED]


def all_work(schedule):
    return [work for stage in schedule.stages for work in stage]


def assert_valid(schedule, times):
    """Checks that steps begin when stage and input are free; times: [2, R, K], by direction."""
    stages, repeats = schedule.num_stages, schedule.num_repeats
    ends = {work.step: work.end for work in all_work(schedule)}
    num_steps = 2 * stages * schedule.num_micro_batches * repeats
    assert len(all_work(schedule)) == len(ends) == num_steps
    for stage, works in enumerate(schedule.stages):
        free = 0.0
        for work in works:
            s, m, r, backward = work.step
            # what comes before it in the network, were it not cut into stages and repeats
            index = r * stages + s + (1 if backward else -1)
            if 0 <= index < repeats * stages:
                ready = ends[Step(index % stages, m, index // stages, backward)]
            else:
                ready = ends[work.step._replace(backward=False)] if backward else 0
            assert s == stage
            assert work.start == max(free, ready)
            assert work.end == work.start + times[int(backward), r, s]
            free = work.end


def live_by_counting(schedule):
    """Counts in every unit of time what has gone forward on a stage and not all the way back."""
    spans = {}
    for w in all_work(schedule):
        spans.setdefault(w.step[:3], []).extend([w.start, w.end])
    return tuple(
        max(
            sum(stage == s and min(span) <= t < max(span) for (stage, _, _), span in spans.items())
            for t in range(int(schedule.makespan))
        )
        for s in range(schedule.num_stages)
    )


@pytest.mark.parametrize(("forward", "backward"), TIMES)
def test_schedules_are_valid_and_fill_once_for_all_repeats(forward, backward):
    for schedule in ALL:
        ones = np.ones([schedule.num_repeats, schedule.num_stages])
        equal = schedule.with_durations(forward * ones, backward * ones)
        assert_valid(equal, np.array([forward * ones, backward * ones]))
        fill = schedule.num_stages - 1
        ticks = schedule.num_repeats * schedule.num_micro_batches + fill
        assert equal.makespan == ticks * (forward + backward)
        assert equal.bubble_fraction == fill / ticks


def test_schedules_of_unequal_stages_are_valid():
    rng = np.random.default_rng(1)
    for schedule in ALL:
        times = rng.integers(0, 9, [2, schedule.num_repeats, schedule.num_stages])
        assert_valid(schedule.with_durations(times[0], times[1]), times)


def test_live_activations_are_what_counting_every_unit_of_time_gives():
    for schedule in ALL:
        assert schedule.live_activations() == live_by_counting(schedule)


def test_memory_of_one_forward_one_backward_is_that_of_stages_still_to_come():
    for stages, batches in SIZES:
        live = one_forward_one_backward(stages, batches).live_activations()
        assert live == tuple(min(batches, stages - s) for s in range(stages))


def test_one_forward_one_backward_alternates_between_warm_up_and_drain():
    order = "".join("FB"[w.step.backward] for w in one_forward_one_backward(4, 8).stages[1])
    assert order == "FF" + "FB" * 6 + "BB"


def test_circular_in_one_repeat_is_fill_drain():
    assert circular(3, 5, 1).stages == fill_drain(3, 5).stages


# ---- unequal stages


def test_fill_drain_takes_the_longest_way_through_unequal_stages():
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


def test_stages_keep_the_order_of_the_schedule():
    schedule = one_forward_one_backward(4, 6)
    unequal = schedule.with_durations([[3, 1, 0.5, 2]], [[1, 5, 0.1, 2]])
    for before, after in zip(schedule.stages, unequal.stages, strict=True):
        assert [work.step for work in before] == [work.step for work in after]
        assert all(a.end <= b.start for a, b in itertools.pairwise(after))


def test_busy_time_is_the_work_of_each_stage():
    schedule = circular(2, 3, 2).with_durations([[1, 2], [3, 4]], [[0.5, 0], [0, 0.25]])
    assert schedule.busy == (3 * 4.5, 3 * 6.25)
    expected = 1 - 3 * 10.75 / (2 * schedule.makespan)
    assert schedule.bubble_fraction == pytest.approx(expected, rel=1e-12)


def test_nothing_takes_no_time_and_has_no_bubble():
    schedule = fill_drain(2, 2).with_durations([[0, 0]], [[0, 0]])
    assert (schedule.makespan, schedule.bubble_fraction) == (0.0, 0.0)
