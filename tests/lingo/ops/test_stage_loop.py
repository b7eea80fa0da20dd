"""The loop over micro-batches computes what stages compute one after the other on the whole batch.

A shift register does so, too, and computes nothing twice.

Axes: M micro-batches, K stages, R repeats, N ticks, B examples of a micro-batch, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.stage_loop import Stage, run_stages, shift_register

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
    with pytest.raises(ValueError, match="some stages have a device and some have none"):
        run_stages(stages, tf.zeros([2, 1]), ())


WIDTH = 3
SIZES = [(1, 1, 1), (1, 4, 1), (3, 1, 1), (2, 3, 1), (4, 4, 1), (2, 2, 2), (2, 5, 3), (1, 2, 2)]
over_sizes = pytest.mark.parametrize(("num_stages", "num", "num_repeats"), SIZES)


def drawn(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 2.0, shape).astype("f")


def given(num: int, num_stages: int, num_repeats: int) -> tuple[np.ndarray, ...]:
    """Returns x [M, B, WIDTH], a rider [M, B], and weights [R, K, WIDTH]."""
    weights = drawn(num_repeats, num_stages, WIDTH, seed=2)
    return drawn(num, B, WIDTH, seed=0), drawn(num, B, seed=1), weights


def one_stage(x: Any, rider: Any, w: Any) -> Any:
    """Without a limit at 0: a register that started there would compute nan."""
    return w * x / (x * x) ** 0.5 + rider[..., None] * x


def registered(x: Any, rider: Any, weights: Any) -> tuple[tf.Tensor, Any]:
    """Returns the result, and of each tick what its stages had: indices, sums, inputs."""
    (num_repeats, num_stages, _), num = weights.shape, x.shape[0]

    def stages(index: tf.Tensor, x: tf.Tensor, rider: tf.Tensor) -> tuple[tf.Tensor, Any]:
        repeats = tf.clip_by_value(index // num, 0, num_repeats - 1)
        mine = tf.gather_nd(weights, tf.stack([repeats, tf.range(num_stages)], axis=1))
        y = one_stage(x, rider, mine[:, None])
        return y, {"indices": index, "sums": tf.reduce_sum(y, [1, 2]), "per_example": rider}

    return shift_register(
        stages,
        x,
        rider,
        num_stages=num_stages,
        num_repeats=num_repeats,
        with_sharding=lambda tensors, axis: tensors,
    )


def one_by_one(x: Any, rider: Any, weights: Any) -> Any:
    for w in tf.unstack(tf.reshape(weights, [-1, WIDTH])):
        x = one_stage(x, rider, w)
    return x


@over_sizes
def test_micro_batches_pass_all_stages_in_all_repeats(num_stages, num, num_repeats):
    values = given(num, num_stages, num_repeats)
    y, _ = registered(*map(tf.constant, values))
    np.testing.assert_allclose(y, one_by_one(*values), rtol=1e-5)


@over_sizes
def test_every_stage_computes_every_micro_batch_once_a_repeat(num_stages, num, num_repeats):
    x, rider, weights = given(num, num_stages, num_repeats)
    _, others = registered(tf.constant(x), tf.constant(rider), tf.constant(weights))
    others = {name: value.numpy() for name, value in others.items()}
    assert len(others["indices"]) == num * num_repeats + num_stages - 1
    after: dict[tuple[int, int], float] = {}
    for item in range(num * num_repeats):
        y = x[item % num]
        if item >= num:  # what the last stage has made of it in the repeat before
            y = one_by_one(y, rider[item % num], weights[: item // num]).numpy()
        for stage in range(num_stages):
            y = one_stage(y, rider[item % num], weights[item // num, stage])
            after[item, stage] = y.sum()
    seen = set()
    for tick, indices in enumerate(others["indices"]):
        for stage, item in enumerate(indices):
            assert item == tick - stage
            if 0 <= item < num * num_repeats:
                seen.add((item, stage))
                np.testing.assert_array_equal(others["per_example"][tick, stage], rider[item % num])
                assert others["sums"][tick, stage] == pytest.approx(after[item, stage], rel=1e-5)
    assert seen == after.keys()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("num_stages", "num", "num_repeats"), [(3, 1, 1), (2, 3, 1), (2, 3, 2)])
def test_gradients_are_those_of_stages_one_after_the_other(num_stages, num, num_repeats, compiled):
    values = list(map(tf.constant, given(num, num_stages, num_repeats)))
    toward = tf.constant(drawn(num, B, WIDTH, seed=3))

    @tf.function(autograph=False, jit_compile=compiled)
    def gradients(*values: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = tf.reduce_sum(toward * registered(*values)[0])
        return tape.gradient(loss, values)

    with tf.GradientTape() as tape:
        tape.watch(values)
        loss = tf.reduce_sum(toward * one_by_one(*values))
    wanted: Any = tape.gradient(loss, values)
    for found, expected in zip(gradients(*values), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_register_is_placed_by_stage_and_nothing_else_is() -> None:
    placed: list[tuple[str | None, int]] = []

    def place(tensors: Any, axis: str | None) -> Any:
        placed.extend((axis, value.shape[0]) for value in tf.nest.flatten(tensors))
        return tensors

    num_stages, num = 3, 5
    x, rider, _ = map(tf.constant, given(num, num_stages, 1))
    shift_register(
        lambda index, x, rider: (x, ()),
        x,
        rider,
        num_stages=num_stages,
        num_repeats=1,
        with_sharding=place,
    )
    assert ("stage", num_stages) in placed
    assert all((size == num_stages) == (axis == "stage") for axis, size in placed)
