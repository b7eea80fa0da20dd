"""What came of a sweep, in columns."""

from __future__ import annotations

import pytest

from lingo.study import table
from lingo.study.metric import Metric
from lingo.study.trial import Result

METRIC = Metric("heldout/loss", "min")


@pytest.fixture
def results(request_for):
    """Makes results of points: (values, metric or None)."""
    request = request_for("a.rate=1", "b.rate=1", "c=x", "seed=1")

    def make(*rows):
        return [
            Result(request.trial(i, point), "failed" if value is None else "done", value, 7)
            for i, (point, value) in enumerate(rows)
        ]

    return make


def test_the_table_has_a_row_a_trial_and_a_column_a_value(request_for) -> None:
    request = request_for("a.rate=1", "b.rate=1", "c=x")
    results = [
        Result(request.trial(1, {"a.rate": "0.1", "b.rate": "2", "c.d": "xyz"}), "done", 1.5, 7),
        Result(request.trial(0, {"a.rate": "1", "b.rate": "2", "c.d": "x"}), "failed", None, None),
    ]
    assert table.table(results, METRIC) == [
        "trial  heldout/loss  step  a.rate  b.rate  d    state",
        "001    1.5           7     0.1     2       xyz  done",
        "000    -             -     1       2       x    failed",
    ]


def test_seeds_of_a_configuration_are_one_row_and_the_best_mean_is_first(results) -> None:
    found = results(
        ({"a.rate": "1", "seed": "0"}, 2.0),
        ({"a.rate": "1", "seed": "1"}, 4.0),
        ({"a.rate": "3", "seed": "0"}, 1.5),
        ({"a.rate": "3", "seed": "1"}, None),
        ({"a.rate": "2", "seed": "0"}, None),
        ({"a.rate": "2", "seed": "1"}, None),
    )
    assert table.over_seeds(found, METRIC) == [
        "rate  mean heldout/loss  std      min  max  finite",
        "3     1.5                -        1.5  1.5  1 of 2",
        "1     3                  1.41421  2    4    2 of 2",
        "2     -                  -        -    -    0 of 2",
    ]


@pytest.mark.parametrize(
    "points",
    [
        [{"seed": "0"}, {"seed": "1"}],
        [{"a.rate": "1"}, {"a.rate": "2"}],
        [{"a.rate": "1", "seed": "0"}, {"a.rate": "2", "seed": "0"}],
    ],
    ids=["seeds alone", "no seeds", "one seed"],
)
def test_where_seeds_tell_nothing_there_is_no_such_table(results, points) -> None:
    assert table.over_seeds(results(*((point, 1.0) for point in points)), METRIC) == []
