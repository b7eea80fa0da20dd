"""The weighted average and its gradient, against slow NumPy and automatic differentiation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.attention import attend, weighted_average, write_positions

RNG = np.random.default_rng(0)
QUERY = RNG.normal(size=[2, 4, 3, 5]).astype(np.float32)  # [B, N, T, H]
KEY, VALUE = RNG.normal(size=[2, 2, 4, 6, 5]).astype(np.float32)  # [B, N, S, H]
BIAS = RNG.normal(size=[2, 4, 3, 6]).astype(np.float32)
MASK = RNG.random([2, 4, 3, 6]) < 0.7
MASK[..., 0] = True


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def slow_attend(key: np.ndarray, value: np.ndarray, cap: float = 1e9) -> np.ndarray:
    out, share = np.zeros_like(QUERY), 4 // key.shape[1]
    for b, n, t in np.ndindex(2, 4, 3):
        scores = key[b, n // share] @ QUERY[b, n, t]
        scores = cap * np.tanh(scores / cap) + BIAS[b, n, t]
        weights = np.exp(scores) * MASK[b, n, t]
        out[b, n, t] = weights @ value[b, n // share] / weights.sum()
    return out


@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
def test_attend_equals_numpy_one_query_at_a_time(num_kv_heads: int) -> None:
    key, value = KEY[:, :num_kv_heads], VALUE[:, :num_kv_heads]
    close(attend(QUERY, key, value, mask=MASK, bias=BIAS), slow_attend(key, value))


def test_a_cap_bends_the_scores_but_not_the_bias() -> None:
    actual = attend(QUERY, KEY, VALUE, mask=MASK, bias=BIAS, logit_cap=1.5)
    close(actual, slow_attend(KEY, VALUE, cap=1.5))


def test_a_query_that_sees_no_key_sees_all_equally() -> None:
    actual = attend(QUERY, KEY, VALUE, mask=np.zeros([1, 1, 3, 6], bool))
    close(actual, np.broadcast_to(VALUE.mean(2, keepdims=True), actual.shape))


def test_without_a_mask_every_query_sees_every_key() -> None:
    everything = np.ones([1, 1, 3, 6], bool)
    close(attend(QUERY, KEY, VALUE), attend(QUERY, KEY, VALUE, mask=everything))


def test_weights_are_thinned_before_they_average() -> None:
    close(attend(QUERY, KEY, VALUE, dropout=lambda w: 2 * w), 2 * attend(QUERY, KEY, VALUE))


def plain_average(scores: Any, value: Any, keep: Any) -> Any:
    value = tf.repeat(value, 4 // value.shape[1], axis=1)
    return tf.matmul(tf.nn.softmax(scores) * keep, value)


@pytest.mark.parametrize("num_kv_heads", [4, 2])
@pytest.mark.parametrize("thinned", [False, True])
def test_the_gradient_is_that_of_automatic_differentiation(num_kv_heads, thinned):
    scores, value = tf.constant(BIAS), tf.constant(VALUE[:, :num_kv_heads])
    keep = tf.constant(2.0 * MASK, tf.float32) if thinned else tf.ones_like(scores)

    def gradients(function: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([scores, value])
            y = tf.reduce_sum(tf.sin(function()))
        return tape.gradient(y, [scores, value])

    thin = (lambda w: w * keep) if thinned else None
    ours = gradients(lambda: weighted_average(scores, value, dropout=thin))
    for actual, expected in zip(
        ours, gradients(lambda: plain_average(scores, value, keep)), strict=True
    ):
        close(actual, expected)


def test_bfloat16_inputs_have_float32_weights_and_a_bfloat16_result() -> None:
    seen = []

    def thin(weights: tf.Tensor) -> tf.Tensor:
        seen.append(weights.dtype)
        return weights

    inputs = [tf.cast(x, tf.bfloat16) for x in (QUERY, KEY, VALUE)]
    actual = attend(*inputs, dropout=thin)
    assert actual.dtype == tf.bfloat16
    assert seen == [tf.float32]
    np.testing.assert_allclose(
        tf.cast(actual, tf.float32), attend(QUERY, KEY, VALUE), rtol=0.05, atol=0.05
    )


OLD = RNG.normal(size=[2, 3, 5, 4]).astype(np.float32)
NEW = RNG.normal(size=[2, 3, 2, 4]).astype(np.float32)


@pytest.mark.parametrize("index", [0, 1, 3])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_new_positions_take_the_place_of_old_ones(index: int, jit_compile: bool) -> None:
    write = tf.function(write_positions, autograph=False, jit_compile=jit_compile)
    first, second = write([tf.constant(OLD), tf.constant(-OLD)], [NEW, -NEW], tf.constant(index))
    expected = OLD.copy()
    expected[:, :, index : index + 2] = NEW
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second, -expected)


def test_sizes_may_be_known_only_at_run_time() -> None:
    unknown = tf.TensorSpec([None, 3, None, 4])

    @tf.function(autograph=False, input_signature=[unknown, unknown, tf.TensorSpec([], tf.int32)])
    def write(old: Any, new: Any, index: Any) -> Any:
        return write_positions([old], [new], index)[0]

    expected = OLD.copy()
    expected[:, :, 1:3] = NEW
    np.testing.assert_array_equal(write(OLD, NEW, 1), expected)
