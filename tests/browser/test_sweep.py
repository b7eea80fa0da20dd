"""What TensorBoard shows of a sweep of two trials: one table, in its API and in a browser."""

import json

import pytest

from lingo.cli.main import main
from lingo.trainer.summaries.hparams import HEADLINES

pytestmark = pytest.mark.xdist_group("tensorboard")

MICRO = """
from lingo.config.registry import experiment
from lingo.data.record_source import TextFiles
from lingo.data.document_input import TextInput
from lingo.layers.stacks.stack import Stack
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.optim.adam import AdamW
from lingo.contract import Experiment
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling


@experiment
def micro(text: str):
    stack = Stack.params(layer=TransformerLayer, num_layers=1)
    data = TextInput.params(source=TextFiles.params(pattern=text), batch_size=2, length=8)
    return Experiment.params(
        task=LanguageModeling.params(model=LanguageModel.params(dim=8, stack=stack)),
        train_input=data,
        eval_inputs={"same": data.copy().set(repeat=False, max_batches=2)},
        optimizer=AdamW.params(learning_rate=1e-3),
        max_steps=2,
    )
"""


@pytest.fixture(scope="module")
def sweep_dir(tmp_path_factory):
    """The directory of a sweep over two values of a number and one of a field of a class."""
    folder = tmp_path_factory.mktemp("sweep_dir")
    (folder / "text.txt").write_text("abcabcabd" * 10)
    (folder / "micro.py").write_text(MICRO)
    exp = f"--exp={folder}/micro.py:micro(text={folder}/text.txt)"
    axes = ["--sweep=optimizer.learning_rate=0.001,0.03", "--sweep=Attention.num_heads=2"]
    assert main(["sweep", exp, f"--logdir={folder / 'sweep'}", *axes, "--workers=2"]) == 0
    return folder / "sweep"


@pytest.fixture(scope="module")
def server(sweep_dir, tensorboard):
    with tensorboard(sweep_dir) as server:
        yield server


def trials(sweep_dir):
    """Returns what the sweep says of each trial, by name."""
    results = json.loads((sweep_dir / "results.json").read_text())
    return {trial["name"]: trial for trial in results["trials"]}


def test_every_trial_is_a_row_with_its_values_and_its_metric(server, sweep_dir):
    rows = server.rows()
    assert len(rows) == 2
    for name, trial in trials(sweep_dir).items():
        row = rows[name]
        assert row["status"] == ["STATUS_SUCCESS"]
        assert row["metrics"]["eval_same/eval/loss"] == pytest.approx(trial["value"])
        for target, value in trial["values"].items():
            assert row["hparams"][HEADLINES.get(target, target)] == float(value)


def test_a_browser_shows_two_rows_with_their_values_and_metrics(server, sweep_dir, browser):
    shown = browser.hparams(server)
    browser.screenshot("sweep")
    expected = trials(sweep_dir)
    assert shown.keys() == expected.keys()
    for name, cells in shown.items():
        for target, value in expected[name]["values"].items():
            assert float(cells[HEADLINES.get(target, target)]) == float(value)
        loss = float(cells["eval_same.eval/loss"])
        assert loss == pytest.approx(expected[name]["value"], rel=1e-3)
