"""Splits of layers over stages: the best of all, in time for deep networks."""

import itertools
import math
import random
import time
from fractions import Fraction

import pytest

from lingo.config.params import ParamError
from lingo.mesh.pipeline.partition import partition


def sizes(parts):
    return [len(part) for part in parts]


def measures(costs, parts):
    """Returns the largest sum of a part and the sum of squares of the sums, exact."""
    sums = [sum((Fraction(costs[i]) for i in part), Fraction(0)) for part in parts]
    return max(sums), sum((s * s for s in sums), Fraction(0))


def best(costs, num_parts):
    """Returns the least measures of all splits."""
    found = []
    for cuts in itertools.combinations(range(1, len(costs)), num_parts - 1):
        ends = itertools.pairwise([0, *cuts, len(costs)])
        found.append(measures(costs, [range(start, end) for start, end in ends]))
    return min(found)


def assert_is_split(parts, num_layers, num_parts):
    assert len(parts) == num_parts
    assert all(len(part) > 0 for part in parts)
    assert [i for part in parts for i in part] == list(range(num_layers))


@pytest.mark.parametrize("seed", range(4))
def test_a_split_is_the_best_of_all_by_both_measures(seed):
    rng = random.Random(seed)
    for _ in range(50):
        num_layers = rng.randint(1, 11)
        num_parts = rng.randint(1, num_layers)
        times = [rng.uniform(1e-6, 1e-3) for _ in range(11)]
        kind = rng.choice([[0, 1, 2], [1, 2, 3, 5], [1, 1, 10], [0.1, 0.3], [1e9, 7e11], times])
        costs = [rng.choice(kind) for _ in range(num_layers)]
        parts = partition(costs, num_parts)
        assert_is_split(parts, num_layers, num_parts)
        largest, squares = best(costs, num_parts)
        assert measures(costs, parts)[0] == largest
        assert math.isclose(measures(costs, parts)[1], squares, rel_tol=1e-12)


def test_equal_layers_are_split_equally():
    for cost in (1, 0.1, 5e9, 0):
        assert sizes(partition([cost] * 8, 4)) == [2, 2, 2, 2]
        assert sizes(partition([cost] * 7, 3)) == [2, 2, 3]
        assert set(sizes(partition([cost] * 1663, 128))) == {12, 13}


@pytest.mark.parametrize(
    "cost", [lambda i: 1, math.sin, lambda i: 1.01**i, lambda i: 500 ** (i == 9)]
)
def test_gpipes_deepest_transformer_is_split_in_under_half_a_second(cost):
    costs = [abs(cost(i)) for i in range(1663)]
    start = time.process_time()
    parts = partition(costs, 128)
    assert time.process_time() - start < 0.5
    assert_is_split(parts, 1663, 128)


@pytest.mark.parametrize("cost", [-2, math.nan, math.inf])
def test_costs_that_are_no_amounts_are_refused(cost):
    with pytest.raises(ParamError, match=f"layer 1 costs {cost}"):
        partition([1, cost], 1)
