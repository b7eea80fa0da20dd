"""Evaluation means over examples, however they are batched and padded."""

import numpy as np
import pytest

from lingo.data.record_source import TextFiles
from lingo.data.text_input import TextInput
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.stack import Stack
from lingo.learner.state import Learner, initial_state
from lingo.metrics.metric import add_states
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
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
