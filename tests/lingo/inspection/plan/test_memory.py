"""The memory of a step beside its state."""

from __future__ import annotations

import pytest

from lingo.config import registry
from lingo.contract import build_experiment
from lingo.inspection.plan.memory import Loop, ResidualBytes, residual_bytes, working_bytes
from lingo.inspection.plan.workload import workload
from lingo.mesh.rules import RECIPES
from lingo.mesh.topology import topology

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


# ---- the compiler of TPUs ------------------------------------------------------------------------


def residuals_of_a_layer(axes: dict[str, int], *, is_tpu: bool) -> float:
    """Returns the bytes of a layer in a stack, for 16 examples of 256 bytes in bfloat16."""
    overrides = ["train_input.batch_size=16", "task.dtype=bfloat16"]
    experiment = "lm.source.tiny(model_dim=64, num_layers=1)"
    found = workload(build_experiment(registry.get(experiment, overrides)))
    mesh, rules = topology(axes), RECIPES["1d"]
    one = residual_bytes(found, mesh, rules, parts=1, micro_batches=1, is_tpu=is_tpu)
    return one.of_stack


POSITIONS, WIDTH, HIDDEN, HEADS, HEAD_WIDTH = 16 * 256, 64, 176, 4, 16


def test_a_tpu_keeps_results_of_products_and_makes_what_reads_them_again() -> None:
    norms = 2 * WIDTH * 2  # inputs
    heads = 2 * HEADS * HEAD_WIDTH * (4 + 2)  # queries and keys, rotated in float32; values, means
    logits = HEADS * 256 * 4
    kept = POSITIONS * (norms + heads + logits + 2 * HIDDEN * 2)
    assert residuals_of_a_layer({"data": 1}, is_tpu=True) == kept
    assert residuals_of_a_layer({"data": 8}, is_tpu=True) == kept / 8
    again = 4 * WIDTH * 2 + HEADS * HEAD_WIDTH * 2 + 3 * HIDDEN * 2  # of norms, means, activations
    narrow = heads / 3 + logits / 2  # what a processor's compiler has in bfloat16
    processor = residuals_of_a_layer({"data": 1}, is_tpu=False)
    assert processor == kept + POSITIONS * (again - narrow)


def test_a_device_with_one_head_keeps_no_float32() -> None:
    heads, logits = 4 * HEAD_WIDTH * 2, 256 * 2
    kept = POSITIONS * (2 * WIDTH * 2 + heads + logits + 2 * HIDDEN // 4 * 2)
    assert residuals_of_a_layer({"model": 4}, is_tpu=True) == kept
