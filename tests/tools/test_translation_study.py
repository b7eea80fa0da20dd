"""The page of the study of translation shows what is in the file of its results."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from lingo.data.prompt import Prompt, TextPair
from lingo.metrics.text import text_scores
from params.mt.catalogs import LANGUAGES
from tools.studies import translation
from tools.studies.__main__ import RESULTS
from tools.studies.page import fill_tables
from tools.studies.trial import Result, Results, identity, over_seeds


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(RESULTS / "translation.jsonl")


def test_every_line_is_of_an_experiment_as_it_is(results: Results) -> None:
    assert [result.trial for result in results.stale] == []
    wanted = {identity(trial) for trial in translation.trials(results)}
    assert {result.digest for result in results} <= wanted
    assert len(wanted) == 3 * 3 + 4 + 2, "a batch of 32 rows is the dense model itself"


def test_the_tables_are_those_of_the_results(results: Results) -> None:
    page = translation.PAGE.read_text()
    assert page == fill_tables(page, translation.tables(results))


def test_a_third_is_the_mean_of_its_languages_and_a_cell_the_mean_of_seeds(
    tmp_path: pathlib.Path,
) -> None:
    results = Results(tmp_path / "translation.jsonl")
    for seed, trial in enumerate(over_seeds(translation.MODELS["dense"])[:2]):
        metrics = {f"{one}/chrf": float(i + seed) for i, one in enumerate(LANGUAGES["low"])}
        results.add(Result(trial, identity(trial), "done", 1, metrics, 7200.0, "commit"))
    dense = translation.tables(results)["thirds"][2].split(" | ")
    assert dense[6:] == ["2.0 (1.5 to 2.5), 2 of 3 seeds", "2.0 (2.0 to 2.0), 2 of 3 seeds |"]
    assert dense[1:6] == ["-"] * 5


def test_scores_leave_out_pairs_with_equal_sides() -> None:
    prompt = Prompt(np.zeros(1, np.int32))
    pairs = [TextPair(prompt, "Ja", "Yes"), TextPair(prompt, "OK", "OK")]
    found = translation.score_pairs("de", pairs, ["No", "OK"])
    assert found["de/chrf"] == text_scores(["No", "OK"], ["Yes", "OK"], ["chrf"])["chrf"]
    assert found["de/unequal/chrf"] == text_scores(["No"], ["Yes"], ["chrf"])["chrf"]
