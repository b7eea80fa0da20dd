"""The clock of a pipeline: steps begin as early as they can, in the orders given."""

from __future__ import annotations

import random

import pytest

from lingo.config.params import ParamError
from lingo.mesh.pipeline.clock import Step, place, timed


def first_come(stages: int, batches: int, rng: random.Random) -> list[list[Step]]:
    """Returns orders that can be kept: those of a random interleaving of all micro-batches."""
    turns = [m for m in range(batches) for _ in range(2 * stages)]
    rng.shuffle(turns)
    passed, orders = [0] * batches, [list[Step]() for _ in range(stages)]
    for m in turns:
        backward = passed[m] >= stages
        stage = 2 * stages - 1 - passed[m] if backward else passed[m]
        orders[stage].append(Step(stage, m, 0, backward))
        passed[m] += 1
    return orders


def test_the_steps_of_a_micro_batch_are_numbered_forward_and_back() -> None:
    there = [Step(s, 0, r, False) for r in range(3) for s in range(2)]
    back = [step._replace(backward=True) for step in reversed(there)]
    assert [place(step, 2, 3) for step in there + back] == list(range(12))


def test_a_step_of_any_order_begins_when_its_stage_is_free_and_its_input_there() -> None:
    rng = random.Random(0)
    for _ in range(100):
        stages, batches = rng.randint(1, 5), rng.randint(1, 5)
        orders = first_come(stages, batches, rng)
        lasts = {step: rng.randint(1, 9) for order in orders for step in order}
        placed = timed(orders, 1, lasts.__getitem__, 0)
        assert [step for step, _, _ in placed] == [step for order in orders for step in order]
        ends = {step: end for step, _, end in placed}
        for order in orders:
            for before, step in zip([None, *order], order, strict=False):
                s, m, _, backward = step
                if backward:
                    needed = Step(s, m, 0, False) if s == stages - 1 else Step(s + 1, m, 0, True)
                else:
                    needed = Step(s - 1, m, 0, False)
                start = max(ends.get(needed, 0), ends[before] if before else 0)
                assert ends[step] == start + lasts[step]


def test_an_order_that_cannot_be_kept_is_an_error_and_no_endless_wait() -> None:
    forward, backward = Step(0, 0, 0, False), Step(0, 0, 0, True)
    with pytest.raises(ParamError, match="stage 0 waits for ever with its backward of micro-batch"):
        timed([[backward, forward]], 1, lambda step: 1, 0)
    with pytest.raises(ParamError, match="stage 0 waits for ever"):
        timed([[backward]], 1, lambda step: 1, 0)
