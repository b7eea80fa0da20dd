"""The page of the study of experts shows what is in the file of its results."""

from __future__ import annotations

import pathlib

import pytest

from tools.studies import switch
from tools.studies.__main__ import RESULTS
from tools.studies.page import fill_tables
from tools.studies.trial import SEEDS, Result, Results, Trial, identity


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(RESULTS / "switch.jsonl")


def test_every_line_is_of_an_experiment_as_it_is(results: Results) -> None:
    assert [result.trial for result in results.stale] == []
    wanted = {identity(trial) for trial in switch.trials(results)}
    assert {result.digest for result in results} <= wanted
    assert len(wanted) == (4 + 3 + 1) * len(SEEDS)


def test_the_tables_are_those_of_the_results(results: Results) -> None:
    page = switch.PAGE.read_text()
    assert page == fill_tables(page, switch.tables(results))


def test_steps_and_shares_are_against_the_dense_model_of_the_same_seed(
    tmp_path: pathlib.Path,
) -> None:
    results = Results(tmp_path / "switch.jsonl")

    def add(trial: Trial, *losses: float) -> None:
        metrics = {f"loss@{200 * (i + 1)}": loss for i, loss in enumerate(losses)}
        metrics |= {"loss": losses[-1], "seconds": 0.5}
        results.add(Result(trial, identity(trial), "done", 600, metrics, 1.0, "commit"))

    for seed, shift in enumerate((0.0, 0.5)):
        add(switch.sized(1)._replace(seed=seed), 4.0, 3.5, 3.0 + shift)
        add(switch.sized(16)._replace(seed=seed), 3.5, 2.9, 2.0 + shift)
        add(switch.distilled("soft labels", seed), 4.0, 3.5, 2.8 + shift)
    tables = switch.tables(results)
    found = tables["sizes"][4].split(" | ")
    assert found[1] == "2.250 (2.000 to 2.500), 2 of 3 seeds"
    assert found[2] == "300 (200 to 400), 2 of 3 seeds"
    assert tables["recipes"][2].split(" | ")[2].startswith("20 (20 to 20), 2 of 3 seeds")
