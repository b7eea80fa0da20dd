"""The Frechet distance is that of its formula, with SciPy's root of a matrix."""

import numpy as np
import scipy.linalg

from tasks.gan.frechet import frechet_distance, frechet_sums

N, D = 50, 4


def arrays(data, samples, weights):
    sums = frechet_sums(data, samples, weights=weights)
    return {name: value.numpy() for name, value in sums.items()}


def vectors():
    draw = np.random.RandomState(0)
    mix = draw.normal(size=(D, D))
    return draw.normal(size=(N, D)), 1.0 + draw.normal(size=(N, D)) @ mix


def test_it_is_the_distance_of_the_formula():
    data, samples = vectors()
    first, second = (np.cov(x.T, bias=True) for x in (data, samples))
    root = scipy.linalg.sqrtm(first @ second).real
    means = np.sum((data.mean(0) - samples.mean(0)) ** 2)
    expected = means + np.trace(first + second - 2 * root)
    assert np.isclose(frechet_distance(arrays(data, samples, np.ones(N))), expected)


def test_equal_sets_have_no_distance_and_shifted_ones_that_of_their_means():
    data, _ = vectors()
    assert abs(frechet_distance(arrays(data, data[::-1], np.ones(N)))) < 1e-9
    assert np.isclose(frechet_distance(arrays(data, data + 2.0, np.ones(N))), 4.0 * D)


def test_sums_of_parts_are_those_of_the_whole_and_padding_counts_for_nothing():
    data, samples = vectors()
    weights = np.r_[np.ones(N - 9), np.zeros(9)]
    parts = [
        arrays(*(x[part] for x in (data, samples, weights))) for part in (np.s_[:7], np.s_[7:])
    ]
    added = {name: parts[0][name] + parts[1][name] for name in parts[0]}
    kept = weights > 0
    expected = frechet_distance(arrays(data[kept], samples[kept], weights[kept]))
    assert np.isclose(frechet_distance(added), expected)


def test_without_examples_there_is_no_distance():
    data, samples = vectors()
    assert np.isnan(frechet_distance(arrays(data, samples, np.zeros(N))))
