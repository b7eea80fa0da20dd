"""Scaled frequencies of rotary positions, for texts longer than those a model was trained on.

    Rotary.params(max_wavelength=500_000.0, scaling=Llama3Scaling.params(
        factor=8.0, original_max_position_embeddings=8192))               # Llama 3.1

Fields have the names of `rope_scaling` in Hugging Face's configurations, and the frequencies equal
the results of transformers' `ROPE_INIT_FUNCTIONS`. Hugging Face's type `dynamic` has no class here.
Its frequencies change with the text's length, so keys that decoding cached earlier would have been
rotated by other frequencies. Up to the length of training, `dynamic` does not scale; for any single
longer length, `NtkScaling` has the same frequencies.

Axes: P rotated pairs of features.
"""

from __future__ import annotations

import math

import numpy as np

from lingo.config import ranges
from lingo.config.params import Configurable, ParamError


def rotary_frequencies(max_wavelength: float, num_pairs: int) -> np.ndarray:
    """Returns each feature pair's angle per position in radians, float64 [P].

    The angles are not scaled (Su et al. 2021, sec. 3.2.2).
    """
    return max_wavelength ** (-np.arange(num_pairs) / num_pairs)


class RotaryScaling(Configurable, interface=True):
    """Changes the frequencies of rotary positions. Subclasses define `frequencies`."""

    factor: float  # how many times longer texts are than in the earlier training

    def check(self) -> None:
        ranges.check_positive(self.p, "factor")

    def frequencies(self, max_wavelength: float, num_pairs: int) -> np.ndarray:
        """Returns each feature pair's angle per position in radians, float64 [P]."""
        raise NotImplementedError(f"{type(self).__name__} has no frequencies")

    def magnitude(self) -> float:
        """Returns the factor that rotated features of queries and of keys are multiplied by."""
        return 1.0


class LinearScaling(RotaryScaling):
    """Position interpolation: divides every frequency by the factor (Chen et al. 2023, eq. 4)."""

    def frequencies(self, max_wavelength: float, num_pairs: int) -> np.ndarray:
        return rotary_frequencies(max_wavelength, num_pairs) / self.p.factor


class NtkScaling(RotaryScaling):
    """Divides the lowest frequency by the factor, and keeps the highest (Peng et al. 2023, eq. 16).

    To do so, it multiplies `max_wavelength` by factor^(P / (P - 1)). For texts of L times the
    length of training, Hugging Face's `dynamic` with factor s equals this class with factor
    s L - (s - 1).
    """

    def frequencies(self, max_wavelength: float, num_pairs: int) -> np.ndarray:
        growth = self.p.factor ** (num_pairs / max(num_pairs - 1, 1))
        return rotary_frequencies(max_wavelength * growth, num_pairs)


class YarnScaling(RotaryScaling):
    """Divides low frequencies, but not high ones, by the factor (YaRN: Peng et al. 2023, sec. 3.2).

    A feature pair that turns `beta_fast` times or more in the length of training keeps its
    frequency. A pair that turns at most `beta_slow` times has its frequency divided by the factor.
    For pairs between these, the frequency is a mean of both, whose weight rises linearly with the
    index of the pair. Rotated queries and keys are each multiplied by 0.1 ln(factor) + 1
    (sec. 3.4).
    """

    original_max_position_embeddings: int  # length of texts in the earlier training
    # pairs that turn at least this often in the length of training keep their frequency
    beta_fast: float = 32.0
    # pairs that turn at most this often in the length of training have their frequency divided
    beta_slow: float = 1.0
    # whether the first and last pair of the linear rise are rounded to whole numbers, outwards
    truncate: bool = True
    # factor of rotated queries and keys; None: 0.1 ln(factor) + 1, or as mscale_all_dim says
    attention_factor: float | None = None
    # with mscale_all_dim, and without attention_factor, queries and keys are multiplied by
    # (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1)
    mscale: float | None = None
    mscale_all_dim: float | None = None  # used together with mscale, as described there

    def check(self) -> None:
        super().check()
        p = self.p
        ranges.check_positive(p, "original_max_position_embeddings", "beta_fast", "beta_slow")
        if p.beta_slow >= p.beta_fast:
            raise ParamError(f"beta_slow={p.beta_slow} is not less than beta_fast={p.beta_fast}")

    def frequencies(self, max_wavelength: float, num_pairs: int) -> np.ndarray:
        p = self.p
        low = self._pair_that_turns(p.beta_fast, max_wavelength, num_pairs)
        high = self._pair_that_turns(p.beta_slow, max_wavelength, num_pairs)
        if p.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * num_pairs - 1)
        high += 0.001 if low == high else 0.0  # as in transformers
        share = np.clip((np.arange(num_pairs) - low) / (high - low), 0.0, 1.0)
        return rotary_frequencies(max_wavelength, num_pairs) * (share / p.factor + 1.0 - share)

    def magnitude(self) -> float:
        p = self.p
        if p.attention_factor is not None:
            return p.attention_factor
        if p.mscale and p.mscale_all_dim:
            return self._temperature(p.mscale) / self._temperature(p.mscale_all_dim)
        return self._temperature(1.0)

    def _temperature(self, scale: float) -> float:
        return 0.1 * scale * math.log(max(self.p.factor, 1.0)) + 1.0

    def _pair_that_turns(self, times: float, max_wavelength: float, num_pairs: int) -> float:
        """Returns the index, not rounded, of the pair that turns `times` times.

        Turns are counted in the length of the earlier training.
        """
        wavelength = self.p.original_max_position_embeddings / (2.0 * math.pi * times)
        return num_pairs * math.log(wavelength) / math.log(max_wavelength)


class Llama3Scaling(RotaryScaling):
    """Divides low frequencies, but not high ones, by the factor, as Llama 3.1 does.

    (Grattafiori et al. 2024.) A feature pair that turns `high_freq_factor` times or more in the
    length of training keeps its frequency. A pair that turns at most `low_freq_factor` times has
    its frequency divided by the factor. For pairs between these, the frequency is a mean of both,
    in which the weight of the kept frequency rises linearly with the number of turns.
    """

    original_max_position_embeddings: int  # length of texts in the earlier training
    # pairs that turn at most this often in the length of training have their frequency divided
    low_freq_factor: float = 1.0
    # pairs that turn at least this often in the length of training keep their frequency
    high_freq_factor: float = 4.0

    def check(self) -> None:
        super().check()
        p = self.p
        ranges.check_positive(p, "original_max_position_embeddings")
        if p.low_freq_factor >= p.high_freq_factor:
            raise ParamError(
                f"low_freq_factor={p.low_freq_factor} is not less than"
                f" high_freq_factor={p.high_freq_factor}"
            )

    def frequencies(self, max_wavelength: float, num_pairs: int) -> np.ndarray:
        p, frequencies = self.p, rotary_frequencies(max_wavelength, num_pairs)
        turns = p.original_max_position_embeddings * frequencies / (2.0 * math.pi)
        share = (turns - p.low_freq_factor) / (p.high_freq_factor - p.low_freq_factor)
        share = np.clip(share, 0.0, 1.0)
        return frequencies * (share + (1.0 - share) / p.factor)
