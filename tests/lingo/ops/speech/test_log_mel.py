"""Log-mel spectra against a computation in NumPy that shares nothing with them."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.ops import random
from lingo.ops.speech.log_mel import Features, LogMel, stack_frames

SINE = 8000 * np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000)


def slow_mel_weights(points: int, bins: int, rate: int, low: float, high: float) -> np.ndarray:
    def mel(hertz: float) -> float:
        return 1127 * np.log1p(hertz / 700)

    edges = np.linspace(mel(low), mel(high), bins + 2)
    weights = np.zeros([points // 2 + 1, bins])
    for k in range(1, points // 2 + 1):
        at = mel(k * rate / points)
        for m in range(bins):
            left, middle, right = edges[m : m + 3]
            rise, fall = (at - left) / (middle - left), (right - at) / (right - middle)
            weights[k, m] = max(0.0, min(rise, fall))
    return weights


def slow_log_mel(samples: np.ndarray, window: int = 400, step: int = 160) -> np.ndarray:
    """Returns [T, 80] by sums of sines and cosines, without a fast Fourier transform."""
    n, k = np.arange(window), np.arange(513)[:, None]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * n / window)
    waves = np.exp(-2j * np.pi * k * n / 1024)
    weights = slow_mel_weights(1024, 80, 16_000, 125, 7600)
    rows = []
    for begin in range(0, len(samples) - window, step):
        frame = samples[begin : begin + window + 1]
        windowed = (frame[1:] - 0.97 * frame[:-1]) * hann
        rows.append(np.log(np.maximum(1.0, np.abs(waves @ windowed) @ weights)))
    return np.array(rows).reshape(-1, 80)


def features(samples: np.ndarray, **fields) -> np.ndarray:
    front_end = LogMel.params(**fields).build()
    return front_end(tf.constant(samples[None]), tf.constant([len(samples)])).values.numpy()[0]


def test_published_values_of_a_sine() -> None:
    values = features(SINE)
    assert values.shape == (98, 80)
    assert values[0].argmax() == 24
    found = [*values[0, [24, 0, 79]], values[0].mean()]
    np.testing.assert_allclose(found, [13.518058120, 1.716567905, 0, 3.210306884], atol=1e-7)


def test_published_values_of_the_mel_matrix() -> None:
    weights = LogMel.params().build().mel_matrix(tf.float64).numpy()
    assert weights.shape == (513, 80)
    assert ((weights > 0).sum(), weights.sum()) == (940, pytest.approx(470.059294337, abs=1e-8))
    np.testing.assert_allclose(weights, slow_mel_weights(1024, 80, 16_000, 125, 7600), atol=1e-12)


def test_speech_like_noise_equals_an_independent_computation() -> None:
    rng = np.random.default_rng(0)
    samples = np.cumsum(rng.normal(size=3000)) * 100 + 3000 * np.sin(np.arange(3000) / 5)
    expected = slow_log_mel(samples)
    np.testing.assert_allclose(features(samples), expected, atol=1e-9)
    whole = features(samples.astype(np.float32))
    assert np.abs(whole - expected).max() < 1e-2  # float32 is not exact enough for quiet bins


@pytest.mark.parametrize(("length", "frames"), [(0, 0), (400, 0), (401, 1), (561, 2), (16_000, 98)])
def test_published_numbers_of_frames(length: int, frames: int) -> None:
    front_end = LogMel.params().build()
    assert front_end.num_frames(length) == frames == len(features(np.zeros(length)))
    assert int(front_end.num_frames(tf.constant(length))) == frames


def test_a_frame_is_padding_if_any_sample_is() -> None:
    front_end = LogMel.params().build()
    lengths = np.array([16_000, 721, 720, 401, 400, 0])
    samples = np.tile(SINE, [6, 1])
    found = front_end(tf.constant(samples), tf.constant(lengths, tf.int32))
    frames = [[i * 160 + 401 <= n for i in range(98)] for n in lengths]
    assert found.num_frames.numpy().tolist() == np.sum(frames, axis=1).tolist()
    np.testing.assert_array_equal(found.values[1, :3], features(SINE[:721]))


def test_zeros_complete_the_last_frames() -> None:
    samples = SINE[:500]
    padded = np.pad(samples, [0, 600])
    values = features(samples, pads_end=True)
    assert len(values) == 4
    np.testing.assert_allclose(values, slow_log_mel(padded)[:4], atol=1e-9)


def test_options_change_what_they_say() -> None:
    plain = features(SINE)
    np.testing.assert_allclose(
        features(SINE, mean=[1.0] * 80, stddev=[2.0] * 80), (plain - 1) / 2, atol=1e-12
    )
    loud = plain > 0
    np.testing.assert_allclose(
        features(SINE / 32_768 * 4), features(SINE * 4, divides_samples=True)
    )
    one_bin = {"num_bins": 1, "min_hertz": 900.0, "max_hertz": 1100.0}
    magnitude, energy = features(SINE, **one_bin), features(SINE, computes_energy=True, **one_bin)
    assert (energy > 1.5 * magnitude).all()
    assert loud.any()
    half = LogMel.params(doubles_fft=False).build()
    assert (half.fft_size, LogMel.params(frame_ms=64.0).build().fft_size) == (512, 4096)


def test_noise_is_a_function_of_the_key_and_has_its_standard_deviation() -> None:
    front_end = LogMel.params(noise_stddev=8.0, pre_emphasis=0.0).build()
    keys = random.key_array([random.root_key(0), random.root_key(1), random.root_key(0)])
    zeros, sizes = tf.zeros([3, 16_000], tf.float64), tf.constant([16_000] * 3)
    values = front_end(zeros, sizes, keys=keys).values.numpy()
    np.testing.assert_array_equal(values[0], values[2])
    assert (values[0] != values[1]).any()
    # A magnitude of noise through the window: 8 sqrt(sum of squares), times sqrt(pi) / 2.
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    expected = 8 * np.sqrt((hann**2).sum() * np.pi) / 2
    weights = front_end.mel_matrix(tf.float64).numpy().sum(axis=0)
    mean = np.exp(values[:2]).mean(axis=(0, 1)) / weights
    np.testing.assert_allclose(mean, expected, rtol=0.15)
    with pytest.raises(ValueError, match="random key"):
        front_end(zeros, sizes)


@pytest.mark.parametrize(("left", "right", "stride"), [(2, 0, 3), (0, 1, 1), (1, 2, 2), (3, 3, 4)])
def test_stacks_equal_windows_with_repeated_ends(left: int, right: int, stride: int) -> None:
    values = np.random.default_rng(0).normal(size=[7, 2])
    ends = np.array([*[values[0]] * left, *values, *[values[-1]] * right])
    width = left + 1 + right
    for num in (7, 5, 1, 0):
        is_padding = np.array([*[num == 0] * left, *(np.arange(7) >= num), *[num < 7] * right])
        rows = range(0, len(ends) - width + 1, stride)
        found = stack_frames(
            Features(tf.constant(values[None]), tf.constant([num])),
            left=left,
            right=right,
            stride=stride,
        )
        np.testing.assert_array_equal(
            found.values[0], [ends[at : at + width].ravel() for at in rows]
        )
        whole = [not is_padding[at : at + width].any() for at in rows]
        assert int(found.num_frames[0]) == sum(whole)


def test_the_number_of_stacks_is_known_from_the_samples() -> None:
    front_end = LogMel.params(left_context=2, frame_stride=3).build()
    for length in (0, 401, 1000, 5000):
        found = front_end(tf.constant(SINE[None, :length]), tf.constant([length]))
        assert front_end.num_stacks(length) == found.values.shape[1] == int(found.num_frames[0])
        assert found.values.shape[2] == front_end.dim == 240


def test_spectra_are_the_same_when_compiled() -> None:
    front_end = LogMel.params(right_context=1).build()
    args = tf.constant(SINE[None, :2000]), tf.constant([1500])
    compiled = tf.function(lambda *a: front_end(*a), jit_compile=True)(*args)
    np.testing.assert_allclose(compiled.values, front_end(*args).values, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_hertz": 9000.0}, "max_hertz <= 8000, half of the sample rate"),
        ({"min_hertz": 8000.0}, "not 0 <= min_hertz < max_hertz"),
        ({"frame_stride": 3}, "strides over stacks, but left_context and right_context are 0"),
        ({"mean": [1.0, 2.0]}, "mean has 2 numbers for num_bins=80"),
        ({"stddev": [0.0] * 80}, "stddev"),
        ({"step_ms": 0.0}, "step_ms=0.0 is not positive"),
    ],
)
def test_settings_that_contradict_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        LogMel.params(**fields).build()
