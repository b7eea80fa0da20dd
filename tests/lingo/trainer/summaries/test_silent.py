"""A process that writes nothing, until it has to take over."""

from __future__ import annotations

import pathlib

import pytest

from lingo.storage.lock import DirectoryLocked
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.summaries.silent import SilentEvents, SilentRun
from lingo.trainer.summaries.summaries import Summaries


def test_nothing_is_written(tmp_path: pathlib.Path) -> None:
    run = SilentRun(tmp_path / "run")
    with run.locked(), Summaries(run, step=0, events_=SilentEvents(run.path)) as summaries:
        run.write({"config.json": "{}"})
        run.set_status("running", 0)
        summaries.start_run({"x": 1})
        summaries.write_step(1, {"loss/total": 1.0})
        summaries.write_evaluations(1, {"same": {"eval/loss": 1.0}})
        summaries.write_text("config", "a", step=0)
        summaries.cut(0)
        summaries.end_run("done")
        run.check_there()
    assert list(tmp_path.iterdir()) == []


def test_what_the_leader_reports_is_not_looked_at(tmp_path: pathlib.Path) -> None:
    RunDirectory(tmp_path).metrics.append({"step": 1, "eval/loss": 1.0})
    run = SilentRun(tmp_path)
    run.metrics.append({"step": 2, "eval/loss": 1.0})
    assert run.metrics.read() == []
    assert not run.is_evaluated(1)


def test_who_takes_over_writes_the_reports_that_the_leader_missed(tmp_path: pathlib.Path) -> None:
    RunDirectory(tmp_path).metrics.append({"step": 1, "loss/total": 1.0})
    run = SilentRun(tmp_path)
    for step in (1, 2, 3):
        run.metrics.append({"step": step, "loss/total": float(step)})
    run.metrics.cut(2)
    with run.taken_over() as taken:
        assert [row["step"] for row in taken.metrics.read()] == [1, 2]
    assert [row["step"] for row in RunDirectory(tmp_path).metrics.read()] == [1, 2]


def test_nobody_takes_over_from_a_leader_that_is_there(tmp_path: pathlib.Path) -> None:
    with (
        RunDirectory(tmp_path).locked(),
        pytest.raises(DirectoryLocked),
        SilentRun(tmp_path).taken_over(),
    ):
        pytest.fail("it did")
