"""The page of the study of image models shows what is in the file of its results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.studies import images
from tools.studies.__main__ import RESULTS
from tools.studies.page import fill_tables
from tools.studies.trial import Result, Results, Trial, identity, over_seeds


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(RESULTS / "images.jsonl")


def test_every_line_is_of_an_experiment_as_it_is(results: Results) -> None:
    assert [result.trial for result in results.stale] == []
    wanted = {identity(trial) for trial in images.trials(results)}
    assert {result.digest for result in results} <= wanted


def test_the_tables_are_those_of_the_results(results: Results) -> None:
    page = images.PAGE.read_text()
    assert page == fill_tables(page, images.tables(results))


def test_seeds_follow_the_best_learning_rate_of_an_optimizer(tmp_path: Path) -> None:
    results = Results(tmp_path / "none.jsonl")
    low, middle, high = images.search("lars", 256).tried
    assert images.search("lars", 256).best(results) is None
    for trial, accuracy in ((low, 0.2), (middle, 0.9), (high, 0.4)):
        results.add(_result(trial, accuracy))
    assert images.search("lars", 256).best(results) == middle
    assert set(over_seeds(middle)) <= set(images.trials(results))
    assert not set(over_seeds(high)[1:]) & set(images.trials(results))


def test_a_curve_has_the_accuracies_that_are_there(tmp_path: Path) -> None:
    results = Results(tmp_path / "none.jsonl")
    tried = images.search("lars", 256).tried
    for trial in tried:
        results.add(_result(trial, 0.0))
    assert images.curve(results, "lars") == {256: (0.0, 0.0, 0.0)}
    for trial in tried:
        results.add(_result(trial, 0.0)._replace(state="diverged"))
    assert images.curve(results, "lars") == images.curve(results, "adam") == {}


def _result(trial: Trial, accuracy: float) -> Result:
    digest = identity(trial)
    return Result(trial, digest, "done", 9, {"accuracy": accuracy}, 1.0, "abc")
