"""The page of the study of transfer shows what is in the file of its results."""

from __future__ import annotations

import json
import pathlib

import pytest

from lingo.config import registry
from lingo.contract import Experiment, build_experiment
from lingo.learner.state import slot_shapes
from params.lm.st_moe import PARTS, TASKS
from tools.studies import transfer
from tools.studies.__main__ import RESULTS
from tools.studies.page import fill_tables
from tools.studies.trial import SEEDS, Result, Results, Trial, identity


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(RESULTS / "transfer.jsonl")


@pytest.fixture
def written(tmp_path: pathlib.Path) -> Results:
    return Results(tmp_path / "transfer.jsonl")


def add(results: Results, trial: Trial, **metrics: float) -> None:
    results.add(Result(trial, identity(trial), "done", 600, metrics, 1.0, "commit"))


def test_every_line_is_of_an_experiment_as_it_is(results: Results) -> None:
    assert [result.trial for result in results.stale] == []
    wanted = {identity(trial) for trial in transfer.trials(results)}
    assert {result.digest for result in results} <= wanted
    # All weights, and the capacity factor of 1.25, are the sparse model's as it is.
    assert len(wanted) == (2 + 2 + 2 + (len(PARTS) - 1) + 2 + 4) * len(SEEDS)


def test_the_tables_are_those_of_the_results(results: Results) -> None:
    page = transfer.PAGE.read_text()
    assert page == fill_tables(page, transfer.tables(results))


def test_every_fine_tuning_begins_with_the_pretraining_of_its_seed(results: Results) -> None:
    starts = {(trial.seed, trial.start.seed) for trial in transfer.trials(results) if trial.start}
    assert starts == {(seed, seed) for seed in SEEDS}
    pretrained = {identity(trial) for trial in transfer.trials(results) if not trial.start}
    for trial in transfer.trials(results):
        assert trial.start is None or identity(trial.start) in pretrained


def built(trial: Trial) -> Experiment:
    return build_experiment(registry.get(trial.experiment, trial.settings))


def test_the_trials_of_slots_differ_in_the_optimizer_and_in_slots_alone() -> None:
    pretrained = built(transfer.PRETRAIN["8 experts"])
    steps = pretrained.p.max_steps
    expected = {
        "AdamW, slots anew": (False, 0, False),
        "Adafactor, slots anew": (False, 0, True),
        "Adafactor, slots kept": (True, steps, True),
    }
    for name, trial in transfer.SLOTS.items():
        experiment = built(trial)
        assert experiment.init_from is not None
        fits = slot_shapes(experiment.learner) == slot_shapes(pretrained.learner)
        (group,) = experiment.optimizer.groups.values()
        assert (experiment.init_from.p.slots, group.p.slot_steps, fits) == expected[name]


def test_a_cell_is_the_mean_of_seeds_and_what_is_missing_is_counted(written: Results) -> None:
    for seed, trial in enumerate(transfer.over_seeds(transfer.CLASSIFY["8 experts"])[:2]):
        scores = {f"exact_match@{task}": 0.5 for task in [*TASKS][1:]}
        add(written, trial, exact_match=0.25, dropped=0.1, **scores, **{transfer.MEAN: seed / 2})
    add(written, transfer.PRETRAIN["dense"], loss=2.5)
    add(written, transfer.WRITE["dense", "summary"], rouge1=20.0, rouge2=5.0, rougeL=15.0)
    add(written, transfer.WRITE["dense", "answer"], f1=0.5, exact_match=0.25)
    tables = {
        name: [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
        for name, lines in transfer.tables(written).items()
    }
    mean = "25.0 (0.0 to 50.0), 2 of 3 seeds"
    assert tables["models"][0][1] == "2.500, 1 of 3 seeds"
    assert tables["models"][1] == [
        *("8 experts", "-", "25.0 (25.0 to 25.0), 2 of 3 seeds"),
        *["50.0 (50.0 to 50.0), 2 of 3 seeds"] * 4,
        mean,
    ]
    assert tables["slots"][0] == ["AdamW, slots anew", mean]
    assert tables["parts"][0] == ["`all`", mean]
    assert tables["capacities"][1] == ["1.25", "10.0 (10.0 to 10.0), 2 of 3 seeds", mean]
    assert [cell.removesuffix(", 1 of 3 seeds") for cell in tables["writing"][0]] == [
        *("dense", "20.0", "5.0", "15.0", "50.0", "25.0")
    ]
    assert tables["progress"] == [
        ["pretraining", "1", "6"],
        ["sparse and dense", "2", "6"],
        ["slots", "2", "9"],
        ["parts of the weights", "2", "15"],
        ["capacities", "2", "9"],
        ["writing", "2", "12"],
    ]


def test_dropped_tokens_are_the_mean_over_reports_and_a_dense_model_has_none(
    tmp_path: pathlib.Path,
) -> None:
    rows = [{"step": 1, "moe/dropped_fraction": 0.1}, {"step": 2, "moe/dropped_fraction": 0.3}]
    rows += [{"step": 2, "eval/exact_match": 0.5, "eval/moe/dropped_fraction": 0.9}]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(lines)
    trial = transfer.CLASSIFY["8 experts"]
    assert transfer.measure(trial, tmp_path) == {"dropped": pytest.approx(0.2)}
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss/total": 2.0}\n')
    assert transfer.measure(trial, tmp_path) == {}
