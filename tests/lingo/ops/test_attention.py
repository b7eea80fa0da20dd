"""Masks and the weighted average, against slow NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.lazy import tf
from lingo.ops.attention import attend, causal_mask, segment_mask

RNG = np.random.default_rng(0)
QUERY = RNG.normal(size=[2, 3, 2, 4]).astype(np.float32)  # [B, T, N, H]
KEY, VALUE = RNG.normal(size=[2, 2, 5, 2, 4]).astype(np.float32)  # [B, S, N, H]
EVERYTHING = np.ones([1, 1, 3, 5], bool)


def slow_attend(mask: np.ndarray, bias: np.ndarray) -> np.ndarray:
    out = np.zeros_like(QUERY)
    for b, t, n in np.ndindex(2, 3, 2):
        scores = KEY[b, :, n] @ QUERY[b, t, n] / np.sqrt(4) + bias[b, n, t]
        weights = np.exp(scores) * mask[b, n, t]
        out[b, t, n] = weights @ VALUE[b, :, n] / weights.sum()
    return out


def test_attend_equals_numpy_one_query_at_a_time() -> None:
    mask = RNG.random([2, 2, 3, 5]) < 0.7
    mask[..., 0] = True
    bias = RNG.normal(size=[2, 2, 3, 5]).astype(np.float32)
    actual = attend(QUERY, KEY, VALUE, mask=mask, bias=bias)
    np.testing.assert_allclose(actual, slow_attend(mask, bias), rtol=1e-5, atol=1e-6)


def test_a_query_that_sees_no_key_sees_all_equally() -> None:
    actual = attend(QUERY, KEY, VALUE, mask=np.zeros([1, 1, 3, 5], bool))
    mean = np.broadcast_to(VALUE.mean(1, keepdims=True), actual.shape)
    np.testing.assert_allclose(actual, mean, rtol=1e-5, atol=1e-6)


def test_the_order_of_keys_does_not_matter() -> None:
    order = [3, 1, 4, 0, 2]
    np.testing.assert_allclose(
        attend(QUERY, KEY[:, order], VALUE[:, order], mask=EVERYTHING),
        attend(QUERY, KEY, VALUE, mask=EVERYTHING),
        rtol=1e-5,
        atol=1e-6,
    )


def test_weights_are_thinned_before_they_average() -> None:
    actual = attend(QUERY, KEY, VALUE, mask=EVERYTHING, thin=lambda w: 2 * w)
    np.testing.assert_allclose(actual, 2 * attend(QUERY, KEY, VALUE, mask=EVERYTHING), rtol=1e-6)


def test_bfloat16_inputs_have_float32_weights_and_a_bfloat16_result() -> None:
    seen = []

    def thin(weights: tf.Tensor) -> tf.Tensor:
        seen.append(weights.dtype)
        return weights

    inputs = [tf.cast(x, tf.bfloat16) for x in (QUERY, KEY, VALUE)]
    assert attend(*inputs, mask=EVERYTHING, thin=thin).dtype == tf.bfloat16
    assert seen == [tf.float32]


@pytest.mark.parametrize("length", [4, tf.constant(4)])
def test_the_causal_mask_hides_later_keys(length: int) -> None:
    np.testing.assert_array_equal(causal_mask(length)[0, 0], np.tri(4, dtype=bool))


def test_the_segment_mask_keeps_documents_and_padding_apart() -> None:
    mask = segment_mask(tf.constant([[1, 1, 2, 0]]))[0, 0]
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    np.testing.assert_array_equal(mask, np.array(expected, bool))
