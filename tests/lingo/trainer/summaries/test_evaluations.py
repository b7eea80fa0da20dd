"""Evaluations made beside the training: rows and events of their own."""

from __future__ import annotations

import logging
import pathlib

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.summaries.evaluations import evaluated_steps, write_evaluations


def test_rows_and_events_stand_in_the_folder_of_the_input(tmp_path: pathlib.Path) -> None:
    run = RunDirectory(tmp_path)
    write_evaluations(run, 4, {"a": {"eval/loss": 2.0}, "b": {"eval/loss": 3.0}})
    write_evaluations(run, 8, {"a": {"eval/loss": 1.0}})
    assert {p.name for p in tmp_path.iterdir()} == {"eval_a", "eval_b"}
    rows = RunDirectory(run.evaluation("a")).metrics.read()
    assert [(row["step"], row["eval/loss"]) for row in rows] == [(4, 2.0), (8, 1.0)]
    events = EventAccumulator(str(run.evaluation("a"))).Reload().Tensors("eval/loss")
    assert sorted(event.step for event in events) == [4, 8]


def test_a_step_counts_when_all_inputs_were_evaluated(tmp_path: pathlib.Path) -> None:
    run = RunDirectory(tmp_path)
    write_evaluations(run, 4, {"a": {"eval/loss": 2.0}, "b": {"eval/loss": 3.0}})
    write_evaluations(run, 8, {"a": {"eval/loss": 1.0}})
    assert evaluated_steps(run, ["a", "b"]) == {4}
    assert evaluated_steps(run, ["a", "c"]) == set()


def test_what_cannot_be_written_is_a_warning(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "eval_a").write_text("no folder")
    with caplog.at_level(logging.WARNING):
        write_evaluations(RunDirectory(tmp_path), 4, {"a": {"eval/loss": 2.0}})
    assert all("cannot write" in message for message in caplog.messages)
    assert caplog.messages
