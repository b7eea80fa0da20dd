"""What a task shows of an evaluation: of which examples, where, and what a mistake does."""

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lingo.cli.verbs.eval import Evaluator
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.contract import Evaluation, Experiment, Summary
from lingo.data import ArrayInput
from lingo.layers import Linear
from lingo.learner.task import Task
from lingo.metrics import Histogram, Image, Table, Text, confusion, weighted_mean
from lingo.optim import Sgd
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation import best

pytestmark = pytest.mark.usefixtures("once_compiled")

NUM_EXAMPLES = 5  # of the evaluation: a batch of four, and one with padding

SEEN = []
"""(batch, predictions) of each call of `summaries`."""


def examples(size=8):
    return {
        "x": np.arange(3 * size, dtype="f").reshape(size, 3) / size,
        "label": np.arange(size) % 2,
    }


class Parity(Task):
    """Logistic regression that shows something of each kind."""

    linear: Linear = Linear.params(dim=3, output_dim=2, use_bias=True)
    mistake: str = ""  # what its summaries do wrong

    def setup(self):
        self.linear = self.p.linear.build()

    def _losses(self, batch):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(
            batch["label"], self.linear(batch["x"])
        )

    def loss(self, batch):
        return {"error": tf.reduce_sum(batch["weights"] * self._losses(batch))}

    def metrics(self, batch):
        guess = tf.argmax(self.linear(batch["x"]), 1)
        return {
            "error": weighted_mean(self._losses(batch), batch["weights"]),
            "parity": confusion(batch["label"], guess, batch["weights"], num_classes=2),
        }

    def predict(self, batch):
        return {"logits": self.linear(batch["x"])}

    def summaries(self, batch, predictions):
        SEEN.append((batch, predictions))
        if self.p.mistake == "later" and predictions["logits"].any():
            raise KeyError("no such class")
        if self.p.mistake == "form":
            return {"a": object()}
        return {
            "table": Table({"label": batch["label"], "logit": predictions["logits"][:, 0]}),
            "image": Image(batch["x"]),
            "histogram": Histogram(predictions["logits"]),
            "none": Histogram(np.array([np.nan])),
            "text": Text("**b**"),
            "number": predictions["logits"].max(),
        }


def parity(mistake="", **summary):
    data = ArrayInput.params(function=examples, batch_size=4)
    heldout = data.copy().set(arguments={"size": NUM_EXAMPLES}, repeat=False)
    return Experiment.params(
        task=Parity.params(mistake=mistake),
        train_input=data,
        eval_inputs={"heldout": heldout},
        optimizer=Sgd.params(learning_rate=0.1),
        max_steps=4,
        summary=Summary.params(histograms=False, every_steps=1, **summary),
        evaluate=Evaluation.params(every_steps=2),
    )


@pytest.fixture(autouse=True)
def _nothing_seen():
    SEEN.clear()


def shown(folder):
    """Returns the tags of TensorBoard's plugins: tag -> (plugin, steps)."""
    events = EventAccumulator(str(folder)).Reload()
    return {
        tag: (
            events.SummaryMetadata(tag).plugin_data.plugin_name,
            [event.step for event in events.Tensors(tag)],
        )
        for tag in events.Tags()["tensors"]
    }


def test_each_evaluation_shows_everything_beside_its_scalars(run, directory, rows):
    run(parity(), directory)
    tags = shown(directory / "eval_heldout")
    kinds = {tag: plugin for tag, (plugin, _) in tags.items() if plugin != "scalars"}
    assert kinds == {
        "eval/table": "text",
        "eval/image": "images",
        "eval/histogram": "histograms",
        "eval/text": "text",
        "eval/parity/confusion": "images",
    }
    assert all(steps == [2, 4] for _, steps in tags.values())
    assert {"eval/number", "eval/error", "loss/error", "loss/total"} <= tags.keys()
    assert {"loss/error", "loss/total"} == shown(directory / "train").keys() & tags.keys()
    events = EventAccumulator(str(directory / "eval_heldout")).Reload()
    (value,) = events.Tensors("loss/total")[-1].tensor_proto.float_val
    assert value == pytest.approx(rows(directory)[-1]["eval/error"])
    evaluated = {tag for tag in rows(directory)[-1] if tag.startswith("eval/")}
    assert {"eval/error", "eval/parity/accuracy"} <= evaluated
    assert "eval/number" not in evaluated, "rows have metrics alone"


def test_a_resumed_run_shows_each_evaluation_once(run, directory):
    run(parity().set(max_steps=2), directory)
    run(parity(), directory)
    assert all(steps == [2, 4] for _, steps in shown(directory / "eval_heldout").values())


def test_the_examples_are_the_first_of_the_first_batch_with_their_predictions(run, directory):
    run(parity(num_examples=3), directory)
    (_, zeros), *calls = SEEN
    assert zeros["logits"].shape == (3, 2), "before the first step"
    assert not zeros["logits"].any()
    assert len(calls) == 2
    input = parity().build().eval_inputs["heldout"]
    for batch, predictions in calls:
        assert (batch["x"] == input.batch(0)["x"][:3]).all()
        assert {name: value.shape for name, value in predictions.items()} == {"logits": (3, 2)}
        assert predictions["logits"].any()


def test_padding_is_not_an_example(run, directory):
    params = parity()
    params.eval_inputs["heldout"].arguments = {"size": 2}  # half of the only batch is padding
    run(params, directory)
    assert {len(batch["x"]) for batch, _ in SEEN} == {2}
    assert {len(predictions["logits"]) for _, predictions in SEEN} == {2}


def test_a_mistake_in_the_form_is_told_before_the_first_step(run, directory):
    with pytest.raises(ParamError, match=r"Parity.summaries returned a summary 'a' that cannot"):
        run(parity(mistake="form"), directory)
    assert not RunDirectory(directory).exists


def test_an_exception_later_is_a_warning_and_the_run_goes_on(run, directory, caplog):
    assert run(parity(mistake="later"), directory).step == 4
    warning = "Parity.summaries: KeyError: 'no such class'; this evaluation shows nothing of it"
    assert caplog.messages == [warning] * 2
    assert "eval/parity/confusion" in shown(directory / "eval_heldout")


def test_an_evaluation_of_a_checkpoint_shows_the_same(run, directory):
    run(parity(), directory)
    experiment = parity().build()
    found = best.choose(experiment, RunDirectory(directory), None)
    (result,) = Evaluator(experiment).evaluate_checkpoint(found)
    assert {"table", "parity/confusion"} <= result.summaries.keys()
    assert result.summaries["number"] == SEEN[-2][1]["logits"].max(), "as at the end of training"
