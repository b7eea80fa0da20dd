"""The page of the study of large batches shows what is in the file of its results."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import lingo
from lingo.layers import BatchNorm
from tools.studies import large_batch
from tools.studies.__main__ import RESULTS
from tools.studies.page import fill_tables
from tools.studies.trial import Result, Results, Trial, identity


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(RESULTS / "large_batch.jsonl")


@pytest.fixture
def none(tmp_path: Path) -> Results:
    return Results(tmp_path / "none.jsonl")


def test_every_line_is_of_an_experiment_as_it_is(results: Results) -> None:
    assert [result.trial for result in results.stale] == []
    wanted = {identity(trial) for trial in large_batch.trials(results)}
    assert {result.digest for result in results} <= wanted


def test_the_tables_are_those_of_the_results(results: Results) -> None:
    page = large_batch.PAGE.read_text()
    assert page == fill_tables(page, large_batch.tables(results))


def test_rates_grow_with_the_batch_and_are_a_factor_of_four_apart(none: Results) -> None:
    for optimizer, rate in large_batch.RATES.items():
        for batch in large_batch.BATCHES:
            tried = large_batch.search(optimizer, batch).tried
            rates = [lingo.get(one.experiment).optimizer.learning_rate for one in tried]
            assert rates[-2:] == pytest.approx([rate * batch / 64, 4 * rate * batch / 64], rel=1e-3)
            assert all(b == pytest.approx(4 * a, rel=1e-3) for a, b in pairwise(rates))
            assert lingo.get(tried[0].experiment).train_input.batch_size == batch
    assert len({identity(trial) for trial in large_batch.trials(none)}) == 38


def test_groups_are_one_image_some_images_or_the_batch() -> None:
    for optimizer in large_batch.RATES:
        for group in large_batch.GROUPS.values():
            params = lingo.get(large_batch.grouped(optimizer, group)[0].experiment)
            assert {norm.statistics_over for norm in params.all(BatchNorm)} == {group}
            params.build()


def test_both_momenta_have_the_best_rate_of_the_unscaled_one(none: Results) -> None:
    assert large_batch.with_momentum("scaled", 512, none) == []
    tried = large_batch.search("lars", 512).tried
    for trial, accuracy in zip(tried, (0.2, 0.9, 0.4), strict=True):
        none.add(_result(trial, accuracy))
    for name, sums in large_batch.MOMENTA.items():
        found = large_batch.with_momentum(name, 512, none)
        assert [trial.seed for trial in found] == [0, 1, 2]
        assert {trial.experiment for trial in found} == {tried[1].experiment}
        assert lingo.get(found[0].experiment, *found[0].overrides).optimizer.accumulate == sums


def _result(trial: Trial, accuracy: float) -> Result:
    return Result(trial, identity(trial), "done", 9, {"accuracy": accuracy}, 1.0, "abc")
