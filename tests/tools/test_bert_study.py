"""The page of the study of BERT shows what is in the file of its results."""

from __future__ import annotations

import pathlib

import pytest

import lingo
from tools.studies import bert
from tools.studies.__main__ import RESULTS
from tools.studies.page import fill_tables
from tools.studies.trial import SEEDS, Result, Results, Trial, identity


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(RESULTS / "bert.jsonl")


@pytest.fixture
def written(tmp_path: pathlib.Path) -> Results:
    return Results(tmp_path / "bert.jsonl")


def add(results: Results, trial: Trial, **metrics: float) -> None:
    results.add(Result(trial, identity(trial), "done", 9, metrics, 60.0, "commit"))


def add_rates(results: Results, optimizer: str, batch: int, *accuracies: float) -> list[Trial]:
    tried = [*bert.search(optimizer, batch).tried]
    for trial, accuracy in zip(tried, accuracies, strict=True):
        add(results, trial, masked_accuracy=accuracy, masked_loss=2.5, next_sentence_accuracy=0.5)
    return tried


def cells(lines: list[str]) -> list[list[str]]:
    rows = [line for line in lines[2:] if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_every_line_is_of_an_experiment_as_it_is(results: Results) -> None:
    assert [result.trial for result in results.stale] == []
    wanted = {identity(trial) for trial in bert.trials(results)}
    assert {result.digest for result in results} <= wanted


def test_the_tables_are_those_of_the_results(results: Results) -> None:
    page = bert.PAGE.read_text()
    assert page == fill_tables(page, bert.tables(results))


def test_each_optimizer_has_three_rates_for_each_batch_and_as_many_rows(written: Results) -> None:
    wanted = [*bert.trials(written)]
    num_pairs = len(bert.RATES) * len(bert.BATCHES)
    num_tasks = len({one.experiment for one in bert.MEASURES.values()})
    num_tuned = (2 * num_tasks + 1) * len(SEEDS)  # with the pre-training
    assert len({identity(trial) for trial in wanted}) == len(wanted) == 3 * num_pairs + num_tuned
    for optimizer in bert.RATES:
        for batch in bert.BATCHES:
            cfg = lingo.get(bert.search(optimizer, batch).tried[0].experiment)
            assert type(cfg.optimizer.build()).__name__.lower() == optimizer
            assert cfg.train_input.batch_size == batch
            rows = bert.EPOCHS * 60_500
            assert cfg.max_steps * batch == pytest.approx(rows, abs=batch / 2)


def test_seeds_follow_the_best_rate_alone(written: Results) -> None:
    _, best, worst = add_rates(written, "lamb", 256, 0.2, 0.4, 0.3)
    wanted = [*bert.trials(written)]
    assert {best._replace(seed=seed) for seed in SEEDS} <= {*wanted}
    assert not {worst._replace(seed=seed) for seed in SEEDS[1:]} & {*wanted}


def test_an_interrupted_study_wants_no_trial_twice(written: Results, tmp_path) -> None:
    add_rates(written, "adamw", 4096, 0.2, 0.4, 0.3)
    again = Results(tmp_path / "bert.jsonl")
    left = [trial for trial in bert.trials(again) if again.get(trial) is None]
    assert len(left) == len([*bert.trials(written)]) - 4  # the best is wanted in both roles


def test_the_best_rate_has_mean_and_range_and_a_picture(written: Results, tmp_path) -> None:
    assert not any(line.startswith("!") for line in bert.tables(written)["best"])
    bert.draw(written, tmp_path)
    assert not (tmp_path / bert.PICTURE).exists()
    best = add_rates(written, "lamb", 256, 0.2, 0.4, 0.3)[1]
    add(
        written,
        best._replace(seed=1),
        masked_accuracy=0.6,
        masked_loss=1.5,
        next_sentence_accuracy=0.7,
    )
    lines = bert.tables(written)["best"]
    missing = ", 2 of 3 seeds"
    assert cells(lines)[2] == [
        *("256", "LAMB", "0.005", f"50.0 (40.0 to 60.0){missing}"),
        *(f"2.000 (1.500 to 2.500){missing}", f"60.0 (50.0 to 70.0){missing}"),
        f"60 (60 to 60){missing}",
    ]
    assert cells(bert.tables(written)["rates_lamb"])[1] == ["256", "20.0", "40.0", "30.0"]
    assert lines[-1] == f"![accuracy over batch size](images/{bert.PICTURE})"
    bert.draw(written, tmp_path)
    assert (tmp_path / bert.PICTURE).stat().st_size > 0


def test_a_task_begins_with_the_pre_training_of_its_seed(written: Results) -> None:
    starts = {(one.seed, one.start.seed) for one in bert.trials(written) if one.start}
    assert starts == {(seed, seed) for seed in SEEDS}
    pretrained = bert.fine_tunings("lm.bert.tiny_questions", pretrained=True)
    anew = bert.fine_tunings("lm.bert.tiny_questions", pretrained=False)
    for trial, shares in zip(pretrained, (0.5, 0.7, 0.6), strict=True):
        add(written, trial, f1=shares, exact_match=0.25)
    add(written, anew[0], f1=0.3, exact_match=0.1)
    rows = cells(bert.tables(written)["tasks"])
    assert rows[0][1:] == ["30.0, 1 of 3 seeds", "60.0 (50.0 to 70.0)"]
    assert rows[1][1:] == ["10.0, 1 of 3 seeds", "25.0 (25.0 to 25.0)"]
    assert {cell for row in rows[2:] for cell in row[1:]} == {"-"}
