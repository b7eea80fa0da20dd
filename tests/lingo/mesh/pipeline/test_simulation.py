"""Schedules in seconds: the clock with real durations."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.mesh.pipeline.schedule import Schedule, circular, fill_drain, one_forward_one_backward
from lingo.mesh.pipeline.simulation import simulate

SIZES = list(itertools.product(range(1, 7), range(1, 7)))
ALL = [make(k, m, 1, 1) for make in (fill_drain, one_forward_one_backward) for k, m in SIZES]
ALL += [circular(k, m, 2, 1, 1) for k, m in SIZES if m >= k]


def test_unit_times_give_the_clock_of_the_schedule() -> None:
    for schedule in ALL:
        ones = [1.0] * schedule.num_stages
        timeline = simulate(schedule, ones, ones)
        assert [tuple(event) for event in timeline.events] == [tuple(w) for w in schedule.work]
        assert timeline.makespan_seconds == schedule.makespan
        assert timeline.bubble_fraction == schedule.bubble_fraction


def test_equal_stages_take_m_plus_k_minus_1_times_both_ways() -> None:
    for stages, batches in SIZES:
        timeline = simulate(fill_drain(stages, batches), [0.25] * stages, [0.625] * stages)
        assert timeline.makespan_seconds == (batches + stages - 1) * 0.875
        assert timeline.busy_seconds == (batches * 0.875,) * stages


def test_fill_drain_takes_the_longest_way_through_unequal_stages() -> None:
    # Forwards and backwards do not mix, so each half is a flow shop of equal jobs: one goes through
    # all stages, the others follow each other on the slowest. (All times are sums of sixteenths.)
    rng = random.Random(0)
    for stages, batches in SIZES:
        forward = [rng.randint(1, 20) / 16 for _ in range(stages)]
        backward = [rng.randint(1, 20) / 16 for _ in range(stages)]
        timeline = simulate(fill_drain(stages, batches), forward, backward)
        halves = [sum(times) + (batches - 1) * max(times) for times in (forward, backward)]
        last = max(e.end_seconds for e in timeline.events if not e.backward)
        assert last == halves[0]
        assert timeline.makespan_seconds == sum(halves)


def test_no_stage_begins_before_its_input_is_there() -> None:
    rng = np.random.default_rng(1)
    for schedule in ALL:
        times = rng.uniform(0.1, 2, [2, schedule.num_rounds, schedule.num_stages])
        timeline = simulate(schedule, times[0], times[1])
        found = {event[:4]: event for event in timeline.events}
        assert len(found) == len(schedule.work)
        for s, m, r, backward in found:
            event = found[s, m, r, backward]
            assert event.end_seconds == event.start_seconds + times[int(backward), r, s]
            block = r * schedule.num_stages + s + (1 if backward else -1)
            if 0 <= block < schedule.num_rounds * schedule.num_stages:
                needed = found[
                    block % schedule.num_stages, m, block // schedule.num_stages, backward
                ]
                assert event.start_seconds >= needed.end_seconds


def test_stages_keep_the_order_of_the_schedule() -> None:
    schedule = one_forward_one_backward(4, 6)
    timeline = simulate(schedule, [3, 1, 0.5, 2], [1, 5, 0.1, 2])
    for stage in range(4):
        events = [e for e in timeline.events if e.stage == stage]
        assert [e[:4] for e in events] == [w.step for w in schedule.of_stage(stage)]
        assert all(a.end_seconds <= b.start_seconds for a, b in itertools.pairwise(events))


def test_busy_seconds_are_the_work_of_each_stage() -> None:
    timeline = simulate(circular(2, 3, 2), [[1, 2], [3, 4]], [[0.5, 0], [0, 0.25]])
    assert timeline.busy_seconds == (3 * 4.5, 3 * 6.25)
    expected = 1 - 3 * 10.75 / (2 * timeline.makespan_seconds)
    assert timeline.bubble_fraction == pytest.approx(expected, rel=1e-12)


def test_one_slow_stage_sets_the_pace() -> None:
    even = simulate(fill_drain(4, 32), [1, 1, 1, 1], [2, 2, 2, 2])
    uneven = simulate(fill_drain(4, 32), [0.5, 2, 1, 0.5], [1, 4, 2, 1])
    assert sum(uneven.busy_seconds) == sum(even.busy_seconds)
    assert uneven.makespan_seconds > 1.8 * even.makespan_seconds


def test_nothing_takes_no_time_and_has_no_bubble() -> None:
    timeline = simulate(fill_drain(2, 2), [0, 0], [0, 0])
    assert (timeline.makespan_seconds, timeline.bubble_fraction) == (0.0, 0.0)


def test_times_of_another_shape_are_refused() -> None:
    with pytest.raises(ParamError, match=r"backward_seconds has the shape \[3\]; .* \[2\], or .*"):
        simulate(fill_drain(2, 2), [1, 1], [1, 1, 1])
    with pytest.raises(ParamError, match=r"forward_seconds has the shape \[1, 2\].* \[3, 2\]"):
        simulate(circular(2, 2, 3), [[1, 1]], [1, 1])


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_times_that_are_none_are_refused(wrong: float) -> None:
    with pytest.raises(ParamError, match="forward_seconds has a time that is negative or not fin"):
        simulate(fill_drain(2, 2), [1, wrong], [1, 1])


def test_an_order_written_by_hand_that_cannot_be_kept_is_refused() -> None:
    work = fill_drain(1, 1).work
    turned = Schedule("mine", 1, 1, 1, (work[0]._replace(start=9), work[1]))
    with pytest.raises(ParamError, match="stage 0 waits for ever"):
        simulate(turned, [1], [1])
