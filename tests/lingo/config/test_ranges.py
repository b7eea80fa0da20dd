"""Ranges of fields: what is refused names the field, the value and what was wanted."""

from __future__ import annotations

import pytest

from lingo.config import ranges
from lingo.config.params import Configurable, ParamError
from lingo.optim.schedule import ConstantRate, Schedule


class Toy(Configurable):
    """Fields of every sort."""

    number: float = 1.0  # a number
    optional: float | None = None  # a number or nothing
    count: int = 1  # a whole number
    numbers: tuple[float, ...] = ()  # several
    nested: tuple[tuple[Schedule, int], ...] = ()  # with parameters inside


def toy(**values):
    return Toy.params(**values)


def finite(p, *names):
    ranges.check_finite(p)


def at_most_3(p, *names):
    ranges.check_at_most(p, 3, *names)


def test_what_fits_is_left_alone():
    p = toy(number=3.4028234e38, numbers=[0.0, 1e-45], nested=[(ConstantRate, 3)])
    ranges.check_finite(p)
    ranges.check_not_negative(p, "numbers", "optional", "count")
    ranges.check_positive(p, "number", "optional")
    ranges.check_fraction(toy(number=0.0), "number", "optional")
    ranges.check_at_most(toy(count=3), 3, "count", "optional")


@pytest.mark.parametrize(
    ("check", "values", "message"),
    [
        (finite, {"number": 1e39}, r"number=1e\+39 is not finite in float32"),
        (finite, {"numbers": [1.0, -1e300]}, r"numbers=-1e\+300 is not finite in float32"),
        (ranges.check_not_negative, {"number": -0.5}, "number=-0.5 is negative$"),
        (ranges.check_not_negative, {"numbers": [1.0, -1.0]}, r"numbers=\(1.0, -1.0\) is negative"),
        (ranges.check_positive, {"count": 0}, "count=0 is not positive$"),
        (
            ranges.check_positive,
            {"optional": 0.0},
            "optional=0.0 is not positive; None is its default",
        ),
        (at_most_3, {"count": 4}, "count=4 is more than 3$"),
        (ranges.check_fraction, {"number": 1.0}, r"number=1.0 is not in \[0, 1\)"),
    ],
)
def test_what_is_out_of_range_is_refused(check, values, message):
    with pytest.raises(ParamError, match=message):
        check(toy(**values), *values)
