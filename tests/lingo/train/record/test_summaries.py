"""Reports: the same numbers in metrics.jsonl and in TensorBoard, each step once."""

from __future__ import annotations

import logging

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from lingo.train.record.run_directory import RunDirectory
from lingo.train.record.summaries import Summaries


def events(folder, tag):
    """Returns {step: value} as TensorBoard's reader sees them; every step must be there once."""
    found = EventAccumulator(str(folder)).Reload().Tensors(tag)
    values = {e.step: tensor_util.make_ndarray(e.tensor_proto).item() for e in found}
    assert len(values) == len(found)
    return values


def test_tensorboard_and_metrics_have_the_same_numbers(tmp_path):
    run = RunDirectory(tmp_path)
    with Summaries(run, step=0) as summaries:
        summaries.write(1, {"loss/total": 2.5})
        summaries.write(10, {"loss/total": 1.5})
        summaries.evaluated(10, {"heldout": {"eval/loss": 1.75}})
    assert events(run.train, "loss/total") == {1: 2.5, 10: 1.5}
    assert events(run.evaluation("heldout"), "eval/loss") == {10: 1.75}
    rows = run.read_metrics()
    assert [row["loss/total"] for row in rows] == [2.5, 1.5]
    assert rows[1].keys() == {"step", "time", "loss/total", "eval/loss"}


def test_an_evaluation_of_a_step_without_a_row_gets_one(tmp_path):
    run = RunDirectory(tmp_path)
    with Summaries(run, step=0) as summaries:
        summaries.write(1, {"loss/total": 2.5})
        assert run.is_evaluated(2)
        assert not run.is_evaluated(1)
        summaries.evaluated(2, {"heldout": {"eval/loss": 1.75}})
    assert run.is_evaluated(2)
    assert [row["step"] for row in run.read_metrics()] == [1, 2]


def test_a_tag_of_two_evaluations_is_told_apart_in_the_row(tmp_path):
    run = RunDirectory(tmp_path)
    with Summaries(run, step=0) as summaries:
        summaries.evaluated(1, {"a": {"eval/loss": 1.0}, "b": {"eval/loss": 2.0}})
    (row,) = run.read_metrics()
    assert (row["eval/loss"], row["eval/loss@b"]) == (1.0, 2.0)


def test_resumed_reports_replace_those_of_steps_done_again(tmp_path):
    run = RunDirectory(tmp_path)
    with Summaries(run, step=0) as summaries:
        for step in (1, 10, 20):
            summaries.write(step, {"a": float(step)})
            summaries.evaluated(step, {"heldout": {"eval/a": float(step)}})
    with Summaries(run, step=10) as summaries:
        summaries.write(20, {"a": -20.0})
        summaries.evaluated(20, {"heldout": {"eval/a": -20.0}})
    assert events(run.train, "a") == {1: 1.0, 10: 10.0, 20: -20.0}
    assert events(run.evaluation("heldout"), "eval/a") == {1: 1.0, 10: 10.0, 20: -20.0}
    assert [row["a"] for row in run.read_metrics()] == [1.0, 10.0, -20.0]


def test_events_torn_by_a_crash_do_no_harm(tmp_path):
    run = RunDirectory(tmp_path)
    with Summaries(run, step=0) as summaries:
        summaries.write(1, {"a": 1.0})
    (file,) = run.train.iterdir()
    file.write_bytes(file.read_bytes() + b"torn")
    with Summaries(run, step=1) as summaries:
        summaries.write(2, {"a": 2.0})
    assert events(run.train, "a") == {1: 1.0, 2: 2.0}


def test_files_with_nothing_to_remove_are_left_alone(tmp_path):
    run = RunDirectory(tmp_path)
    with Summaries(run, step=0) as summaries:
        summaries.write(1, {"a": 1.0})
    (file,) = run.train.iterdir()
    before = file.stat()
    with Summaries(run, step=1):
        pass
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_configuration_is_shown_as_it_is(tmp_path):
    run = RunDirectory(tmp_path)
    with Summaries(run, step=0) as summaries:
        summaries.text("config", "a = 1\nb = '*'\n", step=0)
    (event,) = EventAccumulator(str(run.train)).Reload().Tensors("config")
    assert event.tensor_proto.string_val[0] == b"    a = 1\n    b = '*'\n"


def test_a_report_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    run = RunDirectory(tmp_path)
    with caplog.at_level(logging.WARNING), Summaries(run, step=0) as summaries:
        run.metrics.mkdir()
        run.train.write_text("not a directory")
        for _ in range(3):
            summaries.write(1, {"a": 1.0})
    assert len(caplog.records) == 2
    assert all("cannot write" in message for message in caplog.messages)


def test_values_may_be_any_scalars(tmp_path):
    run = RunDirectory(tmp_path)
    with Summaries(run, step=0) as summaries:
        summaries.write(np.int64(1), {"a": np.float32(0.5)})
    (row,) = run.read_metrics()
    assert type(row["step"]) is int
    assert type(row["a"]) is float
