"""The memory of a step beside its state."""

from __future__ import annotations

import pytest

from lingo.inspection.plan.memory import Loop, ResidualBytes, working_bytes

FOUND = ResidualBytes(
    of_stack=80, of_others=20, largest=10, largest_of_stack=10, logits=5, sums=((50, 0.9), (100, 0))
)
NO_LOOP = Loop(0, 0, 0, 0, is_recomputed=False)


def total(
    loop: Loop = NO_LOOP,
    *,
    gradients: float = 4,
    new_state: float = 12,
    is_accumulated: bool = False,
) -> float:
    """Returns the bytes of a step beside its state, gradients included."""
    sizes = working_bytes(
        FOUND,
        loop,
        gradients=gradients,
        new_state=new_state,
        gathered=0,
        is_accumulated=is_accumulated,
    )
    assert sizes["reused"] <= 0
    return gradients + sum(sizes.values())


def test_a_small_state_comes_where_activations_were() -> None:
    assert total() == 100 + 10


def test_a_large_state_waits_beside_what_is_left_of_the_activations() -> None:
    assert total(gradients=100, new_state=300) == 50 + 0.9 * 300
    assert total(gradients=500, new_state=1000) == 1000


def test_accumulation_carries_gradients() -> None:
    assert total(is_accumulated=True) == total() + 4


def test_a_loop_keeps_the_weights_that_it_read() -> None:
    loop = Loop(4, 2, 1, 0.25, is_recomputed=False)
    assert total(loop) == 80 + 4 * 2 + max(20 + 10, 2 * 10 + 5 + 4)


def test_rematerialization_keeps_inputs_and_one_layer() -> None:
    loop = Loop(4, 2, 1, 0.25, is_recomputed=True)
    assert total(loop) == pytest.approx(4 * (1 + 2) + 80 / 4 + 2 * 10 + 5 + 4)


def test_a_turn_of_a_pipeline_keeps_its_input_and_result_and_no_weights() -> None:
    loop = Loop(11, 2, 1, 0.5, is_recomputed=True, num_steps=1)
    kept = 11 * 2
    buffers = 4 + 11  # gradients of weights, and of the inputs of turns
    backward = kept + 0.5 * 80 + 2 * 10 + buffers  # with one turn again
    assert total(loop) == max(kept + 20 + 10 + buffers, backward)


def test_a_turn_of_several_steps_keeps_the_input_of_each_and_a_copy_of_all_weights() -> None:
    loop = Loop(11, 2, 1, 0.25, is_recomputed=True, num_steps=2)
    kept = 11 * 3
    buffers = 4 + 11 + 2
    backward = kept + 0.25 * 80 + 2 * 10 + buffers + 2  # with the gradients of one turn
    assert total(loop) == max(kept + 20 + 10 + buffers, backward)


def test_with_remat_a_turn_of_several_steps_keeps_the_input_of_the_first() -> None:
    steps = Loop(11, 2, 1, 0.25, is_recomputed=True, num_steps=2)
    turns = steps._replace(keeps_turns=True)
    assert total(turns) == total(steps) - 11 + 2  # of one turn at a time those of all steps
