"""What a sweep says of its trials: lines, tables, and JSON for programs."""

import pytest

from lingo.study import report
from lingo.study.metric import Metric
from lingo.study.trial import Result

METRIC = Metric("heldout/loss", "min")


@pytest.fixture
def trials(request_for):
    request = request_for("a.x=1,2,3,4")
    return [request.trial(number, {"a.x": str(number + 1)}) for number in range(4)]


@pytest.mark.parametrize(
    ("result", "last_line", "expected"),
    [
        (("done", 3.25, 300, 0), "", "done, heldout/loss 3.25 at step 300"),
        (("done", 3.25, 300), "", "done before, heldout/loss 3.25 at step 300"),
        (("done", None, 3, 0), "", "done, no finite heldout/loss"),
        (("failed", 1.0, 3, 8), "it diverged", "failed with exit code 8: it diverged"),
        (("failed", None, None, -9), "", "failed with exit code -9: no output"),
        (("stopped", None, 3, 130), "", "stopped; the same command resumes it"),
    ],
)
def test_a_line_says_what_came_of_a_trial(trials, result, last_line, expected):
    assert (
        report.describe_result(Result(trials[2], *result), METRIC, last_line=last_line) == expected
    )


def test_progress_has_the_best_trial_and_the_time_that_is_left(trials):
    def progress(*results):
        return report.describe_progress(results, num_trials=4, num_workers=2)

    first = Result(trials[1], "done", 3.25, 300, 0, seconds=60.0)
    second = Result(trials[0], "done", 3.5, 300, 0, seconds=80.0)
    assert progress(first) == "; best 001 3.25; ETA 0:01:30"
    assert progress(first, second) == "; best 001 3.25; ETA 0:01:10"
    assert progress(first, *[second] * 3) == "; best 001 3.25"


def test_trials_that_were_done_before_do_not_count_for_the_time_that_is_left(trials):
    result = Result(trials[0], "done", 3.5, 300)
    assert report.describe_progress([result], num_trials=4, num_workers=2) == "; best 000 3.5"


def test_no_trial_is_best_without_a_result(trials):
    failed = Result(trials[0], "failed", 1.0, 3, 8)
    assert report.describe_progress([failed], num_trials=4, num_workers=2) == ""
    assert report.results_json([failed], METRIC)["best"] is None


def test_results_are_written_for_programs_the_best_first(trials):
    results = [Result(trials[1], "done", 2.0, 7, 0), Result(trials[0], "failed", 1.0, 3, 8)]
    content = report.results_json(results, Metric("loss/total", "max"))
    assert content["best"] == "001-x-2"
    assert (content["metric"], content["goal"]) == ("loss/total", "max")
    assert content["trials"][1] == {
        "number": 0,
        "name": "000-x-1",
        "values": {"a.x": "1"},
        "state": "failed",
        "value": 1.0,
        "step": 3,
        "exit_code": 8,
        "command": trials[0].command,
    }


@pytest.fixture
def make_results(request_for):
    """Makes results of points: (values, metric or None)."""
    request = request_for("a.rate=1", "b.rate=1", "c=x", "seed=1")

    def make(*rows):
        return [
            Result(request.trial(i, point), "failed" if value is None else "done", value, 7)
            for i, (point, value) in enumerate(rows)
        ]

    return make


def test_the_table_has_a_row_a_trial_and_a_column_a_value(make_results):
    points = [{"a.rate": "0.1", "b.rate": "2", "c.d": "xyz"}, {"a.rate": "1", "b.rate": "2"}]
    done, failed = make_results((points[0], 1.5), (points[1] | {"c.d": "x"}, None))
    assert report.trial_table([done, failed._replace(step=None)], METRIC) == [
        "trial  heldout/loss  step  a.rate  b.rate  d    state",
        "000    1.5           7     0.1     2       xyz  done",
        "001    -             -     1       2       x    failed",
    ]


def test_seeds_of_a_configuration_are_one_row_and_the_best_mean_is_first(make_results):
    values = {("1", "0"): 2.0, ("1", "1"): 4.0, ("3", "0"): 1.5}
    values |= dict.fromkeys([("3", "1"), ("2", "0"), ("2", "1")])
    rows = (({"a.rate": rate, "seed": seed}, v) for (rate, seed), v in values.items())
    results = make_results(*rows)
    assert report.seed_table(results, METRIC) == [
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
def test_there_is_no_table_of_seeds_without_several_seeds_and_points(make_results, points):
    assert report.seed_table(make_results(*((point, 1.0) for point in points)), METRIC) == []
