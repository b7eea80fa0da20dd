"""The page of the study of time to quality shows what is in the file of its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lingo
from lingo.trainer.mlperf.mllog import LogLine
from lingo.trainer.mlperf.run_log import MLLOG, RESUME
from tools.studies import time_to_quality as study
from tools.studies.__main__ import RESULTS
from tools.studies.page import fill_tables
from tools.studies.run import FailedTrial
from tools.studies.trial import Result, Results, Trial, identity

TRIAL = Trial("mlperf.resnet.digits")


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(RESULTS / "time_to_quality.jsonl")


@pytest.fixture
def written(tmp_path: Path) -> Results:
    return Results(tmp_path / "time_to_quality.jsonl")


def add(results: Results, trial: Trial, seconds: float, *, reached: bool = True) -> None:
    metrics = {"reached": float(reached), "seconds": seconds, "steps": 10 * seconds}
    metrics |= {"examples": 320 * seconds, "epochs": seconds / 4, "examples_per_second": 50.0}
    results.add(Result(trial, identity(trial), "done", 9, metrics, 60.0, "commit"))


def row(results: Results, number: int) -> list[str]:
    line = study.tables(results)["resnet"][2 + number]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_line_is_of_an_experiment_as_it_is(results: Results) -> None:
    assert [result.trial for result in results.stale] == []
    wanted = {identity(trial) for trial in study.trials(results)}
    assert {result.digest for result in results} <= wanted
    assert len(wanted) == 5 * sum(len(form.batches) for form in study.FORMS.values()) == 100


def test_the_tables_are_those_of_the_results(results: Results) -> None:
    page = study.PAGE.read_text()
    assert page == fill_tables(page, study.tables(results))


@pytest.mark.parametrize("benchmark", study.FORMS)
def test_evaluations_come_after_about_as_many_examples_in_all_batch_sizes(benchmark: str) -> None:
    sizes = []
    for batch in study.FORMS[benchmark].batches:
        cfg = lingo.get(study.runs(benchmark, batch)[0].experiment)
        (log,) = cfg.observers
        assert log.benchmark.startswith(f"{benchmark}@")
        assert cfg.train_input.batch_size == batch
        sizes.append(batch * cfg.evaluate.every_steps)
    assert max(sizes) / min(sizes) < 1.06


BLOCKS = ((110, 150), (152, 156), (160, 166))


def write_log(
    folder: Path,
    *,
    status: str = "success",
    resumed: bool = False,
    num_blocks: int = 3,
    num_stops: int = 1,
) -> None:
    """Writes the log of some blocks of 20 steps, the first of which compiles."""
    lines: list[LogLine] = []

    def line(seconds: int, key: str, value: Any = None, *, step: int, **metadata: Any) -> None:
        lines.append(LogLine(seconds, key, value, metadata | {"step_num": step}))  # pyright: ignore[reportArgumentType]

    line(100, "run_start", step=0)
    line(105, "submission_benchmark", "resnet", step=0, ruleset="0.7.0")
    line(105, "train_samples", 1600, step=0)
    line(105, "global_batch_size", 32, step=0)
    for number, (start, end) in enumerate(BLOCKS[:num_blocks]):
        line(start, "block_start", step=20 * number, first_epoch_num=1)
        line(end, "eval_start", step=20 * number + 20)
        accuracy = 0.9 if number + 1 == num_blocks else 0.5
        line(end + 1, "eval_accuracy", accuracy, step=20 * number + 20)
        if resumed and number == 1:
            line(end + 2, RESUME, step=20 * number + 20)
    for _ in range(num_stops):
        line(170, "run_stop", step=20 * num_blocks, status=status)
    (folder / MLLOG).write_text("".join(f"{one.render('0.7.0')}\n" for one in lines))


def test_a_run_is_measured_by_its_own_log(tmp_path: Path) -> None:
    write_log(tmp_path)
    found = study.measure(TRIAL, tmp_path)
    counts = {"steps": 60, "examples": 1920, "epochs": 1.2}
    rate = 40 * 32 / (4 + 6)  # the first block compiles
    assert found == {"reached": 1.0, "seconds": 70.0, **counts, "examples_per_second": rate}


def test_a_run_of_one_block_has_no_rate_as_it_compiles(tmp_path: Path, written: Results) -> None:
    write_log(tmp_path, num_blocks=1)
    found = study.measure(TRIAL, tmp_path)
    assert (found["steps"], found["seconds"]) == (20, 70.0)
    assert "examples_per_second" not in found
    trial = study.runs("resnet", 16)[0]
    written.add(Result(trial, identity(trial), "done", 9, found, 60.0, "commit"))
    assert row(written, 0)[1] == "1 of 1"
    assert row(written, 0)[-1] == "-"
    assert study.curves(written, "resnet")["examples a second"] == {}


def test_a_run_that_missed_its_target_says_so(tmp_path: Path) -> None:
    write_log(tmp_path, status="aborted")
    assert study.measure(TRIAL, tmp_path)["reached"] == 0.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"status": "killed"}, "run_stop says 'killed'"),
        ({"num_stops": 2}, "1 run_start and 2 run_stop"),
        ({"num_stops": 2, "status": "aborted"}, "1 run_start and 2 run_stop"),
        ({"num_stops": 0}, "1 run_start and 0 run_stop"),
        ({"num_blocks": 0}, "no eval_accuracy"),
    ],
)
def test_another_problem_of_a_log_is_no_miss(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_log(tmp_path, **fields)
    with pytest.raises(FailedTrial, match=message):
        study.measure(TRIAL, tmp_path)


def test_a_resumed_run_is_refused_as_its_time_has_a_pause(tmp_path: Path) -> None:
    write_log(tmp_path, resumed=True)
    with pytest.raises(FailedTrial, match=r"was resumed.*delete it"):
        study.measure(TRIAL, tmp_path)


def test_the_mean_leaves_out_the_fastest_and_the_slowest(written: Results) -> None:
    assert row(written, 0) == ["16", *["-"] * 9]
    runs = study.runs("resnet", 16)
    for trial, seconds in zip(runs[:4], (40.0, 10.0, 20.0, 30.0), strict=True):
        add(written, trial, seconds)
    assert row(written, 0)[1:4] == ["4 of 4", "-", "10.0"]
    add(written, runs[4], 100.0)
    assert row(written, 0) == [
        *("16", "5 of 5", "30.0", "10.0", "100.0", "90.0"),
        *("12,800 (3,200 to 32,000)", "10.0 (2.5 to 25.0)", "400 (100 to 1,000)"),
        "50 (50 to 50)",
    ]


def test_a_miss_is_the_slowest_and_two_leave_no_mean(written: Results, tmp_path: Path) -> None:
    good, bad = study.runs("resnet", 32), study.runs("resnet", 128)
    for trial, seconds in zip(good[:4], (10.0, 20.0, 30.0, 40.0), strict=True):
        add(written, trial, seconds)
    add(written, good[4], 5.0, reached=False)  # the time of a miss does not count
    assert row(written, 1)[1:6] == ["4 of 5", "30.0", "10.0", "missed", "30.0"]
    for trial in bad[:3]:
        add(written, trial, 10.0)
    add(written, bad[3], 50.0, reached=False)
    written.add(Result(bad[4], identity(bad[4]), "diverged", 0, {}, 9.0, "commit"))
    assert row(written, 2)[1:6] == ["3 of 5", "-", "10.0", "missed", "0.0"]
    curves = study.curves(written, "resnet")
    assert curves["seconds to the target"] == {32: (30.0, 10.0, 40.0)}
    assert curves["examples to the target"][128] == (3200.0, 3200.0, 3200.0)
    assert [*curves["examples a second"]] == [32, 128]
    study.draw(written, tmp_path)
    assert [path.name for path in tmp_path.glob("*.png")] == ["time_to_quality_resnet.png"]
    assert study.tables(written)["resnet"][-1].endswith("(images/time_to_quality_resnet.png)")


def test_runs_of_a_study_of_time_go_one_at_a_time() -> None:
    assert study.NUM_WORKERS == 1
