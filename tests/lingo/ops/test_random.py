"""Random numbers are functions of key and counter, the same for everyone who draws them."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops import random

KEY = random.fold(random.root_key(7), 3)
MASK = 0xFFFFFFFF


def mix(x: int) -> int:
    """The mixing function in Python integers."""
    x ^= x >> 16
    x = x * 0x7FEB352D & MASK
    x ^= x >> 15
    x = x * 0x846CA68B & MASK
    return x ^ x >> 16


def folded(key: tuple[int, int], data: int) -> tuple[int, int]:
    high = mix(key[0] ^ mix((data & MASK) + 0x9E3779B9 & MASK))
    return high, mix(key[1] + high & MASK)


def on_device(key: random.Key) -> random.Key:
    return random.Key(tf.constant(key.high, tf.uint32), tf.constant(key.low, tf.uint32))


def test_words_equal_those_of_python_integers() -> None:
    high, low = folded(folded((0, 7), 0), 3)
    expected = [mix(mix(i + high & MASK) + low & MASK) for i in range(5)]
    np.testing.assert_array_equal(random.bits(KEY, 5), np.array(expected, np.uint32))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_tensorflow_and_xla_draw_the_bits_of_numpy(jit_compile: bool) -> None:
    @tf.function(autograph=False, jit_compile=jit_compile)
    def draw(high: tf.Tensor, low: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        key = random.fold(random.fold(random.Key(high, low), 12), tf.constant([-1, 5]))
        return random.bits(key, 3, 4), random.uniform(key, 6)

    key = random.fold(random.fold(KEY, 12), np.array([-1, 5]))
    words, numbers = draw(*on_device(KEY))
    np.testing.assert_array_equal(words, random.bits(key, 3, 4))
    np.testing.assert_array_equal(numbers, random.uniform(key, 6))


def test_several_axes_are_numbered_row_by_row() -> None:
    flat = random.bits(KEY, 24)
    for key in (KEY, on_device(KEY)):
        np.testing.assert_array_equal(random.bits(key, 2, 3, 4), flat.reshape(2, 3, 4))


def test_sizes_may_be_known_only_at_run_time() -> None:
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int32)])
    def draw(size: tf.Tensor) -> tf.Tensor:
        return random.bits(on_device(KEY), size, 2)

    np.testing.assert_array_equal(draw(3), random.bits(KEY, 3, 2))


def test_a_slice_needs_no_more_than_itself() -> None:
    np.testing.assert_array_equal(random.host_bits(KEY, 3, 4), random.bits(KEY, 10)[3:7])


def test_counters_past_32_bits_do_not_repeat_the_first() -> None:
    words = random.host_bits(KEY, 2**32 - 2, 4)
    np.testing.assert_array_equal(words[2:], random.bits(random.fold(KEY, 1), 2))
    assert not np.isin(words[2:], random.bits(KEY, 2)).any()


def test_a_lifted_axis_draws_the_same() -> None:
    def draw(index: tf.Tensor) -> tf.Tensor:
        return random.bits(random.fold(on_device(KEY), index), 4)

    lifted = tf.vectorized_map(draw, tf.range(3), fallback_to_while_loop=False)
    np.testing.assert_array_equal(lifted, random.bits(random.fold(KEY, np.arange(3)), 4))


@pytest.mark.parametrize("data", [5, np.int32(5), np.uint32(5), 5 + 2**32])
def test_integers_fold_by_their_value_modulo_32_bits(data: int) -> None:
    assert random.fold(KEY, data) == random.fold(KEY, 5)


def test_all_64_bits_of_a_seed_count() -> None:
    seeds = [0, 1, -1, 2**32, 2**63]
    assert len({random.root_key(seed) for seed in seeds}) == len(seeds)


def test_text_hash_is_the_published_check_value_of_crc32() -> None:
    assert random.text_hash("123456789") == 0xCBF43926


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    numbers = random.uniform(KEY, 20_000)
    assert numbers.dtype == np.float32
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    np.testing.assert_allclose(counts, 1000, atol=5 * np.sqrt(950))


def test_neighbouring_keys_draw_unrelated_numbers() -> None:
    numbers = random.uniform(random.fold(KEY, np.arange(30)), 2_000)
    correlation = np.corrcoef(numbers) - np.eye(30)
    assert np.abs(correlation).max() < 5 / np.sqrt(2_000)


def test_normal_numbers_have_the_moments_and_the_tails_of_a_normal_distribution() -> None:
    key = random.root_key(3)
    z = random.normal(key, 200_000)
    moments = [(z.astype(np.float64) ** n).mean() for n in (1, 2, 3, 4)]
    np.testing.assert_allclose(moments, [0, 1, 0, 3], atol=0.05)
    assert (np.abs(z) > 1.96).mean() == pytest.approx(0.05, abs=0.002)
    in_program = tf.function(lambda h, w: random.normal(random.Key(h, w), 1000))
    np.testing.assert_allclose(in_program(*map(tf.constant, key)), z[:1000], atol=1e-5)
