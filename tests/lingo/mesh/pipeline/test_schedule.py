"""Schedules of pipelines: published bubbles and memory, and every step in its place."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import pytest

from lingo.config.params import ParamError
from lingo.mesh.pipeline.schedule import (
    Schedule,
    Work,
    circular,
    fill_drain,
    one_forward_one_backward,
)

SIZES = list(itertools.product(range(1, 7), range(1, 7)))
TIMES = [(1, 1), (1, 2), (3, 1), (2, 5)]
FLAT = [fill_drain, one_forward_one_backward]


def starts(schedule: Schedule) -> dict[tuple[int, int, int, bool], int]:
    return {(w.stage, w.micro_batch, w.round, w.backward): w.start for w in schedule.work}


def assert_valid(schedule: Schedule, forward: int, backward: int) -> None:
    """Compares with the rules of a pipeline, step by step and unit of time by unit."""
    stages, rounds = schedule.num_stages, schedule.num_rounds
    began, at = starts(schedule), set[tuple[int, int]]()
    for s, m, r in itertools.product(
        range(stages), range(schedule.num_micro_batches), range(rounds)
    ):
        # What comes before and after it in the network, were it not cut into stages and rounds.
        block = r * stages + s
        if block > 0:
            before = ((block - 1) % stages, m, (block - 1) // stages)
            assert began[s, m, r, False] >= began[*before, False] + forward
        if block < rounds * stages - 1:
            after = ((block + 1) % stages, m, (block + 1) // stages)
            assert began[s, m, r, True] >= began[*after, True] + backward
        assert began[s, m, r, True] >= began[s, m, r, False] + forward
    for work in schedule.work:
        assert work.end - work.start == (backward if work.backward else forward)
        units = {(work.stage, t) for t in range(work.start, work.end)}
        assert not units & at
        at |= units
    assert len(schedule.work) == len(began) == 2 * stages * schedule.num_micro_batches * rounds
    assert min(t for _, t in at) == 0


def live_by_counting(schedule: Schedule) -> tuple[int, ...]:
    """Counts in every unit of time what has gone forward on a stage and not all the way back."""
    spans: dict[tuple[int, int, int], list[int]] = {}
    for w in schedule.work:
        spans.setdefault((w.stage, w.micro_batch, w.round), []).extend([w.start, w.end])
    return tuple(
        max(
            sum(stage == s and min(span) <= t < max(span) for (stage, _, _), span in spans.items())
            for t in range(schedule.makespan)
        )
        for s in range(schedule.num_stages)
    )


@pytest.mark.parametrize("make", FLAT)
@pytest.mark.parametrize(("forward", "backward"), TIMES)
def test_flat_schedules_are_valid_and_take_m_plus_k_minus_1_steps(
    make: Callable[..., Schedule], forward: int, backward: int
) -> None:
    for stages, batches in SIZES:
        schedule = make(stages, batches, forward, backward)
        assert_valid(schedule, forward, backward)
        schedule.check()
        assert schedule.makespan == (batches + stages - 1) * (forward + backward)
        assert schedule.bubble_fraction == (stages - 1) / (batches + stages - 1)


@pytest.mark.parametrize(("forward", "backward"), TIMES)
def test_circular_schedules_are_valid_and_fill_once_for_all_rounds(
    forward: int, backward: int
) -> None:
    for (stages, batches), rounds in itertools.product(SIZES, (1, 2, 3)):
        if batches < stages:
            continue
        schedule = circular(stages, batches, rounds, forward, backward)
        assert_valid(schedule, forward, backward)
        schedule.check()
        ticks = rounds * batches + stages - 1
        assert schedule.makespan == ticks * (forward + backward)
        assert schedule.bubble_fraction == (stages - 1) / ticks
        forwards = [w for w in schedule.work if not w.backward]
        assert max(w.end for w in forwards) == ticks * forward


def test_the_goldens_of_four_stages_and_eight_micro_batches() -> None:
    gpipe, flush, rounds = fill_drain(4, 8), one_forward_one_backward(4, 8), circular(4, 8, 2)
    assert (gpipe.makespan, gpipe.bubble_fraction) == (11 * 3, 3 / 11)
    assert (flush.makespan, flush.bubble_fraction) == (11 * 3, 3 / 11)
    assert (rounds.makespan, rounds.bubble_fraction) == (19 * 3, 3 / 19)
    assert gpipe.live_activations() == (8, 8, 8, 8)
    assert flush.live_activations() == (4, 3, 2, 1)
    assert rounds.live_activations() == (16, 16, 16, 16)


def test_a_step_of_fill_drain_begins_at_its_tick() -> None:
    stages, batches, forward, backward = 3, 5, 2, 3
    began = starts(fill_drain(stages, batches, forward, backward))
    for s, m in itertools.product(range(stages), range(batches)):
        assert began[s, m, 0, False] == (s + m) * forward
        back = (batches + stages - 1) * forward + (stages - 1 - s + batches - 1 - m) * backward
        assert began[s, m, 0, True] == back


def test_a_step_of_circular_begins_at_its_tick() -> None:
    stages, batches, rounds = 3, 4, 3
    began = starts(circular(stages, batches, rounds))
    for s, m, r in itertools.product(range(stages), range(batches), range(rounds)):
        assert began[s, m, r, False] == r * batches + m + s


def test_live_activations_are_what_counting_every_unit_of_time_gives() -> None:
    schedules = [make(k, m) for make in FLAT for k, m in SIZES]
    schedules += [circular(k, m, 2) for k, m in SIZES if m >= k]
    for schedule in schedules:
        assert schedule.live_activations() == live_by_counting(schedule)


def test_memory_of_one_forward_one_backward_is_that_of_stages_still_to_come() -> None:
    for stages, batches in SIZES:
        live = one_forward_one_backward(stages, batches).live_activations()
        assert live == tuple(min(batches, stages - s) for s in range(stages))


def test_one_forward_one_backward_takes_turns_between_warm_up_and_drain() -> None:
    order = "".join("FB"[w.backward] for w in one_forward_one_backward(4, 8).of_stage(1))
    assert order == "FF" + "FB" * 6 + "BB"


def test_circular_in_one_round_is_fill_drain() -> None:
    assert circular(3, 5, 1).work == fill_drain(3, 5).work


def test_a_circle_takes_less_time_than_the_same_layers_in_one_round() -> None:
    # A step of the circle is a third of the layers of a stage.
    assert circular(4, 8, 3, 1, 2).makespan < fill_drain(4, 8, 3, 6).makespan
    ratio = Fraction(circular(4, 8, 3, 1, 2).makespan, fill_drain(4, 8, 3, 6).makespan)
    assert ratio == Fraction(3 * 8 + 3, 3 * (8 + 3))


def test_a_circle_of_fewer_micro_batches_than_stages_is_refused() -> None:
    with pytest.raises(ParamError, match=r"4 stages needs as many micro-batches, not 3: .* wait"):
        circular(4, 3, 2)


@pytest.mark.parametrize(
    ("make", "sizes", "message"),
    [
        (fill_drain, (0, 8), "num_stages=0"),
        (one_forward_one_backward, (4, 0), "num_micro_batches=0"),
        (circular, (4, 8, 0), "num_rounds=0"),
        (fill_drain, (4, 8, 0, 2), "forward=0"),
        (circular, (4, 8, 2, 1, -1), "backward=-1"),
    ],
)
def test_sizes_below_1_are_refused(
    make: Callable[..., Schedule], sizes: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ParamError, match=f"{message}; it needs 1 at least"):
        make(*sizes)


ONE = Schedule("mine", 2, 1, 1, fill_drain(2, 1, 1, 1).work)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (ONE.work[1:], "needs each of 4 steps once; it has 3 steps, and 1 are missing"),
        ((*ONE.work, ONE.work[0]), "it has 5 steps, and 0 are missing"),
        ((*ONE.work[1:], Work(2, 0, 0, False, 0, 1)), "it has 4 steps, and 1 are missing"),
        ((Work(0, 0, 0, False, 0, 0), *ONE.work[1:]), "takes from 0 to 0; it needs a unit"),
        ((Work(0, 0, 0, False, 0, 4), *ONE.work[1:]), "overlaps backward of micro-batch 0"),
        ((Work(0, 0, 0, False, 0, 2), *ONE.work[1:]), "on stage 1 the forward .* begins at 1,"),
    ],
)
def test_what_is_wrong_with_work_written_by_hand_is_said(
    work: tuple[Work, ...], message: str
) -> None:
    ONE.check()
    with pytest.raises(ParamError, match=message):
        ONE._replace(work=work).check()


def test_work_in_any_order_is_the_same_schedule() -> None:
    schedule = one_forward_one_backward(3, 4)
    mixed = schedule._replace(work=schedule.work[::-1])
    mixed.check()
    assert mixed.by_stage() == schedule.by_stage()
    assert mixed.live_activations() == schedule.live_activations()
    assert mixed.bubble_fraction == schedule.bubble_fraction
