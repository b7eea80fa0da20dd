"""The page of the study of detection shows what is in the file of its results."""

from __future__ import annotations

import pytest

from tools.studies import detection
from tools.studies.__main__ import RESULTS
from tools.studies.page import fill_tables
from tools.studies.trial import Results, identity, over_seeds


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(RESULTS / "detection.jsonl")


def test_every_line_is_of_an_experiment_as_it_is(results: Results) -> None:
    assert [result.trial for result in results.stale] == []
    wanted = {identity(trial) for trial in detection.trials(results)}
    assert {result.digest for result in results} <= wanted


def test_the_tables_are_those_of_the_results(results: Results) -> None:
    page = detection.PAGE.read_text()
    assert page == fill_tables(page, detection.tables(results))


def test_each_seed_finds_more_than_half_of_all_digits(results: Results) -> None:
    for trial in over_seeds(detection.SCENES):
        assert (results.metric(trial, "ap") or 0.0) > 0.5


def test_a_curve_ends_with_the_results_of_the_last_step(results: Results) -> None:
    for name in detection.CURVES:
        points = detection.curve(results, name)
        assert [*points] == list(range(60, 601, 60))
        last = [
            100 * (results.metric(trial, name) or 0.0) for trial in over_seeds(detection.SCENES)
        ]
        assert points[600] == last
