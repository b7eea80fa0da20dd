"""The page of the study of dialogs shows what is in the file of its results."""

from __future__ import annotations

import pytest

from tasks.dialog.turns import ATTRIBUTES
from tools.studies import dialog
from tools.studies.__main__ import RESULTS
from tools.studies.page import NONE, fill_tables
from tools.studies.trial import Result, Results, identity


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(RESULTS / "dialog.jsonl")


def test_every_line_is_of_an_experiment_as_it_is(results: Results) -> None:
    assert [result.trial for result in results.stale] == []
    wanted = {identity(trial) for trial in dialog.trials(results)}
    assert {result.digest for result in results} <= wanted


def test_the_tables_are_those_of_the_results(results: Results) -> None:
    page = dialog.PAGE.read_text()
    assert page == fill_tables(page, dialog.tables(results))


def test_a_cell_is_over_the_seeds_that_have_a_result(tmp_path) -> None:
    results = Results(tmp_path / "dialog.jsonl")
    for seed, area in ((0, 0.5), (2, 0.7)):
        trial = dialog.models(seed).without_tools
        metrics = {f"heldout_facts/auc/{ATTRIBUTES[0]}": area}
        results.add(Result(trial, identity(trial), "done", 1, metrics, 1.0, "commit"))
    _, _, first, *others = dialog.tables(results)["ratings"]
    assert first == f"| sensible | held-out facts | 0.600 (0.500 to 0.700) | {NONE} | {NONE} |"
    assert len(others) == 7
