"""Studies: which trials run, what is kept of them, and the tables of a page."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lingo.config.base.errors import NumericFailure
from lingo.config.params import ParamError
from tools.studies import __main__ as program
from tools.studies import bert, detection, images, quantization, time_to_quality
from tools.studies import run as runner
from tools.studies import trial as trial_module
from tools.studies.page import fill_tables, percent_over_seeds
from tools.studies.run import FailedTrial, Measure, run
from tools.studies.trial import PRETRAINED, Result, Results, Trial, configuration_digest, identity

EXPERIMENT = "image.amoebanet.digits"

TRAINER = """
import json, pathlib, sys
settings = dict(a.removeprefix("--set=").split("=", 1) for a in sys.argv if a.startswith("--set="))
path = pathlib.Path(next(a for a in sys.argv if a.startswith("--logdir=")).split("=")[1])
start = settings.get("init_from.path")
before = json.loads((pathlib.Path(start) / "metrics.jsonl").read_text()) if start else {}
accuracy = int(settings["seed"]) / 10 + before.get("eval/accuracy", 0)
row = {"step": 5, "loss/total": 1.0, "eval/accuracy": accuracy}
(path / "metrics.jsonl").write_text(json.dumps(row) + "\\n")
code = int(settings.get("max_steps", 0))
(path / "STATUS").write_text(("failed" if code else "done") + " at step 5\\n")
print("trained")
sys.exit(code)
"""
"""Stands in for lingo: its accuracy is a tenth of the seed, its exit code is max_steps."""


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    monkeypatch.setattr(runner, "PROGRAM", (sys.executable, "-c", TRAINER))
    return Results(tmp_path / "results" / "study.jsonl")


def run_all(
    trials: list[Trial],
    results: Results,
    path: Path,
    seconds: float = 60.0,
    measure: Measure | None = None,
) -> bool:
    folder = path / "runs"
    return run(
        lambda _: trials, results, folder=folder, num_workers=2, seconds=seconds, measure=measure
    )


def reread(path: Path) -> Results:
    return Results(path / "results" / "study.jsonl")


def test_each_trial_runs_once_and_leaves_a_line(results: Results, tmp_path: Path) -> None:
    trials = [Trial(EXPERIMENT, seed) for seed in (1, 2, 3)]
    assert run_all([*trials, trials[0]], results, tmp_path)
    assert [results.metric(trial, "accuracy") for trial in trials] == [0.1, 0.2, 0.3]
    logs = sorted((tmp_path / "runs").glob("*/log.txt"))
    assert run_all(trials, reread(tmp_path), tmp_path)  # reads the lines, and starts nothing
    assert [log.read_text() for log in logs] == ["trained\n"] * 3
    assert {result.trial for result in reread(tmp_path)} == set(trials)


ROWS = ("train_input.batch_size=8", "Docstrings.packages=['keras']")
SCENES = ("evaluate.every_steps=1", "GlyphSceneInput.num_scenes=32")


@pytest.mark.parametrize(
    ("study", "number", "settings", "metric"),
    [
        (images, 0, (), "accuracy"),
        (detection, 0, SCENES, "ap@1"),
        (quantization, 0, ("train_input.batch_size=8",), "int8/accuracy"),
        (quantization, 12, ("exp.model_dim=16", "exp.num_layers=1"), "int8_weights/bits"),
        (bert, 0, ROWS, "next_sentence_accuracy"),
        (time_to_quality, 0, (), "reached"),
    ],
    ids=["images", "detection", "quantization, images", "quantization, text", "bert", "time"],
)
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated.*")
@pytest.mark.filterwarnings("ignore:Statistics for quantized inputs were expected")
def test_the_first_trial_of_a_study_trains_and_is_measured(
    study, number, settings, metric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantization, "TIMED_TOKENS", 3)
    results = Results(tmp_path / "study.jsonl")
    first = [*study.trials(results)][number]
    small = (*first.overrides, "max_steps=1", "eval_inputs['heldout'].max_batches=1", *settings)
    trial, measure = first._replace(overrides=small), getattr(study, "measure", None)
    folder = tmp_path / "runs"
    assert run(
        lambda _: [trial], results, folder=folder, num_workers=1, seconds=60.0, measure=measure
    )
    assert results.metric(trial, metric) is not None


def test_a_trial_is_measured_while_another_one_is(results: Results, tmp_path: Path) -> None:
    first, second = Trial(EXPERIMENT, 1), Trial(EXPERIMENT, 2)
    is_second_measured = threading.Event()

    def measure(trial: Trial, run: Path) -> dict[str, float]:
        del run
        if trial == second:
            is_second_measured.set()
        return {"met": float(is_second_measured.wait(timeout=60.0))}

    run_all([first, second], results, tmp_path, measure=measure)
    assert results.metric(first, "met") == results.metric(second, "met") == 1.0


def test_a_measurement_is_finished_when_another_one_fails(results: Results, tmp_path: Path) -> None:
    first, second = Trial(EXPERIMENT, 1), Trial(EXPERIMENT, 2)
    has_begun, has_failed = threading.Event(), threading.Event()

    def measure(trial: Trial, run: Path) -> dict[str, float]:
        del run
        if trial == first:
            has_begun.wait(timeout=60.0)
            has_failed.set()
            raise FailedTrial("no log")
        has_begun.set()
        return {"waited": float(has_failed.wait(timeout=60.0))}

    with pytest.raises(FailedTrial, match="no log"):
        run_all([first, second], results, tmp_path, measure=measure)
    assert [result.trial for result in reread(tmp_path)] == [second]
    assert results.metric(second, "waited") == 1.0


def test_the_seconds_of_a_resumed_trial_are_of_all_its_processes(
    results: Results, tmp_path: Path
) -> None:
    trial = Trial(EXPERIMENT, 1)
    path = tmp_path / "runs" / trial.name
    path.mkdir(parents=True)
    (path / runner.SECONDS).write_text("1000.0\n500.0\n")
    assert run_all([trial], results, tmp_path)
    result = reread(tmp_path).get(trial)
    assert result is not None
    assert 1500.0 < result.seconds < 1600.0


def test_no_trial_starts_when_the_time_is_over(results: Results, tmp_path: Path) -> None:
    assert not run_all([Trial(EXPERIMENT)], results, tmp_path, seconds=0.0)
    assert not list(results)


def test_results_decide_which_trials_follow(results: Results, tmp_path: Path) -> None:
    tried = [Trial(EXPERIMENT, seed) for seed in (3, 1)]

    def trials(results: Results) -> Iterator[Trial]:
        yield from tried
        if all(results.get(trial) for trial in tried):
            best = max(tried, key=lambda trial: results.metric(trial, "accuracy") or 0.0)
            yield best._replace(overrides=("batch=2",))

    with pytest.raises(ParamError, match="batch"):  # its configuration has no such field
        run(trials, results, folder=tmp_path / "runs", num_workers=1, seconds=60.0)
    assert {result.trial for result in results} == set(tried)


def test_a_trial_begins_with_the_weights_of_another(results: Results, tmp_path: Path) -> None:
    first = Trial(EXPERIMENT, 4)
    setting = f"init_from=WarmStart(path={PRETRAINED})"
    second = Trial(EXPERIMENT, 1, (setting, f"init_from.path={PRETRAINED}"), start=first)
    assert run_all([second], results, tmp_path)
    assert results.metric(second, "accuracy") == pytest.approx(0.5)
    assert results.metric(first, "accuracy") == pytest.approx(0.4)


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_weights_that_are_missing_are_trained_again(
    is_interrupted: bool, results: Results, tmp_path: Path
) -> None:
    setting = f"init_from=WarmStart(path={PRETRAINED})"
    chain: list[Trial] = []
    for seed in (1, 2, 4):
        overrides = (setting, f"init_from.path={PRETRAINED}") if chain else ()
        chain.append(Trial(EXPERIMENT, seed, overrides, start=chain[-1] if chain else None))
    assert run_all(chain[:2], results, tmp_path)
    (tmp_path / "runs").rename(tmp_path / "gone")
    if is_interrupted:
        run_directory = tmp_path / "runs" / chain[1].name
        run_directory.mkdir(parents=True)
        (run_directory / "STATUS").write_text("stopped at step 2\n")
    assert run_all(chain, reread(tmp_path), tmp_path)
    assert reread(tmp_path).metric(chain[2], "accuracy") == pytest.approx(0.7)


def test_a_trial_whose_start_diverged_does_not_train_it_again(results, tmp_path: Path) -> None:
    first = Trial(EXPERIMENT, 4, (f"max_steps={NumericFailure.exit_code}",))
    setting = f"init_from=WarmStart(path={PRETRAINED})"
    second = Trial(EXPERIMENT, 1, (setting, f"init_from.path={PRETRAINED}"), start=first)
    assert run_all([second], results, tmp_path)
    assert len((tmp_path / "results" / "study.jsonl").read_text().splitlines()) == 2


def test_a_diverged_trial_is_a_result_without_a_metric(results: Results, tmp_path: Path) -> None:
    trial = Trial(EXPERIMENT, 1, (f"max_steps={NumericFailure.exit_code}",))
    assert run_all([trial], results, tmp_path)
    result = reread(tmp_path).get(trial)
    assert result is not None
    assert (result.state, result.step) == ("diverged", 5)
    assert results.metric(trial, "accuracy") is None
    assert percent_over_seeds(results, [trial]) == "diverged"


def test_a_failed_trial_is_an_error_with_its_last_line(results: Results, tmp_path: Path) -> None:
    with pytest.raises(FailedTrial, match="ended with code 3: trained"):
        run_all([Trial(EXPERIMENT, 1, ("max_steps=3",))], results, tmp_path)
    assert not list(reread(tmp_path))


def test_a_line_counts_only_for_its_configuration(results: Results, tmp_path: Path) -> None:
    trial = Trial(EXPERIMENT, 1)
    results.add(Result(trial, ("another",), "done", 5, {"accuracy": 0.5}, 1.0, "abc"))
    again = reread(tmp_path)
    assert again.get(trial) is None
    assert [result.trial for result in again.stale] == [trial]


def test_a_line_counts_only_for_the_configuration_it_starts_from(
    results: Results, tmp_path: Path
) -> None:
    trial = Trial(EXPERIMENT, 1, start=Trial(EXPERIMENT))
    changed = trial._replace(start=Trial(EXPERIMENT, overrides=("max_steps=7",)))
    results.add(_result(changed, 0.5)._replace(trial=trial))
    assert [result.trial for result in reread(tmp_path).stale] == [trial]
    results.add(_result(trial, 0.7))
    assert reread(tmp_path).metric(trial, "accuracy") == 0.7


def test_a_line_of_no_experiment_does_not_count(results: Results, tmp_path: Path) -> None:
    kept, gone = Trial(EXPERIMENT), Trial("image.amoebanet.gone")
    results.add(_result(kept, 0.5)._replace(trial=gone))
    results.add(_result(kept, 0.5))
    assert [result.trial for result in reread(tmp_path).stale] == [gone]
    assert [result.trial for result in reread(tmp_path)] == [kept]


def test_two_processes_of_a_study_keep_all_lines(results: Results, tmp_path: Path) -> None:
    other, trials = reread(tmp_path), [Trial(EXPERIMENT, seed) for seed in (1, 2, 3)]
    for one, trial in zip((results, other, results), trials, strict=True):
        one.add(_result(trial, 0.5))
    assert [result.trial for result in reread(tmp_path)] == trials


def test_a_changed_trial_has_another_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(EXPERIMENT)
    name = trial.name
    assert trial.name == name
    monkeypatch.setattr(trial_module, "configuration_digest", lambda _: "another")
    assert trial.name != name


def test_the_digest_is_of_what_changes_a_result() -> None:
    trial = Trial(EXPERIMENT)
    same = trial._replace(overrides=("checkpoint.every_steps=7",))
    longer = trial._replace(overrides=("max_steps=7",))
    assert configuration_digest(trial) == configuration_digest(same)
    assert configuration_digest(trial) != configuration_digest(longer)
    assert configuration_digest(trial) != configuration_digest(Trial(EXPERIMENT, 1))


def test_a_page_keeps_its_text_around_new_tables() -> None:
    page = "# A\n<!-- table: one -->\nold\n<!-- end -->\ntext\n<!-- table: two -->\n<!-- end -->\n"
    filled = fill_tables(page, {"one": ["| x |"], "two": ["| y |", "| z |"]})
    assert filled == (
        "# A\n<!-- table: one -->\n| x |\n<!-- end -->\ntext\n"
        "<!-- table: two -->\n| y |\n| z |\n<!-- end -->\n"
    )
    assert fill_tables(filled, {"one": ["| x |"], "two": ["| y |", "| z |"]}) == filled


def test_a_metric_over_seeds_has_mean_and_range(tmp_path: Path) -> None:
    results, trials = Results(tmp_path / "x.jsonl"), [Trial(EXPERIMENT, seed) for seed in (0, 1)]
    assert percent_over_seeds(results, trials) == "-"
    for trial, accuracy in zip(trials, (0.5, 0.7), strict=True):
        results.add(_result(trial, accuracy))
    assert percent_over_seeds(results, trials) == "60.0 (50.0 to 70.0)"
    assert percent_over_seeds(results, trials[:1]) == "50.0"
    diverged, missing = Trial(EXPERIMENT, 2), Trial(EXPERIMENT, 3)
    results.add(_result(diverged, 0.1)._replace(state="diverged"))
    more = [*trials, diverged, missing]
    assert percent_over_seeds(results, more) == "60.0 (50.0 to 70.0), 2 of 4 seeds"
    assert percent_over_seeds(results, more[1:]) == "70.0, 1 of 3 seeds"
    assert percent_over_seeds(results, [diverged]) == "diverged"
    assert percent_over_seeds(results, [diverged, missing]) == "-"
    assert percent_over_seeds(results, trials, "no such tag") == "-"


def test_two_names_of_one_training_share_its_result(results: Results, tmp_path: Path) -> None:
    trial = Trial(EXPERIMENT, 1)
    same = Trial("image.amoebanet.digits(num_layers=3)", 1)
    assert run_all([trial, same], results, tmp_path)
    assert results.metric(same, "accuracy") == 0.1
    assert len(list((tmp_path / "runs").iterdir())) == 1


def _result(trial: Trial, accuracy: float) -> Result:
    return Result(trial, identity(trial), "done", 5, {"accuracy": accuracy}, 1.0, "abc")


def test_an_overview_counts_what_is_done_and_what_is_missing(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "studies.md").write_text("<!-- table: studies -->\n<!-- end -->\n")
    monkeypatch.setattr(program, "RESULTS", tmp_path / "results")
    trials = [Trial(EXPERIMENT, seed) for seed in (1, 2, 3)]
    monkeypatch.setattr(quantization, "trials", lambda results: trials)
    assert run_all(trials[:2], results, tmp_path)
    (tmp_path / "results/study.jsonl").rename(tmp_path / "results/quantization.jsonl")
    program.fill_overview(["quantization"])
    cells = ["[quantization](quantization.md)", "2", "at least 1"]
    row = f"| {' | '.join(cells)} | `python -m tools.studies quantization` |"
    assert row in (tmp_path / "studies.md").read_text().splitlines()
