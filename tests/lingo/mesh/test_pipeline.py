"""Pipelines: the best split into stages, published bubbles and memory, every step in its place."""

import itertools
import math
import random
import re
import time
from fractions import Fraction

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.mesh import pipeline
from lingo.mesh.pipeline import (
    Step,
    circular,
    draw_text,
    fill_drain,
    one_forward_one_backward,
    partition,
)

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
        sizes = (schedule.num_stages, schedule.num_micro_batches, schedule.num_repeats)
        assert pipeline.bubble_fraction(*sizes) == fill / ticks


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


# ---- the picture

SCHEDULES = [fill_drain(1, 1), one_forward_one_backward(3, 12, 3), circular(2, 3, 2)]


def rows(schedule):
    """Returns the rows of the stages, without their labels."""
    lines = draw_text(schedule).splitlines()
    return [re.sub(r"^stage +\d+  ", "", x) for x in lines if re.match(r"stage +\d+  ", x)]


def test_gpipes_figure_in_characters():
    assert draw_text(fill_drain(2, 3)).splitlines() == [
        "stage 0  0 1 2 . . . 2<<<1<<<0<<<",
        "stage 1  . 0 1 2 2<<<1<<<0<<<. .",
        "0 forward, 0< backward of micro-batch 0, . idle; 2 characters are 1 unit of time",
        "makespan 12, bubble fraction 0.2500, idle 6 of 24",
    ]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_a_text_can_be_read_back(schedule, monkeypatch):
    monkeypatch.setattr(pipeline, "_LINE", 10_000)
    cell = len(str(schedule.num_micro_batches - 1)) + 1
    for works, row in zip(schedule.stages, rows(schedule), strict=True):
        cells = [
            (m.start() // cell, int(m[1]), m[2].startswith("<"))
            for m in re.finditer(r"(\d+)(<*)", row)
        ]
        assert cells == [(w.start, w.step.micro_batch, w.step.backward) for w in works]
        assert row.count(".") == schedule.makespan - sum(w.end - w.start for w in works)
        assert row.count("<") == sum(
            (w.end - w.start) * cell - len(str(w.step.micro_batch))
            for w in works
            if w.step.backward
        )


def test_of_a_wide_schedule_the_beginning_and_the_end_are_shown(monkeypatch):
    schedule = one_forward_one_backward(12, 100)
    cut = rows(schedule)
    assert "// leaves out 305" in draw_text(schedule)
    columns = len(cut[0].replace(" // ", "")) // 3
    assert columns + 305 == schedule.makespan
    monkeypatch.setattr(pipeline, "_LINE", 10_000)
    for whole, row in zip(rows(schedule), cut, strict=True):
        begin, end = row.split(" // ")
        assert whole.startswith(begin)
        assert whole.endswith(end)
        assert min(len(begin), len(end)) > 30


@pytest.mark.parametrize(
    "schedule",
    [*SCHEDULES, fill_drain(30, 200), fill_drain(3, 4, 2001)],
    ids=lambda s: f"{s.num_stages}_{s.num_micro_batches}",
)
def test_no_line_is_wider_than_100_and_totals_stay_exact(schedule):
    lines = draw_text(schedule).splitlines()
    assert max(map(len, lines)) <= 100
    total = schedule.num_stages * schedule.makespan
    assert lines[-1].startswith(f"makespan {schedule.makespan}, ")
    assert lines[-1].endswith(f"idle {schedule.idle} of {total}")


# ---- the split into stages


def sizes(parts):
    return [len(part) for part in parts]


def measures(costs, parts):
    """Returns the largest sum of a part and the sum of squares of the sums, exact."""
    sums = [sum((Fraction(costs[i]) for i in part), Fraction(0)) for part in parts]
    return max(sums), sum((s * s for s in sums), Fraction(0))


def best(costs, num_parts):
    """Returns the least measures of all splits."""
    found = []
    for cuts in itertools.combinations(range(1, len(costs)), num_parts - 1):
        ends = itertools.pairwise([0, *cuts, len(costs)])
        found.append(measures(costs, [range(start, end) for start, end in ends]))
    return min(found)


def assert_is_split(parts, num_layers, num_parts):
    assert len(parts) == num_parts
    assert all(len(part) > 0 for part in parts)
    assert [i for part in parts for i in part] == list(range(num_layers))


@pytest.mark.parametrize("seed", range(4))
def test_a_split_is_the_best_of_all_by_both_measures(seed):
    rng = random.Random(seed)
    for _ in range(50):
        num_layers = rng.randint(1, 11)
        num_parts = rng.randint(1, num_layers)
        times = [rng.uniform(1e-6, 1e-3) for _ in range(11)]
        kind = rng.choice([[0, 1, 2], [1, 2, 3, 5], [1, 1, 10], [0.1, 0.3], [1e9, 7e11], times])
        costs = [rng.choice(kind) for _ in range(num_layers)]
        parts = partition(costs, num_parts)
        assert_is_split(parts, num_layers, num_parts)
        largest, squares = best(costs, num_parts)
        assert measures(costs, parts)[0] == largest
        assert math.isclose(measures(costs, parts)[1], squares, rel_tol=1e-12)


def test_equal_layers_are_split_equally():
    for cost in (1, 0.1, 5e9, 0):
        assert sizes(partition([cost] * 8, 4)) == [2, 2, 2, 2]
        assert sizes(partition([cost] * 7, 3)) == [2, 2, 3]
        assert set(sizes(partition([cost] * 1663, 128))) == {12, 13}


@pytest.mark.parametrize(
    "cost", [lambda i: 1, math.sin, lambda i: 1.01**i, lambda i: 500 ** (i == 9)]
)
def test_gpipes_deepest_transformer_is_split_in_under_half_a_second(cost):
    costs = [abs(cost(i)) for i in range(1663)]
    start = time.process_time()
    parts = partition(costs, 128)
    assert time.process_time() - start < 0.5
    assert_is_split(parts, 1663, 128)


@pytest.mark.parametrize("cost", [-2, math.nan, math.inf])
def test_costs_that_are_no_amounts_are_refused(cost):
    with pytest.raises(ParamError, match=f"layer 1 costs {cost}"):
        partition([1, cost], 1)
