"""Shares that change: counts follow their expectation, parts have no gaps, nothing is replayed."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.choice_tree import ChoiceTree, Stretch, constant_shares, stretches
from lingo.data.mixture import Mixture
from tests.lingo.data.test_mixture import Numbers

POINTS = {
    "two": {0: (1.0, 0.0), 3000: (0.0, 1.0)},
    "three": {
        0: (4.0, 1.0, 0.0),
        500: (1.0, 1.0, 1.0),
        501: (0.1, 0.1, 5.0),
        4000: (0.0, 1.0, 1.0),
    },
    "rare": {0: (1.0, 1e-3, 0.5, 0.5, 1e-3), 2000: (1e-3, 1.0, 1e-3, 1e-3, 0.2)},
    "short": {0: (1.0, 2.0), 3: (2.0, 1.0), 5: (1.0, 1.0)},
}


def expected_counts(parts: list[Stretch], num: int) -> np.ndarray:
    """Returns the sum of the shares of the first 0, 1, ... examples, [num + 1, K], by hand."""
    shares = np.empty((num, len(parts[0].shares)))
    for stretch in parts:
        shares[stretch.begin :] = np.array(stretch.shares) / sum(stretch.shares)
    return np.concatenate([np.zeros_like(shares[:1]), np.cumsum(shares, axis=0)])


@pytest.mark.parametrize("curve", ["linear", "exponential"])
@pytest.mark.parametrize("name", POINTS)
def test_each_part_has_had_its_sum_of_shares_at_every_moment(name, curve):
    points, num = POINTS[name], 6000
    if curve == "exponential":
        points = {n: tuple(w + 1e-3 for w in weights) for n, weights in points.items()}
    found = stretches(points, curve=curve)
    choice = ChoiceTree(found).choose(np.arange(num))
    wanted = expected_counts(found, num)
    levels = np.ceil(np.log2(wanted.shape[1]))
    for part in range(wanted.shape[1]):
        here = choice.part == part
        numbers = choice.number[here]
        np.testing.assert_array_equal(numbers, np.arange(len(numbers)))
        counts = np.concatenate([[0], np.cumsum(here)])
        assert np.abs(counts - wanted[:, part]).max() <= levels - 0.5 + 0.01


@pytest.mark.parametrize("num_parts", [3, 5, 6])
def test_no_example_comes_from_a_part_whose_share_is_zero(num_parts):
    draw, num = np.random.default_rng(0), 500
    for _ in range(100):
        weights = draw.uniform(size=(2, num_parts)) * (draw.uniform(size=num_parts) < 0.6)
        weights[:, 0] += 0.01
        found = stretches({0: weights[0], int(draw.integers(1, 400)): weights[1]}, curve="linear")
        choice, wanted = ChoiceTree(found).choose(np.arange(num)), expected_counts(found, num)
        assert (np.diff(wanted, axis=0)[np.arange(num), choice.part] > 0).all()


@pytest.mark.parametrize("name", POINTS)
def test_an_example_needs_no_earlier_example(name):
    tree = ChoiceTree(stretches(POINTS[name], curve="linear"))
    whole = tree.choose(np.arange(5000))
    for start in (0, 499, 2990, 4990):
        part, number = tree.choose(np.arange(start, start + 10))
        np.testing.assert_array_equal(part, whole.part[start : start + 10])
        np.testing.assert_array_equal(number, whole.number[start : start + 10])


def test_a_curve_goes_through_the_shares_that_are_given():
    found = stretches({0: (1.0, 3.0), 6400: (3.0, 1.0)}, curve="linear")
    assert [stretch.begin for stretch in found] == [*range(0, 6401, 100)]
    middles = [stretch.begin + 50 for stretch in found[:-1]]
    shares = [stretch.shares[0] for stretch in found]
    np.testing.assert_allclose(shares[:-1], 0.25 + 0.5 * np.array(middles) / 6400)
    assert shares[-1] == 0.75
    shares = [
        stretch.shares
        for stretch in stretches({0: (1.0, 4.0), 64: (4.0, 1.0)}, curve="exponential")
    ]
    ratios = np.array([one / other for one, other in shares[:-1]])
    np.testing.assert_allclose(ratios, 0.25 * 16 ** ((np.arange(64) + 0.5) / 64))


def test_stretches_of_equal_shares_are_one_stretch():
    shares = (0.2, 0.5, 0.3)
    pieces = [Stretch(begin, shares) for begin in (0, 10, 1000)]
    one, many = (ChoiceTree(p).choose(np.arange(3000)) for p in (constant_shares(shares), pieces))
    for part in range(3):
        counts = [np.cumsum(choice.part == part) for choice in (one, many)]
        assert np.abs(counts[0] - counts[1]).max() <= 1


def test_a_billion_examples_later_the_shares_are_those_of_the_last_point():
    tree = ChoiceTree(stretches(POINTS["three"], curve="linear"))
    first = 10**12
    found = tree.choose(np.arange(first, first + 1000))
    assert np.bincount(found.part, minlength=3).tolist() == [0, 500, 500]
    number = found.number[found.part == 1]
    assert number[0] == pytest.approx(first / 2, rel=1e-6)


PARTS = {"a": Numbers.params(part=0), "b": Numbers.params(part=1)}
RISING = ((0, {"a": 1.0, "b": 0.0}), (800, {"a": 0.0, "b": 1.0}))


def test_a_mixture_changes_its_shares():
    mixture = Mixture.params(inputs=PARTS, batch_size=8, weights_at=RISING).build()
    first, middle, last = (mixture.batch(step)["part"] for step in (0, 50, 100))
    assert first.sum() == 0
    assert middle.sum() == 4
    assert last.sum() == 8
    assert mixture.shares[0] > 0.99
    assert mixture.origins(np.array([799])) == ["b/39:9"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weights_at": RISING[1:]}, r"weights_at has \[800\]: numbers of examples rise from 0"),
        ({"weights_at": (RISING[0], *RISING)}, "numbers of examples rise from 0"),
        ({"weights_at": ((0, {"a": 1.0}),)}, r"weights_at\[0\] are for 'a', but inputs are"),
        ({"weights_at": ((0, {"a": 0.0, "b": 0.0}),)}, "must be not negative, and one positive"),
        ({"weights_at": RISING, "curve": "exponential"}, "must be positive"),
        ({"weights_at": RISING, "weights": {"a": 1.0, "b": 1.0}}, "both given"),
        ({"weights_at": RISING, "temperature": 2.0}, "without weights"),
        ({"weights_at": RISING, "repeat": False}, "leave out the shares"),
    ],
)
def test_settings_of_no_use_are_refused(fields, message):
    with pytest.raises(ParamError, match=message):
        Mixture.params(inputs=PARTS, batch_size=8, **fields).build()
