"""What a run shows of its layers: their losses, their metrics, their statistics over time.

`loaded.py` has the experiment, and trains it on every runtime.
"""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from lingo.config.lazy import tf
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.stack import Stack
from lingo.trainer.summaries import history
from tasks.lm.task import LanguageModeling
from tests.lingo.runtimes.child import QUICK_TO_COMPILE

ROOT = pathlib.Path(__file__).parents[3]
PROGRAM = pathlib.Path(__file__).with_name("loaded.py")
pytestmark = pytest.mark.xdist_group("shown")  # the program runs once
TIMEOUT = 300.0  # seconds

OTHERS = ["repeat", "replicated", "mesh", "resumed"]
NAMES = [f"state/model/stack/layers/{i}/ffn/load" for i in range(2)]
NUM_STEPS = 6


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        cwd=folder,
        env={
            "PATH": "",
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(folder / "cache"),
            **QUICK_TO_COMPILE,
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def rows(run, file="vectors.jsonl"):
    lines = (run / file).read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines]


def vectors(run):
    """Returns the load of each expert by report and layer."""
    return np.array([[row[name] for name in NAMES] for row in rows(run)])


def pictures(run, tag):
    """Returns the pictures of a tag by step, uint8 [H, W, 3]."""
    found = {}
    for event in EventAccumulator(str(run / "train")).Reload().Tensors(tag):
        width, height, file = tensor_util.make_ndarray(event.tensor_proto)
        found[event.step] = tf.io.decode_png(file, channels=3).numpy()
        assert found[event.step].shape[:2] == (int(height), int(width))
    return found


def scalars(run, folder, tag):
    events = EventAccumulator(str(run / folder)).Reload().Tensors(tag)
    return [tensor_util.make_ndarray(event.tensor_proto).item() for event in events]


# ---- statistics over time


def test_each_report_has_the_statistics_after_its_step_and_no_others(runs):
    assert [row.keys() for row in rows(runs / "local")] == [{"step", *NAMES}] * NUM_STEPS
    assert [row["step"] for row in rows(runs / "local")] == [1, 2, 3, 4, 5, 6]
    total = np.sum(vectors(runs / "local"), axis=-1)  # moving averages of shares, zero at first
    np.testing.assert_allclose(total.T, [1 - 0.5 ** np.arange(1, 7)] * 2, rtol=1e-3)


@pytest.mark.parametrize("name", OTHERS)
def test_they_are_those_of_one_device_one_step_at_a_time(runs, name):
    assert [row.keys() for row in rows(runs / name)] == [{"step", *NAMES}] * NUM_STEPS
    np.testing.assert_allclose(vectors(runs / name), vectors(runs / "local"), rtol=2e-3)


def test_a_run_that_was_stopped_has_the_rows_of_one_that_was_not(runs):
    assert rows(runs / "resumed") == rows(runs / "local")


@pytest.mark.parametrize("run", ["local", "repeat", "mesh", "resumed", "rewound"])
def test_a_picture_has_the_load_of_each_expert_at_each_report(runs, run):
    for i, name in enumerate(NAMES):
        found = pictures(runs / run, name)
        assert list(found) == ([3, 4, 6] if run == "resumed" else [3, 6])
        for step, pixels in found.items():
            colours = history.cell_colours(vectors(runs / run)[:step, i].T)
            expected = np.kron(colours, np.ones([16, 16, 1], int))
            np.testing.assert_array_equal(pixels, expected)


def test_a_rewind_takes_back_what_it_does_again(runs):
    assert [row["step"] for row in rows(runs / "rewound")] == [1, 2, 3, 4, 5, 6]
    both = vectors(runs / "rewound"), vectors(runs / "local")
    np.testing.assert_array_equal(both[0][:2], both[1][:2])
    assert (both[0][2:] != both[1][2:]).any()  # other data


def test_where_nothing_is_to_be_shown_nothing_is_written(small, run, directory):
    run(small(max_steps=1), directory)
    assert not (directory / "vectors.jsonl").exists()
    found = EventAccumulator(str(directory / "train")).Reload()
    assert not [tag for tag in found.Tags()["tensors"] if tag.startswith("pipeline")]
    with pytest.raises(KeyError, match="images"):
        found.PluginTagToContent("images")


# ---- pipelines


@pytest.mark.usefixtures("once_compiled")
def test_a_run_shows_its_pipeline_when_its_configuration_is_new(small, run, directory):
    params = small(max_steps=2)
    params.all(Stack).swap(Pipeline, num_stages=2, num_micro_batches=4)
    run(params, directory)
    run(params.set(max_steps=3), directory)
    found = EventAccumulator(str(directory / "train")).Reload()
    for said, step in zip(found.Tensors("pipeline"), (0, 2), strict=True):
        report = tensor_util.make_ndarray(said.tensor_proto).item().decode()
        assert "model/stack: fill_drain, 2 stages, 4 micro-batches of [1, 8, 8]" in report
        assert said.step == step
    bubbles = scalars(directory, "train", "pipeline/bubble_fraction")
    assert bubbles == pytest.approx([1 / 5] * 2)


def test_a_run_without_counted_operations_trains(small, run, directory, monkeypatch, caplog):
    monkeypatch.setattr(LanguageModeling, "batch_flops", lambda self, specs: 0)
    params = small(max_steps=1)
    params.all(Stack).swap(Pipeline, num_stages=2, num_micro_batches=4)
    assert run(params, directory).state == "done"
    assert "no report on the pipeline: model/stack" in caplog.text


# ---- losses and metrics of layers


@pytest.mark.parametrize("name", ["local", *OTHERS])
def test_a_loss_of_layers_is_a_term_of_the_loss(runs, name):
    for row in rows(runs / name, "metrics.jsonl"):
        assert row["loss/toy_balance"] == pytest.approx(0.25 * 2)  # by example, over layers
        total = row["loss/cross_entropy"] + row["loss/toy_balance"]
        assert row["loss/total"] == pytest.approx(total)
    assert scalars(runs / name, "train", "loss/toy_balance") == pytest.approx([0.5] * NUM_STEPS)


@pytest.mark.parametrize("name", ["local", *OTHERS])
def test_a_metric_of_layers_is_in_rows_and_in_tensorboard(runs, name):
    expected = [row["toy/max_load"] for row in rows(runs / "local", "metrics.jsonl")]
    assert all(1 / 3 < value < 1 for value in expected)
    found = [row["toy/max_load"] for row in rows(runs / name, "metrics.jsonl")]
    assert found == pytest.approx(expected, rel=1e-4)
    assert scalars(runs / name, "train", "toy/max_load") == pytest.approx(found)


@pytest.mark.parametrize("name", ["local", *OTHERS])
def test_it_is_a_metric_of_evaluations_too(runs, name):
    tag = "eval/toy/max_load"
    found, expected = (
        {row["step"]: row[tag] for row in rows(runs / run, "metrics.jsonl") if tag in row}
        for run in (name, "local")
    )
    assert expected.keys() == {3, 6}
    assert {step: found[step] for step in expected} == pytest.approx(expected, rel=1e-4)
    assert scalars(runs / name, "eval_same", tag) == pytest.approx(list(found.values()))
