"""Reports: the same numbers in metrics.jsonl and in TensorBoard, each step once."""

import itertools
import json
import logging
import os

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.util import tensor_util

from lingo.config.lazy import tf
from lingo.metrics import Audio, Image, Table
from lingo.storage.files import StorageError
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.summaries import summaries as summaries_
from lingo.trainer.summaries.events import histogram
from lingo.trainer.summaries.summaries import Summaries


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def events(folder, tag):
    """Returns {step: value} as TensorBoard's reader sees them; every step must be there once."""
    found = EventAccumulator(str(folder)).Reload().Tensors(tag)
    values = {e.step: tensor_util.make_ndarray(e.tensor_proto).item() for e in found}
    assert len(values) == len(found)
    return values


def test_tensorboard_and_metrics_have_the_same_numbers(run):
    with Summaries(run, step=0) as summaries:
        summaries.write_step(np.int64(1), {"loss/total": np.float32(2.5)})
        summaries.write_step(10, {"loss/total": 1.5})
        summaries.write_evaluations(10, {"heldout": {"eval/loss": 1.75}})
    assert events(run.train, "loss/total") == {1: 2.5, 10: 1.5}
    assert events(run.evaluation("heldout"), "eval/loss") == {10: 1.75}
    rows = run.metrics.read()
    assert [row["loss/total"] for row in rows] == [2.5, 1.5]
    assert (type(rows[0]["step"]), type(rows[0]["loss/total"])) == (int, float)
    assert rows[1].keys() == {"step", "time", "loss/total", "eval/loss"}


def test_an_evaluation_of_a_step_without_a_row_gets_one(run):
    with Summaries(run, step=0) as summaries:
        summaries.write_step(1, {"loss/total": 2.5})
        assert not run.is_evaluated(2)
        summaries.write_evaluations(2, {"heldout": {"eval/loss": 1.75}})
    assert run.is_evaluated(2)
    assert [row["step"] for row in run.metrics.read()] == [1, 2]


def test_a_tag_of_two_evaluations_is_told_apart_in_the_row(run):
    with Summaries(run, step=0) as summaries:
        summaries.write_evaluations(1, {"a": {"eval/loss": 1.0}, "b": {"eval/loss": 2.0}})
    (row,) = run.metrics.read()
    assert (row["eval/loss"], row["eval/loss@b"]) == (1.0, 2.0)


def test_resumed_reports_replace_those_of_steps_done_again(run):
    with Summaries(run, step=0) as summaries:
        for step in (1, 10, 20):
            summaries.write_step(step, {"a": float(step)})
            summaries.write_evaluations(step, {"heldout": {"eval/a": float(step)}})
    with Summaries(run, step=10) as summaries:
        summaries.write_step(20, {"a": -20.0})
        summaries.write_evaluations(20, {"heldout": {"eval/a": -20.0}})
    assert events(run.train, "a") == {1: 1.0, 10: 10.0, 20: -20.0}
    assert events(run.evaluation("heldout"), "eval/a") == {1: 1.0, 10: 10.0, 20: -20.0}
    assert [row["a"] for row in run.metrics.read()] == [1.0, 10.0, -20.0]


def test_resumed_summaries_replace_those_of_steps_done_again(run, caplog):
    media = {"eval/table": Table({"a": [1]}), "eval/image": Image(np.zeros([2, 2]))}
    with Summaries(run, step=0) as summaries:
        for step in (10, 20):
            summaries.write_summaries(step, "heldout", media | {"eval/number": float(step)})
    with Summaries(run, step=10) as summaries:
        summaries.write_summaries(20, "heldout", media | {"eval/number": -20.0})
    assert events(run.evaluation("heldout"), "eval/number") == {10: 10.0, 20: -20.0}
    found = EventAccumulator(str(run.evaluation("heldout"))).Reload()
    for tag in media:
        assert [event.step for event in found.Tensors(tag)] == [10, 20]
    run.evaluation("other").write_text("not a directory")
    summaries.write_summaries(20, "other", media)
    assert "cannot write" in caplog.text, "a warning"


def test_sounds_are_read_back_by_tensorboard(run):
    sounds = [np.arange(-5, size - 5, dtype=np.int16)[:, None] for size in (40, 7)]
    audio = Audio(sounds, 8_000, ["one.wav: two_words", "three"])
    with Summaries(run, step=0) as summaries:
        summaries.write_summaries(10, "heldout", {"eval/sound": audio})
    found = EventAccumulator(str(run.evaluation("heldout"))).Reload()
    assert found.SummaryMetadata("eval/sound").plugin_data.plugin_name == "audio"
    (event,) = found.Tensors("eval/sound")
    rows = tensor_util.make_ndarray(event.tensor_proto)
    assert [row[1] for row in rows.tolist()] == [b"one.wav: two&#95;words", b"three"]
    for (file, _), sound in zip(rows.tolist(), sounds, strict=True):
        samples, rate = tf.audio.decode_wav(file)
        assert int(rate) == 8_000
        np.testing.assert_array_equal(np.round(samples * 32_768).astype(np.int16), sound)


def test_files_with_nothing_to_remove_are_not_rewritten(run):
    with Summaries(run, step=0) as summaries:
        summaries.write_step(1, {"a": 1.0})
    (file,) = run.train.iterdir()
    before = file.stat()
    with Summaries(run, step=1):
        pass
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_configuration_is_shown_as_it_is_and_once_however_often_a_run_starts(run):
    for text in ("first", "a = 1\nb = '*'\n"):
        with Summaries(run, step=0) as summaries:
            summaries.write_text("config", text, step=0)
    (event,) = EventAccumulator(str(run.train)).Reload().Tensors("config")
    assert event.tensor_proto.string_val[0] == b"    a = 1\n    b = '*'\n"


def test_a_report_that_cannot_be_written_is_a_warning(run, caplog):
    with caplog.at_level(logging.WARNING), Summaries(run, step=0) as summaries:
        run.metrics.path.mkdir()
        run.train.write_text("not a directory")
        for _ in range(3):
            summaries.write_step(1, {"a": 1.0})
        assert len(caplog.records) == 2
        assert all("cannot write" in message for message in caplog.messages)
    assert "metrics.jsonl lacks the last 1 reports" in caplog.text


def test_reports_that_could_not_be_written_count_and_are_written_when_there_is_room(run, tmp_path):
    with Summaries(run, step=0) as summaries:
        summaries.write_step(1, {"a": 1.0})
        kept = run.metrics.path.rename(tmp_path / "kept")
        run.metrics.path.mkdir()
        summaries.write_evaluations(1, {"heldout": {"eval/a": 5.0}})
        summaries.write_step(2, {"a": 2.0})
        assert [row["step"] for row in run.metrics.read()] == [1, 2]
        assert run.is_evaluated(1)
        run.metrics.path.rmdir()
        kept.rename(run.metrics.path)
        summaries.write_step(3, {"a": 3.0})
    rows = [json.loads(line) for line in run.metrics.path.read_text().splitlines()]
    assert [row["a"] for row in rows] == [1.0, 2.0, 3.0]
    assert rows[0]["eval/a"] == 5.0


def test_events_continue_after_a_failure_and_every_reader_sees_them(run, tmp_path):
    with Summaries(run, step=0) as summaries:
        summaries.write_step(1, {"a": 1.0})
        hidden = run.train.rename(tmp_path / "hidden")
        run.train.write_text("not a directory")
        summaries.write_step(2, {"a": 2.0})
        run.train.unlink()
        hidden.rename(run.train)
        summaries.write_step(3, {"a": 3.0})
    assert events(run.train, "a") == {1: 1.0, 3: 3.0}


@pytest.mark.parametrize(
    ("end", "damage"), [(-7, b""), (-7, b"\0" * 40), (-7, b"\xff" * 40), (None, b"torn")]
)
def test_a_file_ends_before_an_event_that_is_torn_or_garbage(run, end, damage):
    with Summaries(run, step=0) as summaries:
        for step in (1, 2, 3):
            summaries.write_step(step, {"a": float(step)})
    (file,) = run.train.iterdir()
    file.write_bytes(file.read_bytes()[:end] + damage)
    with Summaries(run, step=2) as summaries:
        summaries.write_step(3, {"a": -3.0})
    assert events(run.train, "a") == {1: 1.0, 2: 2.0, 3: -3.0}


@pytest.mark.parametrize("name", ["train", "eval_same", "train/events.out.tfevents.1"])
@pytest.mark.parametrize("step", [0, 3])
def test_events_are_not_cut_through_links(tmp_path, name, step):
    outside = RunDirectory(tmp_path / "outside")
    outside.path.mkdir()
    with Summaries(outside, step=0) as summaries:
        summaries.write_step(5, {"loss/total": 1.0})
    (file,) = outside.train.iterdir()
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(file if "events" in name else outside.train)
    if "events" in name and step == 0:
        Summaries(RunDirectory(tmp_path / "run"), step=step)  # deletes the link
        assert not link.is_symlink()
    else:
        with pytest.raises(StorageError, match=f"run/{name}: it is a link"):
            Summaries(RunDirectory(tmp_path / "run"), step=step)
    assert events(outside.train, "loss/total") == {5: 1.0}


@pytest.mark.parametrize(("make", "kind"), [(os.mkdir, "a directory"), (os.mkfifo, "a named pipe")])
@pytest.mark.parametrize("step", [0, 1])
def test_what_is_no_file_in_the_place_of_events_is_a_warning(run, step, make, kind, caplog):
    with Summaries(run, step=0) as summaries:
        summaries.write_step(1, {"a": 1.0})
    make(run.train / "events.out.tfevents.1")
    with Summaries(run, step=step) as summaries:
        summaries.write_step(2, {"a": 2.0})
    assert f"events.out.tfevents.1 is {kind}, not a file of events" in caplog.text
    (run.train / "events.out.tfevents.1").rename(run.path / "moved")
    assert events(run.train, "a") == ({1: 1.0} if step else {}) | {2: 2.0}


def test_reports_can_be_cut_during_a_run(run):
    with Summaries(run, step=0) as summaries:
        for step in (1, 2):
            summaries.write_step(step, {"a": float(step)})
        summaries.cut(1)
        summaries.write_step(2, {"a": -2.0})
    assert events(run.train, "a") == {1: 1.0, 2: -2.0}
    assert [row["a"] for row in run.metrics.read()] == [1.0, -2.0]


# ---- histograms


def test_a_histogram_counts_every_element_once():
    array = np.random.default_rng(0).normal(size=(7, 11)).astype(np.float32)
    left, right, counts = histogram(array).T
    for i in range(30):
        last = i == 29
        inside = (array >= left[i]) & ((array <= right[i]) if last else (array < right[i]))
        assert counts[i] == inside.sum()
    assert counts.sum() == array.size
    assert (left[0], right[-1]) == (array.min(), array.max())


def test_tensorboard_reads_histograms_and_those_of_steps_done_again_are_replaced(run):
    for step, value in ((0, 1.0), (10, -1.0)):
        with Summaries(run, step=step) as summaries:
            for later in (step + 10, step + 20):
                summaries.write_histograms(later, [("weights/w", np.full([3], value))])
    accumulator = EventAccumulator(str(run.train)).Reload()
    found = accumulator.Tensors("weights/w")
    assert [event.step for event in found] == [10, 20, 30]
    middle = [tensor_util.make_ndarray(event.tensor_proto)[:, :2].mean() for event in found]
    assert middle == [1.0, -1.0, -1.0]
    assert accumulator.SummaryMetadata("weights/w").plugin_data.plugin_name == "histograms"


# ---- pictures


def pictures(run, tag):
    """Returns what a picture's events hold by step: width, height, file."""
    found = EventAccumulator(str(run.train)).Reload().Tensors(tag)
    return {event.step: tuple(tensor_util.make_ndarray(event.tensor_proto)) for event in found}


def test_a_resumed_run_has_the_pictures_of_one_that_was_not_stopped(tmp_path):
    draw, loads = np.random.default_rng(0), {}
    for step in range(1, 6):
        loads[step] = {f"state/{i}/load": draw.gamma(1.0, size=3) for i in range(2)}
    for name, stops in (("whole", [0, 5]), ("parts", [0, 3, 2, 5])):
        run = RunDirectory(tmp_path / name)
        run.path.mkdir()
        for start, stop in itertools.pairwise(stops):
            with Summaries(run, step=start) as summaries:
                for step in range(start + 1, stop + 1):
                    summaries.write_step(step, {}, loads[step])
                    summaries.write_images(step)
    whole, parts = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "parts")
    for tag in ("load", "state/0/load", "state/1/load"):
        assert pictures(parts, tag) == pictures(whole, tag)
        assert [int(width) for width, _, _ in pictures(whole, tag).values()] == [
            16 * step for step in range(1, 6)
        ]


def test_layers_are_below_each_other_in_the_order_of_their_numbers():
    assert sorted(["a/10/load", "a/2/load"], key=summaries_._sort_key) == ["a/2/load", "a/10/load"]


def test_vectors_are_drawn_although_their_rows_cannot_be_written(run, caplog):
    with caplog.at_level(logging.WARNING), Summaries(run, step=0) as summaries:
        run.vectors.path.mkdir()
        for step in (1, 2):
            summaries.write_step(step, {"a": 1.0}, {"state/load": np.ones([2], np.float32)})
        summaries.write_images(2)
    assert list(pictures(run, "state/load")) == [2]
    assert "vectors.jsonl lacks the last 2 reports" in caplog.text
    assert [row["step"] for row in run.metrics.read()] == [1, 2]


def test_without_vectors_there_are_no_pictures_and_no_rows_of_them(run):
    with Summaries(run, step=0) as summaries:
        summaries.write_step(1, {"a": 1.0})
        summaries.write_images(1)
    assert not run.vectors.path.exists()
    assert EventAccumulator(str(run.train)).Reload().Tags()["tensors"] == ["a"]


# ---- texts


def test_samples_show_what_cannot_be_printed_and_no_markdown(run):
    with Summaries(run, step=0) as summaries:
        summaries.write_samples(5, {"a\n": "# b\x00\r\n\n\tc\u2028\ud800", "": "d"})
    (event,) = EventAccumulator(str(run.train)).Reload().Tensors("samples")
    assert event.step == 5
    assert event.tensor_proto.string_val[0].decode() == (
        "**Prompt**\n\n    a\n\n**continued**\n\n"
        "    # b\\x00\\r\n    \n    \tc\\u2028\\ud800\n"
        "\n---\n\n**Prompt**\n\n    \n\n**continued**\n\n    d\n"
    )


# ---- the graph


def test_the_graph_is_shown(tmp_path):
    run, graph = RunDirectory(tmp_path), tf.Graph()
    with graph.as_default(), tf.name_scope("layer"):
        tf.constant(1.0, name="one")
    with Summaries(run, step=0) as summaries:
        summaries.write_graph(graph)
    found = EventAccumulator(str(run.train)).Reload().Graph()
    assert [node.name for node in found.node] == ["layer/one"]


def test_a_graph_too_large_for_a_browser_is_omitted_with_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(summaries_, "MAX_GRAPH_NODES", 1)
    run, graph = RunDirectory(tmp_path), tf.Graph()
    with graph.as_default():
        tf.constant(1.0) + tf.constant(2.0)
    with Summaries(run, step=0) as summaries:
        summaries.write_graph(graph)
    assert "has 3 operations, too many" in caplog.text
    assert not run.train.exists()


# ---- hyperparameters


def row(run):
    """Returns the numbers of a run's row and how it ended; None for a run that has not."""
    content = EventAccumulator(str(run.path)).Reload().PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
    values = {key: value.number_value for key, value in start.hparams.items()}
    if metadata.SESSION_END_INFO_TAG not in content:
        return values, None
    end = metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG])
    return values, api_pb2.Status.Name(end.status)


def test_a_resumed_run_is_one_row_with_its_last_values_and_end(run, tmp_path):
    with Summaries(run, step=0) as summaries:
        summaries.start_run({"max_steps": 10})
        assert row(run) == ({"max_steps": 10.0}, None)
        summaries.on_end(None, "done")
    assert row(run) == ({"max_steps": 10.0}, "STATUS_SUCCESS")
    with Summaries(run, step=10) as summaries:
        summaries.start_run({"max_steps": 20})
        assert row(run) == ({"max_steps": 20.0}, None)
        summaries.on_end(None, "stopped")
    assert row(run) == ({"max_steps": 20.0}, "STATUS_UNKNOWN")
    assert len(list(tmp_path.glob("events*"))) == 1


def test_a_run_that_an_error_ended_has_failed(run):
    with Summaries(run, step=0) as summaries:
        summaries.start_run({"max_steps": 10})
        summaries.on_end(None, "failed")
    assert row(run) == ({"max_steps": 10.0}, "STATUS_FAILURE")


# ---- pipelines


def test_a_pipeline_has_a_report_and_its_bubble(run):
    with Summaries(run, step=0) as summaries:
        summaries.write_pipelines({"model/stack": 0.375}, "a report\n", step=0)
    assert events(run.train, "pipeline/bubble_fraction") == {0: 0.375}
    assert events(run.train, "pipeline") == {0: b"    a report\n"}


def test_several_pipelines_have_tags_of_their_own(run):
    with Summaries(run, step=0) as summaries:
        bubbles = {"model/encoder": 0.25, "model/decoder": 0.5}
        summaries.write_pipelines(bubbles, "both\n", step=0)
    assert events(run.train, "pipeline/bubble_fraction/model/encoder") == {0: 0.25}
    assert events(run.train, "pipeline/bubble_fraction/model/decoder") == {0: 0.5}
