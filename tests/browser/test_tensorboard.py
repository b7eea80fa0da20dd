"""What TensorBoard shows of two small runs: by its HTTP API, and in a browser."""

import json
import urllib.parse

import numpy as np
import pytest

from lingo.config.serial import Origin
from lingo.contract import Evaluation, Experiment, Summary
from lingo.data.document_input import TextInput
from lingo.data.record_source import TextFiles
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.optim.adam import AdamW
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.request import Request
from lingo.trainer.run import train
from lingo.trainer.summaries.summaries import Summaries
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

pytestmark = pytest.mark.xdist_group("tensorboard")

RATES = {"slow": 0.001, "fast": 0.01}
LOAD = "state/layers/{}/load"
LOADS = {
    1: {LOAD.format(2): np.array([0.5, 0.5]), LOAD.format(10): np.array([0.0, 0.0])},
    2: {LOAD.format(2): np.array([0.0, 1.0]), LOAD.format(10): np.array([0.7, 0.7])},
}
"""Of two experts in two layers."""


def small_run(directory, text, name, max_steps):
    """Trains a few steps; the fast run scans over its layers."""
    layer = TransformerLayer.params(attention=Attention.params(num_heads=2))
    stack = (Repeat if name == "fast" else Stack).params(layer=layer, num_layers=2)
    data = TextInput.params(batch_size=4, length=8, source=TextFiles.params(pattern=str(text)))
    params = Experiment.params(
        task=LanguageModeling.params(model=LanguageModel.params(dim=8, stack=stack)),
        train_input=data,
        eval_inputs={"same": data.copy().set(repeat=False)},
        optimizer=AdamW.params(learning_rate=RATES[name]),
        max_steps=max_steps,
        summary=Summary.params(every_steps=1, histograms=max_steps == 4),
        evaluate=Evaluation.params(every_steps=2),
    )
    origin = Origin("small", "small.py", "small", {"width": 8}, ("Stack=Any", "a.b='c'"))
    train(Request(params, "{}", "", origin), RunDirectory(directory / name))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A directory of two runs. The slow one was done after two steps, then went on otherwise."""
    directory = tmp_path_factory.mktemp("runs")
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("abcabcabd" * 10)
    for name, max_steps in (("slow", 2), ("slow", 4), ("fast", 4)):
        small_run(directory, text, name, max_steps)
    (directory / "texts").mkdir()
    with Summaries(RunDirectory(directory / "texts"), step=0) as summaries:
        summaries.write_samples(1, {"def f": "<b>*f*</b>"})
        for step in (1, 2):
            summaries.write_step(step, {}, vectors=LOADS[step])
            summaries.write_images(step)
    return directory


@pytest.fixture(scope="module")
def server(runs, tensorboard):
    with tensorboard(runs) as server:
        yield server


def metrics(runs, name):
    return [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]


def plugin(server, path, **query):
    return server.get(f"data/plugin/{path}?{urllib.parse.urlencode(query)}")


def test_scalars_are_those_of_the_metrics_each_step_once(server, runs):
    series = plugin(server, "scalars/scalars", run="slow/train", tag="loss/total")
    assert [(step, pytest.approx(value)) for _, step, value in series] == [
        (row["step"], row["loss/total"]) for row in metrics(runs, "slow")
    ]
    assert [step for _, step, _ in series] == [1, 2, 3, 4]
    series = plugin(server, "scalars/scalars", run="slow/eval_same", tag="eval/loss")
    assert [step for _, step, _ in series] == [2, 4]


def test_every_weight_has_a_histogram_by_layer_also_in_a_scan(server):
    tags = plugin(server, "histograms/tags")
    assert tags["slow/train"].keys() == tags["fast/train"].keys()
    tag = "weights/model/stack/layers/1/ffn/w_in"
    found = plugin(server, "histograms/histograms", run="fast/train", tag=tag)
    assert [step for _, step, _ in found] == [2, 4]
    assert sum(count for _, _, count in found[0][2]) == 8 * 32


def test_histograms_can_be_turned_off(server):
    tag = "weights/model/norm/scale"
    found = plugin(server, "histograms/histograms", run="slow/train", tag=tag)
    assert [step for _, step, _ in found] == [4]  # they were off before it went on


def test_the_graph_is_that_of_a_step_with_layers_as_scopes(server):
    graph = server.file("data/plugin/graphs/graph?run=slow%2Ftrain&conceptual=false").decode()
    assert "/stack/layers/1/ffn/einsum" in graph
    assert 'name: "update/' in graph


def test_the_configuration_is_a_text_written_again_where_it_changed(server, runs):
    found = plugin(server, "text/text", run="slow/train", tag="config")
    assert [event["step"] for event in found] == [0, 2]
    assert "optimizer.learning_rate = 0.001" in found[0]["text"]
    assert "max_steps = 4" in found[1]["text"]


def test_samples_are_shown_as_they_are(server):
    (event,) = plugin(server, "text/text", run="texts/train", tag="samples")
    assert "<code>def f\n</code>" in event["text"]
    assert "<code>&lt;b&gt;*f*&lt;/b&gt;\n</code>" in event["text"]


def test_statistics_over_time_are_pictures_with_a_legend(server):
    tags = plugin(server, "images/tags")
    assert tags.keys() == {"texts/train"}
    shown = {tag: about["description"] for tag, about in tags["texts/train"].items()}
    assert shown.keys() == {"load", LOAD.format(2), LOAD.format(10)}
    assert all("<strong>White</strong>: equal" in legend for legend in shown.values())
    assert "One layer below the other" in shown["load"]


def test_a_run_is_one_row_of_hyperparameters_with_its_last_metrics(server, runs):
    rows = server.rows()
    assert rows.keys() == RATES.keys()
    for name, row in rows.items():
        assert row["hparams"] == {
            "experiment": "small",
            "learning_rate": RATES[name],
            "batch_size": 4,
            "max_steps": 4,
            "seed": 0,
            "width": 8,
            "Stack": "Any",
            "a.b": "c",
            "weights": row["hparams"]["weights"],
        }
        last = metrics(runs, name)[-1]
        assert row["metrics"]["train/loss/total"] == pytest.approx(last["loss/total"])
        assert row["metrics"]["eval_same/eval/loss"] == pytest.approx(last["eval/loss"])
        assert row["status"] == ["STATUS_SUCCESS"]


def test_a_browser_draws_the_loss_of_every_run_in_training_and_evaluation(server, browser):
    curves = browser.curves(server, "loss/total")
    browser.screenshot("scalars")
    assert sorted(len(heights) for heights in curves) == [2, 2, 4, 4]
    assert all(len(set(heights)) > 1 for heights in curves)
