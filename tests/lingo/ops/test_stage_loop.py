"""The loop over micro-batches computes what stages compute one after the other on the whole batch.

Axes: M micro-batches, B examples, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.stage_loop import Stage, run_stages

M, B, D = 3, 2, 4
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=[M, B, D]).astype("f")
SCALES = DRAW.normal(size=[M, B, 1]).astype("f")
NUMBERS = np.arange(M * B, dtype="i").reshape(M, B)
WEIGHTS = [{"w": DRAW.normal(size=[D, D]).astype("f"), "unused": np.ones(2, "f")} for _ in "ab"]


def compute(weights: Any, x: Any, inputs: Any) -> Any:
    """Takes and returns a float tensor and an integer one; its sum depends on the weights, too."""
    y, numbers = x
    y = tf.tanh(y @ weights["w"]) * inputs["scales"]
    numbers = numbers + 1
    return (y, numbers), {"loss": tf.reduce_sum(y * tf.cast(numbers[..., None], tf.float32))}


def plain(weights: Any, x: Any) -> Any:
    """Computes all micro-batches in one call of each stage."""
    losses, inputs = [], {"scales": tf.constant(SCALES)}
    for of_stage in weights:
        x, sums = compute(of_stage, x, inputs)
        losses.append(sums)
    return x, losses


def looped(weights: Any, x: Any, device: str | None) -> Any:
    stages = [Stage(compute, of_stage, device) for of_stage in weights]
    return run_stages(stages, x, {"scales": tf.constant(SCALES)})


def results(function: Any, *, eager: bool = False) -> Any:
    def step() -> Any:
        weights, x = tf.nest.map_structure(tf.constant, (WEIGHTS, X))
        with tf.GradientTape() as tape:
            tape.watch((weights, x))
            (y, numbers), sums = function(weights, (x, tf.constant(NUMBERS)))
            loss = tf.reduce_sum(tf.sin(y)) + sums[0]["loss"] - 2 * sums[1]["loss"]
        gradients = tape.gradient(loss, [of_stage["w"] for of_stage in weights] + [x])
        return (y, numbers), sums, gradients

    return step() if eager else tf.function(step, autograph=False)()


@pytest.mark.parametrize("device", [None, "CPU:0"])
@pytest.mark.parametrize("eager", [True, False])
def test_results_and_gradients_are_those_of_the_whole_batch(device: str | None, eager: bool):
    found = results(lambda *args: looped(*args, device), eager=eager)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        found,
        results(plain, eager=eager),
    )


def test_weights_that_no_stage_uses_have_no_gradient() -> None:
    @tf.function(autograph=False)
    def step() -> Any:
        weights, x = tf.nest.map_structure(tf.constant, (WEIGHTS, X))
        with tf.GradientTape() as tape:
            tape.watch(weights)
            (y, _), _ = looped(weights, (x, tf.constant(NUMBERS)), None)
        gradients = tape.gradient(y, weights)
        assert [g["unused"] for g in gradients] == [None, None]
        return [g["w"] for g in gradients]

    assert all(np.abs(g).max() > 0 for g in step())


def test_stages_without_weights_pass_gradients_on() -> None:
    with tf.GradientTape() as tape:
        tape.watch(x := tf.constant(X))
        y, _ = run_stages([Stage(lambda _, x, __: (2 * x, {}), ())] * 2, x, ())
    np.testing.assert_array_equal(tape.gradient(y, x), np.full_like(X, 4))


def test_devices_are_for_all_stages_or_for_none() -> None:
    stages = [Stage(lambda w, x, _: (w * x, {}), tf.constant(2.0), d) for d in (None, "CPU:0")]
    with pytest.raises(ValueError, match="some stages have a device, and others none"):
        run_stages(stages, tf.zeros([2, 1]), ())
