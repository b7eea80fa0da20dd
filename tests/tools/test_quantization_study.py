"""The page of the study of 8 bits shows what is in the file of its results."""

from __future__ import annotations

import time
from typing import cast

import pytest

from lingo.config.params import Params
from lingo.decode.text import Continuation
from lingo.trainer.trained import Trained
from tools.studies import quantization
from tools.studies.__main__ import RESULTS
from tools.studies.page import fill_tables
from tools.studies.trial import Results, Trial, identity, over_seeds

LEVELS = {"LeNet-5": 1, "ResNet": 4}
"""By how many levels the furthest logit of a network in 8 bits is from training's."""


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(RESULTS / "quantization.jsonl")


def test_every_line_is_of_an_experiment_as_it_is(results: Results) -> None:
    assert [result.trial for result in results.stale] == []
    wanted = {identity(trial) for trial in quantization.trials(results)}
    assert {result.digest for result in results} <= wanted


def test_the_tables_are_those_of_the_results(results: Results) -> None:
    page = quantization.PAGE.read_text()
    assert page == fill_tables(page, quantization.tables(results))


def test_8_bits_lose_what_the_page_promises_at_most(results: Results) -> None:
    for name, (plain, trained) in quantization.IMAGES.items():
        for one, other in zip(*map(_seeds, (plain, trained)), strict=True):
            lost = _metric(results, one, "none/accuracy") - _metric(results, other, "int8/accuracy")
            assert lost <= 0.01
            assert _metric(results, other, "int8/levels") <= LEVELS[name]
            assert _metric(results, other, "int8/same_labels") >= 0.99
    for trial in _seeds(quantization.IMAGES["LeNet-5"][1]):
        assert _metric(results, trial, "int8/bytes") < 0.3 * 3_058_724
    for experiment in quantization.TEXT:
        for trial in filter(results.get, _seeds(experiment)):
            bits = [_metric(results, trial, f"{form}/bits") for form in quantization.WEIGHTS]
            assert bits[1] - bits[0] <= 0.01


def test_the_time_of_a_token_is_over_those_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Model:
        def decode(self, prompts: list[str], decoding: Params, *, seed: int) -> list:
            nonlocal now
            del prompts
            assert decoding.max_tokens == quantization.TIMED_TOKENS
            num_tokens = seed + 1  # each text ends early
            now += 0.25 * num_tokens if seed else 100.0  # it compiles
            return [[Continuation("", [0] * seed, [0.0] * num_tokens, 0.0, is_ended=True)]]

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    assert quantization.seconds_a_token(cast(Trained, Model())) == 0.25


def _seeds(experiment: str) -> list[Trial]:
    return over_seeds(Trial(experiment))


def _metric(results: Results, trial: Trial, tag: str) -> float:
    value = results.metric(trial, tag)
    assert value is not None
    return value
