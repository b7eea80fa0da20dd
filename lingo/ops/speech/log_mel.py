"""Logarithmic mel spectra, computed as Lingvo's `MelAsrFrontend` computes them.

A frame has one sample more than its window, because pre-emphasis is inside the frame. Samples are
in units of 16-bit audio, -32,768..32,767.

Axes: B utterances, L samples, T frames, W samples per window, K bins of the Fourier transform,
M mel bins, S stacked frames, D = M or M times the frames per stack.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import Configurable, ParamError
from lingo.ops import random
from lingo.ops.shape import size_of

_MIN_FFT = 512


class Features(NamedTuple):
    """The frames of some utterances."""

    values: tf.Tensor  # float [B, T, D]
    num_frames: tf.Tensor  # int32 [B]; later frames are padding


class LogMel(Configurable):
    """Settings of logarithmic mel spectra; a built object computes them."""

    sample_rate: int = 16_000  # samples per second
    frame_ms: float = 25.0  # milliseconds per window
    step_ms: float = 10.0  # milliseconds between windows
    num_bins: int = 80  # M
    min_hertz: float = 125.0  # lower end of the lowest mel bin
    max_hertz: float = 7_600.0  # upper end of the highest mel bin
    pre_emphasis: float = 0.97  # share of the sample before that is subtracted from a sample
    noise_stddev: float = 0.0  # of noise added to samples; 8 in Lingvo, 0 in its LibriSpeech data
    pads_end: bool = False  # whether zeros complete the last frames
    doubles_fft: bool = True  # twice as many points as the least power of 2 from 512 up
    computes_energy: bool = False  # squares of magnitudes in place of magnitudes
    divides_samples: bool = False  # by 32,768 before anything else
    floor: float = 1.0  # least value whose logarithm is taken
    mean: list[float] = []  # subtracted from each mel bin, [M]; []: zeros
    stddev: list[float] = []  # divides each mel bin, [M]; []: ones
    left_context: int = 0  # frames before each frame that are stacked with it
    right_context: int = 0  # frames after it
    frame_stride: int = 1  # every frame_stride-th stack is kept

    def check(self) -> None:
        p = self.p
        ranges.check_finite(p)
        ranges.check_positive(p, "sample_rate", "frame_ms", "step_ms", "num_bins", "floor")
        ranges.check_positive(p, "frame_stride", "stddev")
        ranges.check_not_negative(p, "noise_stddev", "left_context", "right_context")
        if not 0 <= p.min_hertz < p.max_hertz <= p.sample_rate / 2:
            raise ParamError(
                f"min_hertz={p.min_hertz} and max_hertz={p.max_hertz} are not 0 <= min_hertz <"
                f" max_hertz <= {p.sample_rate / 2:g}, half of the sample rate"
            )
        if p.frame_stride > 1 and not p.left_context + p.right_context:
            raise ParamError(
                f"frame_stride={p.frame_stride} strides over stacks, but left_context and"
                " right_context are 0: set one of them"
            )
        for name in ("mean", "stddev"):
            if len(getattr(p, name)) not in (0, p.num_bins):
                raise ParamError(
                    f"{name} has {len(getattr(p, name))} numbers for num_bins={p.num_bins}: give"
                    " one per bin, or none"
                )

    @property
    def window_size(self) -> int:
        """W, samples per window; a frame has one more."""
        return round(self.p.sample_rate * self.p.frame_ms / 1000)

    @property
    def step_size(self) -> int:
        """Samples between the beginnings of frames."""
        return round(self.p.sample_rate * self.p.step_ms / 1000)

    @property
    def fft_size(self) -> int:
        """Points of the Fourier transform."""
        size = max(_MIN_FFT, 1 << self.window_size.bit_length())
        return 2 * size if self.p.doubles_fft else size

    @property
    def dim(self) -> int:
        """D, numbers per frame of the result."""
        return self.p.num_bins * (1 + self.p.left_context + self.p.right_context)

    def num_frames(self, num_samples: Any) -> Any:
        """Returns the number of frames before stacking: an int, array or int32 tensor."""
        if self.p.pads_end:
            return -(-num_samples // self.step_size)
        missing = num_samples < self.window_size + 1
        frames = 1 + (num_samples - self.window_size - 1) // self.step_size
        return frames * (1 - _as_int(missing))

    def num_stacks(self, num_samples: Any) -> Any:
        """Returns T of the result for one utterance of some samples, without padding."""
        return -(-self.num_frames(num_samples) // self.p.frame_stride)

    def __call__(
        self, samples: tf.Tensor, num_samples: tf.Tensor, *, keys: random.Key | None = None
    ) -> Features:
        """Returns the features of utterances.

        A frame is padding if any of its samples is; a stack is padding if any of its frames is.

        Args:
            samples: float32 or float64 [B, L], in units of 16-bit audio.
            num_samples: int32 [B]; later samples are padding.
            keys: the utterances' random keys, [B], for `noise_stddev`.
        """
        spectra = self.spectra(samples, keys)
        if self.p.mean:
            spectra -= tf.constant(self.p.mean, spectra.dtype)
        if self.p.stddev:
            spectra /= tf.constant(self.p.stddev, spectra.dtype)
        num_frames = self._num_whole_frames(num_samples, size_of(samples, 1))
        p = self.p
        if not p.left_context + p.right_context:
            return Features(spectra, num_frames)
        return stack_frames(
            Features(spectra, num_frames),
            left=p.left_context,
            right=p.right_context,
            stride=p.frame_stride,
        )

    def spectra(self, samples: tf.Tensor, keys: random.Key | None = None) -> tf.Tensor:
        """Returns spectra of samples [B, L] before means and stacks, [B, T, M]."""
        p = self.p
        if p.divides_samples:
            samples = samples / 32_768
        frames = tf.signal.frame(samples, self.window_size + 1, self.step_size, pad_end=p.pads_end)
        frames = frames[..., 1:] - p.pre_emphasis * frames[..., :-1]
        if p.noise_stddev:
            if keys is None:
                raise ValueError("noise_stddev needs a random key per utterance")
            noise = random.normal(keys, size_of(frames, 1), self.window_size)
            frames += p.noise_stddev * tf.cast(noise, frames.dtype)
        frames *= tf.signal.hann_window(self.window_size, periodic=True, dtype=frames.dtype)
        # Padded here, because `rfft` pads no empty tensor.
        frames = tf.pad(frames, [[0, 0], [0, 0], [0, self.fft_size - self.window_size]])
        magnitudes = tf.abs(tf.signal.rfft(frames))
        if p.computes_energy:
            magnitudes = tf.square(magnitudes)
        mel = tf.einsum("btk,km->btm", magnitudes, self.mel_matrix(frames.dtype))
        return tf.math.log(tf.maximum(tf.cast(p.floor, mel.dtype), mel))

    def mel_matrix(self, dtype: tf.DType) -> tf.Tensor:
        """Returns the weights of Fourier bins in mel bins, [K, M]: triangles, linear in HTK's mel.

        A mel bin's weights are not divided by its width. The weights of frequency 0 are 0.
        """
        p = self.p
        return tf.signal.linear_to_mel_weight_matrix(
            p.num_bins,
            self.fft_size // 2 + 1,
            p.sample_rate,
            p.min_hertz,
            p.max_hertz,
            dtype=dtype,
        )

    def _num_whole_frames(self, num_samples: tf.Tensor, length: Any) -> tf.Tensor:
        """Returns the number of frames without padding, int32 [B]; all utterances have `length`."""
        num_samples = tf.cast(num_samples, tf.int32)
        frame = self.window_size + 1
        whole = tf.maximum(1 + (num_samples - frame) // self.step_size, 0)
        if not self.p.pads_end:
            return whole
        # Zeros that complete an utterance without padding are no padding, as in Lingvo.
        return tf.where(num_samples == length, self.num_frames(num_samples), whole)


def stack_frames(features: Features, *, left: int, right: int, stride: int) -> Features:
    """Concatenates each frame with its neighbours, and keeps every `stride`-th stack.

    The first frame is repeated before the beginning, and the last one after the end.

    Args:
        features: [B, T, D].
        left: frames before each frame.
        right: frames after it.
        stride: distance of the frames that are kept.

    Returns:
        [B, ceil(T / stride), (left + 1 + right) * D]. A stack is padding if any of its frames is.

    >>> whole = Features(tf.constant([[[1.0], [2.0], [3.0]]]), tf.constant([3]))
    >>> stack_frames(whole, left=1, right=0, stride=2).values.numpy().tolist()
    [[[1.0, 1.0], [2.0, 3.0]]]
    """
    values, num_frames = features
    length = size_of(values, 1)
    middles = tf.range(0, length, stride)
    at = tf.clip_by_value(middles[:, None] + tf.range(-left, right + 1), 0, length - 1)
    stacks = tf.gather(values, at, axis=1)
    shape = [size_of(values, 0), size_of(at, 0), (left + 1 + right) * size_of(values, 2)]
    whole = tf.maximum(-(-(num_frames - right) // stride), 0)
    num_stacks = tf.where(num_frames == length, size_of(at, 0), whole)
    return Features(tf.reshape(stacks, shape), num_stacks)


def _as_int(flag: Any) -> Any:
    return tf.cast(flag, tf.int32) if tf.is_tensor(flag) else flag + 0
