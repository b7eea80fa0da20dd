"""Evaluation means over examples, however they are batched; what a task shows of some."""

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lingo.cli.verbs.eval import Evaluator
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.contract import Evaluation, Experiment, Summary
from lingo.data import ArrayInput
from lingo.data.document_input import TextInput
from lingo.data.record_source import TextFiles
from lingo.layers import Linear
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.stack import Stack
from lingo.learner.state import Learner, initial_state
from lingo.learner.task import Task
from lingo.metrics import Audio, Histogram, Image, Table, Text, confusion, weighted_mean
from lingo.metrics.metric import add_states
from lingo.optim import Sgd
from lingo.runtimes.local import Local
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation import best
from lingo.trainer.evaluation.evaluate import evaluate, loss_terms
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling
from tests.processor import HAS_AVX512

LENGTH = 8  # of multiples of 8 tokens, matrix products give each row the same bits


@pytest.fixture
def data(tmp_path):
    draw = np.random.RandomState(0)
    for i in range(4):
        (tmp_path / f"{i}.txt").write_bytes(bytes(draw.randint(97, 100, 5 + 3 * i).tolist()))
    return TextInput.params(
        batch_size=1, length=LENGTH, repeat=False, source=TextFiles.params(pattern=f"{tmp_path}/*")
    )


def learner(vocab_size):
    layer = TransformerLayer.params(attention=Attention.params(num_heads=1))
    model = LanguageModel.params(dim=4, stack=Stack.params(layer=layer))
    task = LanguageModeling.params(vocab_size=vocab_size, model=model).build()
    return Learner(task, Sgd.params(learning_rate=0.1, ema_decay=0.5).build())


@pytest.mark.parametrize(
    ("length", "sizes", "rel"),
    [  # of float32; sums are exact
        (LENGTH, (1, 4, 5), 1e-9 if HAS_AVX512 else 1e-7),
        (5, (1, 2, 4), 1e-7),
    ],
)
def test_the_size_of_batches_changes_nothing_but_the_rounding_of_products(data, length, sizes, rel):
    inputs = [data.copy().set(batch_size=size, length=length).build() for size in sizes]
    one = learner(inputs[0].vocab_size)
    program = Local.params().build().start(one, initial_state(one))
    results = [evaluate(one.task, program, input) for input in inputs]
    assert inputs[0].num_examples() % sizes[1], "the last batches have padding"
    assert set(results[0]) == {"loss", "accuracy", "perplexity", "bits_per_byte"}
    for result in results:
        assert result == pytest.approx(results[0], rel=rel)


class Recording:
    """A program whose batches have known sums."""

    def __init__(self):
        self.asked = []

    def example_slice(self, size):
        return slice(0, size)

    def evaluate(self, batch, *, weights, sums):
        self.asked.append(weights)
        n = len(self.asked)
        mean = {"sum": np.float64(n * n), "weight": np.float64(n)}
        return add_states(sums, {"loss": mean, "accuracy": mean})

    def read_sums(self, sums):
        return sums


def test_sums_are_divided_once_and_the_weights_asked_for_are_used(data):
    input, program = data.copy().set(max_batches=3).build(), Recording()
    results = evaluate(learner(input.vocab_size).task, program, input, weights="ema")
    assert program.asked == ["ema"] * 3
    assert results["loss"] == pytest.approx((1 + 4 + 9) / (1 + 2 + 3))
    assert results["perplexity"] == pytest.approx(np.exp(14 / 6))


def test_it_can_be_left_between_two_batches(data):
    def first_two(steps):
        for step in steps:
            if step == 2:
                raise TimeoutError
            yield step

    input, program = data.copy().set(max_batches=4).build(), Recording()
    task = learner(input.vocab_size).task
    with pytest.raises(TimeoutError):
        evaluate(task, program, input, between=first_two)
    assert len(program.asked) == 2


class Terms:
    """A task whose metrics have other names than its terms."""

    def loss_metrics(self):
        return {"cross_entropy": "loss"}

    def coefficients(self):
        return {"z": 0.5}


@pytest.mark.parametrize(
    ("metrics", "terms", "found"),
    [
        ({"loss": 2.0}, ["cross_entropy"], {"loss/cross_entropy": 2.0, "loss/total": 2.0}),
        ({"loss": 2.0}, ["cross_entropy", "aux"], {"loss/cross_entropy": 2.0}),
        ({"loss": 2.0, "loss/z": 4.0}, ["cross_entropy", "z"], {"loss/total": 2.0 + 0.5 * 4.0}),
        ({"z": 4.0}, ["z"], {"loss/z": 4.0, "loss/total": 2.0}),
        ({"accuracy": 1.0}, ["cross_entropy"], {}),
        ({"loss": 2.0}, [], {}),
    ],
)
def test_loss_terms_have_the_tags_of_training_and_the_total_if_all_are_there(metrics, terms, found):
    row = {f"loss/{term}": 0.0 for term in [*terms, "total"]} if terms else {}
    rows = [{"step": 1, "loss/total": 1.0, "loss/old": 1.0}, row, {"step": 2, "eval/loss": 1.0}]
    given = loss_terms(Terms(), metrics, rows if terms else [])
    assert found.items() <= given.items()
    assert ("loss/total" in given) == ("loss/total" in found)


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
    warning = "Parity.summaries: KeyError: 'no such class'; this evaluation lacks its summaries"
    assert caplog.messages == [warning] * 2
    assert "eval/parity/confusion" in shown(directory / "eval_heldout")


def test_an_evaluation_of_a_checkpoint_shows_the_same(run, directory):
    run(parity(), directory)
    experiment = parity().build()
    found = best.choose(experiment, RunDirectory(directory), None)
    (result,) = Evaluator(experiment).evaluate_checkpoint(found)
    assert {"table", "parity/confusion"} <= result.summaries.keys()
    assert result.summaries["number"] == SEEN[-2][1]["logits"].max(), "as at the end of training"


class Talking(ArrayInput):
    """An input that shows something of its own, and a table under the task's name for one."""

    mistake: str = ""  # what its summaries do wrong

    def summaries(self, numbers, predictions):
        if self.p.mistake == "form":
            return {"error": 1.0}  # the name of a metric
        return {
            "sound": Audio(np.zeros([1, len(numbers), 1]), 8000),
            "table": Table({"number": numbers}),
        }


def talking(**fields):
    params = parity()
    heldout = params.eval_inputs["heldout"]
    params.eval_inputs["heldout"] = Talking.params(
        function=examples,
        arguments=dict(heldout.arguments),
        batch_size=4,
        repeat=False,
        **fields,
    )
    return params


def test_an_input_shows_what_batches_do_not_have_and_the_task_comes_first(run, directory):
    run(talking(), directory)
    tags = shown(directory / "eval_heldout")
    assert {"eval/sound", "eval/table", "eval/image"} <= {*tags}
    found = best.choose(talking().build(), RunDirectory(directory), None)
    (result,) = Evaluator(talking().build()).evaluate_checkpoint(found)
    assert "label" in result.summaries["table"].columns, "the task's"
    assert result.summaries["sound"].waveforms.shape == (1, 4, 1)


def test_a_mistake_of_an_inputs_summaries_is_told_before_the_first_step(run, directory):
    with pytest.raises(ParamError, match=r"summaries.*'error' is the name of a metric"):
        run(talking(mistake="form"), directory)
    assert not RunDirectory(directory).exists


def averaged(**evaluation):
    """Returns an experiment that is evaluated on 5 and on 2 examples, with averages of both."""
    params = parity()
    few = params.eval_inputs["heldout"].copy().set(arguments={"size": 2})
    params.eval_inputs = {"heldout": params.eval_inputs["heldout"], "few": few}
    values = {"every_steps": 2, "averages": {"both": ["heldout", "few"], "one": ["few"]}}
    return params.set(evaluate=Evaluation.params(**values | evaluation))


def test_an_average_counts_every_input_alike(run, directory, rows):
    outcome = run(averaged(), directory)
    last = rows(directory)[-1]
    mean = (last["eval/error"] + last["eval/error@few"]) / 2
    assert last["eval/error@both"] == pytest.approx(mean)
    assert last["eval/error@one"] == last["eval/error@few"]
    assert outcome.evaluations["both"]["eval/error"] == last["eval/error@both"]
    assert shown(directory / "eval_both")["eval/error"] == ("scalars", [2, 4])
    experiment = averaged().build()
    found = best.choose(experiment, RunDirectory(directory), None)
    results = Evaluator(experiment).evaluate_checkpoint(found)
    assert [result.input for result in results] == ["heldout", "few", "both", "one"]
    assert results[2].metrics["error"] == pytest.approx(mean)
    table = results[2].summaries["inputs/table"]
    assert table.columns["input"] == ["heldout", "few"]
    assert table.columns["error"] == [result.metrics["error"] for result in results[:2]]
    tags = shown(directory / "eval_both")
    assert {"eval/inputs/table", "eval/inputs/picture"} <= tags.keys()


def test_a_run_can_be_compared_by_an_average(run, directory, rows):
    params = averaged(metric="both/error")
    run(params, directory)
    scores = best.ranking(params.build(), rows(directory)).scores
    assert [score.step for score in scores] == [2, 4]
    assert scores[-1].value == rows(directory)[-1]["eval/error@both"]


@pytest.mark.parametrize(
    ("averages", "message"),
    [
        ({"heldout": ["few"]}, r"averages\['heldout'\]: an evaluation input has this name"),
        ({"both": []}, r"averages\['both'\] is empty: name some of eval_inputs"),
        ({"both": ["few", "fex"]}, r"'fex', which is not one of .* few. Did you mean 'few'\?"),
        ({"a/b": ["few"]}, "the name becomes part of a path"),
    ],
)
def test_an_average_of_no_use_is_refused(averages, message):
    with pytest.raises(ParamError, match=message):
        averaged(averages=averages).build()
