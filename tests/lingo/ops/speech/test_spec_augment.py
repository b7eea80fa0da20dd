"""SpecAugment: published warps, the shares that masks hide, and independence of the batch."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.ops import random
from lingo.ops.speech.spec_augment import (
    POLICIES,
    SpecAugment,
    random_mask,
    spec_augment_policy,
    warp_matrix,
    warp_points,
)


def keys(num: int, first: int = 0) -> random.Key:
    return random.key_array(random.root_key(first + i) for i in range(num))


def slow_masks(rng: np.random.Generator, length: int, num: int, **settings) -> np.ndarray:
    """Returns how often each position is hidden, as Lingvo draws masks: [length]."""
    count, most, ratio = settings["count"], settings["max_width"], settings["max_ratio"]
    rate, hidden = settings.get("masks_per_position", 0.0), np.zeros(length)
    for _ in range(num):
        mask = np.zeros(length, bool)
        for i in range(count):
            if rate and i >= rate * length:
                continue
            width = int(rng.uniform() * (most or ratio * length))
            width = min(width, max(int(ratio * length), 1))
            start = int(rng.uniform() * (length - width + 1))
            mask[start : start + width] = True
        hidden += mask
    return hidden / num


@pytest.mark.parametrize(
    "settings",
    [
        {"count": 1, "max_width": 5, "max_ratio": 1.0},
        {"count": 3, "max_width": 9, "max_ratio": 0.3},
        {"count": 2, "max_width": 0, "max_ratio": 0.4},
        {"count": 5, "max_width": 4, "max_ratio": 1.0, "masks_per_position": 0.2},
    ],
)
def test_masks_hide_each_position_as_often_as_slow_ones(settings: dict) -> None:
    num, length = 4000, 12
    found = random_mask(tf.fill([num], length), keys(num), size=15, **settings).numpy()
    expected = slow_masks(np.random.default_rng(0), length, num, **settings)
    assert not found[:, length:].any()
    # Two means of 4,000 draws differ by 4 standard deviations once in 16,000 positions.
    bound = 4 * np.sqrt(2 * 0.25 / num)
    assert np.abs(found[:, :length].mean(axis=0) - expected).max() < bound


def test_widths_are_below_their_bound_and_reach_it_minus_one() -> None:
    found = random_mask(tf.fill([3000], 20), keys(3000), size=20, count=1, max_width=6).numpy()
    assert set(found.sum(axis=1).tolist()) == {0, 1, 2, 3, 4, 5}
    short = random_mask(
        tf.fill([3000], 20), keys(3000), size=20, count=1, max_width=6, max_ratio=0.1
    ).numpy()
    assert set(short.sum(axis=1).tolist()) == {0, 1, 2}


def test_a_published_warp() -> None:
    at = tf.constant([4.0]), tf.constant([6.0]), tf.constant([10])
    matrix = warp_matrix(*at, 12).numpy()[0]
    i = np.arange(12.0)
    source = [0, 2 / 3, 4 / 3, 2, 8 / 3, 10 / 3, 4, 5.5, 7, 8.5, 10, 11]
    np.testing.assert_allclose(matrix @ i, source, atol=2e-6)
    squares = [0, 0.666667, 2, 4, 7.333333, 11.333333, 16, 30.5, 49, 72.5, 100, 121]
    np.testing.assert_allclose(matrix @ i**2, squares, atol=2e-6)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("max_shift", "max_ratio", "expected"),
    [(2, 1.0, {-2, -1, 0, 1, 2}), (5, 0.3, {-3, -2, -1, 0, 1, 2, 3}), (0, 0.4, set(range(-3, 4)))],
)
def test_points_and_shifts_cover_their_ranges(max_shift, max_ratio, expected) -> None:
    origins, targets = warp_points(
        tf.fill([2000], 10), keys(2000), max_shift=max_shift, max_ratio=max_ratio
    )
    shifts = (targets - origins).numpy().astype(int)
    assert set(shifts.tolist()) == expected
    assert set(origins.numpy().astype(int).tolist()) == set(range(1, 9))
    if max_shift == 2:
        np.testing.assert_allclose(np.bincount(shifts + 2) / 2000, 0.2, atol=0.036)


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_short_utterances_are_warped_without_a_division_by_zero(length: int) -> None:
    augment = SpecAugment.params(time_warp_max_frames=5, time_warp_max_ratio=1.0).build()
    x = tf.random.stateless_normal([4, 3, 8], [1, 2])
    assert np.isfinite(augment(x, tf.fill([4], length), keys(4))).all()


@pytest.mark.parametrize("name", POLICIES)
def test_an_utterance_is_augmented_alike_in_any_batch(name: str) -> None:
    augment = spec_augment_policy(name).build()
    x, lengths = np.random.default_rng(0).normal(size=[3, 120, 80]), [120, 90, 40]
    together = augment(tf.constant(x, tf.float32), tf.constant(lengths), keys(3)).numpy()
    for i, length in enumerate(lengths):
        part = tf.constant(x[i : i + 1, : length + 1], tf.float32)
        alone = augment(part, tf.constant([length]), keys(1, first=i)).numpy()[0]
        np.testing.assert_allclose(alone[:length], together[i, :length], atol=1e-6)
    assert (together == 0).any()


def test_policies_are_those_of_the_papers() -> None:
    found = [
        [
            getattr(spec_augment_policy(name), field)
            for field in (
                *("time_warp_max_frames", "freq_mask_max_bins", "freq_mask_count"),
                *("time_mask_max_frames", "time_mask_max_ratio", "time_mask_count"),
            )
        ]
        for name in ("LB", "LD", "SM", "SS")
    ]
    assert found == [
        [80, 27, 1, 100, 1.0, 1],
        [80, 27, 2, 100, 1.0, 2],
        [40, 15, 2, 70, 0.2, 2],
        [40, 27, 2, 70, 0.2, 2],
    ]
    conformer = spec_augment_policy("conformer")
    assert (conformer.time_mask_count, conformer.time_mask_max_ratio) == (10, 0.05)
    assert (conformer.freq_mask_count, conformer.freq_mask_max_bins) == (2, 27)
    assert conformer.dynamic_time_mask
    assert not conformer.time_warp_max_ratio
    with pytest.raises(ParamError, match=r"'LDD' is no policy of SpecAugment.*Did you mean 'LD'"):
        spec_augment_policy("LDD")


def no_masks(**fields) -> SpecAugment:
    return SpecAugment.params(freq_mask_count=0, time_mask_count=0, **fields).build()


def test_without_masks_nothing_changes() -> None:
    x = tf.random.stateless_normal([2, 9, 8, 3], [1, 2])
    np.testing.assert_array_equal(no_masks()(x, tf.constant([9, 4]), keys(2)), x)


def test_blocks_are_hidden_at_rates_that_are_uniform_over_utterances() -> None:
    augment = no_masks(block_mask_rate=0.8, block_mask_frames=2, block_mask_bins=3)
    hidden = augment(tf.ones([600, 9, 10]), tf.fill([600], 9), keys(600)).numpy() == 0
    blocks = hidden[:, ::2, ::3]
    np.testing.assert_array_equal(hidden, blocks.repeat(2, 1)[:, :9].repeat(3, 2)[..., :10])
    rates = blocks.mean(axis=(1, 2))
    assert abs(rates.mean() - 0.4) < 0.05
    # The variance of a uniform rate, and that of 20 blocks around it.
    assert rates.var() == pytest.approx(0.8**2 / 12 + (0.4 - 0.64 / 3) / 20, rel=0.2)


def test_noise_of_bins_multiplies_them_the_same_in_all_frames() -> None:
    x = np.random.default_rng(0).normal(size=[500, 3, 40]).astype(np.float32)
    found = no_masks(freq_noise_max_stddev=0.2)(tf.constant(x), tf.fill([500], 3), keys(500))
    factors = found.numpy() / x
    np.testing.assert_allclose(factors[:, 0], factors[:, 2], rtol=1e-4)
    stddevs = factors[:, 0].std(axis=1)
    assert (abs(factors.mean() - 1) < 0.01, abs(stddevs.mean() - 0.1) < 0.01) == (True, True)
    assert 0.15 < stddevs.max() < 0.3


def test_masks_of_time_may_hold_noise() -> None:
    for gaussian, low, high in ((False, 0.1, 0.2), (True, 0.8, 1.2)):
        augment = SpecAugment.params(
            freq_mask_count=0, use_noise=True, gaussian_noise=gaussian, time_mask_count=3
        ).build()
        found = augment(tf.fill([20, 60, 40], 9.0), tf.fill([20], 60), keys(20)).numpy()
        for one in found:
            rows = one[(one != 9).all(axis=1)]
            assert not len(rows) or low * 0.9 < rows.std() < high * 1.1


def test_bins_are_warped_up_to_their_bound() -> None:
    augment = no_masks(freq_warp_max_bins=2)
    ramp = tf.constant(np.tile(np.arange(10, dtype=np.float32), [200, 1, 1]))
    found = augment(ramp, tf.fill([200], 1), keys(200)).numpy()[:, 0]
    assert (np.diff(found, axis=1)[:, :-1] > 0).all()
    assert 1.0 < np.abs(found[:, :9] - ramp[0, 0, :9]).max() <= 2.01


def test_augmented_features_are_the_same_when_compiled() -> None:
    augment = spec_augment_policy("LD", block_mask_rate=0.1, freq_noise_max_stddev=0.1).build()
    x, lengths, key = (
        tf.random.stateless_normal([2, 50, 30], [1, 2]),
        tf.constant([50, 20]),
        keys(2),
    )
    compiled = tf.function(lambda h, w: augment(x, lengths, random.Key(h, w)), jit_compile=True)
    found = compiled(*map(tf.constant, key))
    np.testing.assert_allclose(found, augment(x, lengths, key), atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"time_mask_max_ratio": 1.5}, r"time_mask_max_ratio=1.5 is not in 0\.\.1"),
        ({"freq_mask_count": -1}, "freq_mask_count=-1 is negative"),
        ({"gaussian_noise": True}, "use_noise is False"),
    ],
)
def test_settings_that_contradict_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        SpecAugment.params(**fields).build()
