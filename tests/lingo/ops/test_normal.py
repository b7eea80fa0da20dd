"""Quantiles of normal distributions against SciPy and the error function."""

import math

import numpy as np
from scipy import stats

from lingo.ops import normal


def test_cut_normal_is_the_inverse_of_the_cut_distribution_function() -> None:
    u = np.linspace(-1, 1, 101)
    cut = math.erf(2 / math.sqrt(2))
    back = [math.erf(x / math.sqrt(2)) / cut for x in normal.cut_normal(u)]
    np.testing.assert_allclose(back, u, atol=1e-8)


def test_normal_is_the_inverse_of_the_distribution_function() -> None:
    u = np.concatenate([np.linspace(-0.999, 0.999, 1999), [1 - 2.0**-32, 2.0**-32 - 1, 0.85]])
    np.testing.assert_allclose(
        normal.normal(u), stats.norm.ppf((1 + u) / 2), rtol=1e-13, atol=1e-14
    )
