"""BERT's pre-training: losses and metrics against NumPy, what is predicted and shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import Attention, Pipeline, Repeat, Stack, context
from lingo.learner.state import Learner, initial_state, load_arrays
from lingo.learner.step import train_step
from lingo.learner.task import check_predictions, check_summaries
from lingo.metrics.media import Table, TokenIds
from lingo.optim import ByPath, Frozen, Sgd
from tasks.bert.task import BertPretraining
from tests.conftest import graph_flops

B, T, K, D, V = 3, 6, 2, 8, 11
DRAW = np.random.default_rng(0)
BATCH = {
    "tokens": DRAW.integers(1, V, [B, T]).astype("i"),
    "types": np.array([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 0, 0]], "i"),
    "segments": np.array([[1] * 6, [1] * 4 + [0] * 2, [1] * 4 + [0] * 2], "i"),
    "masked_positions": np.array([[1, 4], [2, 0], [1, 2]], "i"),
    "masked_ids": np.array([[3, 5], [7, 0], [9, 2]], "i"),
    "masked_weights": np.array([[1, 1], [1, 0], [1, 1]], "f"),
    "is_random": np.array([1, 0, 1], "i"),
    "weights": np.array([1, 1, 0], "f"),
}
COUNTED = BATCH["masked_weights"] * BATCH["weights"][:, None] > 0


def task(**fields: Any) -> Params:
    params = BertPretraining.params(vocab_size=V).set(**fields)
    params.model.dim = D
    params.all(Attention).set(num_heads=2)
    return params


def without_pairs() -> dict[str, np.ndarray]:
    return {name: value for name, value in BATCH.items() if name != "is_random"}


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(array) for name, array in arrays.items()}


@pytest.fixture
def apply(draw: Callable) -> Callable[..., dict[str, Any]]:
    """Calls a method of a task with random weights."""

    def apply(method: str, arrays: dict[str, np.ndarray] = BATCH, **fields: Any) -> dict[str, Any]:
        one = task(**fields).build()
        result, _ = context.apply(one, draw(one), tensors(arrays), method=method)
        return tf.nest.map_structure(lambda x: x.numpy(), result)

    return apply


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype("d") - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.fixture
def log_probs(draw: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Returns log-probabilities of all tokens at all positions [B, T, V], and of pairs [B, 2]."""
    one, batch = task().build(), tensors(BATCH)
    weights = draw(one)

    def compute() -> tuple[Any, Any]:
        x = one.model(batch["tokens"], types=batch["types"], segments=batch["segments"])
        pairs = one.next_sentence(one.model.pool(x))
        return one.head(x, one.model.embedding.vectors()), pairs

    with context.enter_call(context.Call(weights=weights)):
        everywhere, pairs = compute()
    return log_softmax(everywhere.numpy()), log_softmax(pairs.numpy())


def test_losses_and_metrics_are_means_over_what_counts(apply, log_probs):
    everywhere, pairs = log_probs
    found = np.take_along_axis(everywhere, BATCH["masked_positions"][..., None], 1)[COUNTED]
    ids, labels = BATCH["masked_ids"][COUNTED], BATCH["is_random"][:2]
    expected = {
        "masked_loss": -found[np.arange(len(ids)), ids].mean(),
        "masked_accuracy": (found.argmax(-1) == ids).mean(),
        "next_sentence_loss": -pairs[[0, 1], labels].mean(),
        "next_sentence_accuracy": (pairs[:2].argmax(-1) == labels).mean(),
    }
    states = apply("metrics")
    means = {name: state["sum"] / state["weight"] for name, state in states.items()}
    assert means == {name: pytest.approx(value, rel=1e-5) for name, value in expected.items()}
    losses, denominators = apply("loss"), apply("loss_denominators")
    assert denominators == {"examples": 2, "masked_tokens": 3, "next_sentence": 2}
    metrics = task().build().loss_metrics()
    for term, value in losses.items():
        assert value / denominators[term] == pytest.approx(expected[metrics[term]], rel=1e-5)
    results = task().build().results(expected)
    assert results["loss"] == expected["masked_loss"] + expected["next_sentence_loss"]
    assert results.items() > expected.items()


def test_without_pairs_only_masked_tokens_count(apply):
    one = task(next_sentence=None).build()
    assert not any("pooler" in name or "next_sentence" in name for name in one.weights())
    for arrays in (BATCH, without_pairs()):
        assert set(apply("loss", arrays, next_sentence=None)) == {"masked_tokens"}
        assert set(apply("metrics", arrays, next_sentence=None)) == {
            "masked_loss",
            "masked_accuracy",
        }
    assert set(apply("loss", without_pairs())) == {"masked_tokens"}
    assert one.results({"masked_loss": 2.0, "masked_accuracy": 0.5})["loss"] == 2.0
    assert one.results({}) == {}


def test_batches_without_pairs_train_if_the_head_is_frozen_or_absent():
    def train(optimizer: Params, **fields: Any) -> Any:
        learner = Learner(task(**fields).build(), optimizer.build(), seed=1)
        state = tf.nest.map_structure(tf.constant, load_arrays(initial_state(learner)))
        batch = tensors(without_pairs() | {"rows": np.arange(B, dtype="i")})
        return train_step(learner, state, batch)

    sgd = Sgd.params(learning_rate=0.1)
    train(sgd, next_sentence=None)
    pairs = "(model/pooler|next_sentence)/.*"
    train(ByPath.params(groups={pairs: Frozen, f"(?!{pairs}).*": sgd}))
    with pytest.raises(ParamError, match="the loss does not depend on the weight"):
        train(sgd)


def test_predictions_are_the_likeliest_tokens(apply, log_probs):
    everywhere, pairs = log_probs
    at = np.take_along_axis(everywhere, BATCH["masked_positions"][..., None], 1)
    found = apply("predict")
    check_predictions(task().build(), {k: tf.constant(v) for k, v in found.items()}, num_examples=B)
    np.testing.assert_array_equal(found["tokens"], at.argmax(-1))
    np.testing.assert_allclose(found["log_probs"], at.max(-1), rtol=1e-4)
    target = np.take_along_axis(at, BATCH["masked_ids"][..., None], 2)[..., 0]
    np.testing.assert_allclose(found["target_log_probs"], target, rtol=1e-4)
    np.testing.assert_allclose(found["random_probs"], np.exp(pairs[:, 1]), rtol=1e-4)
    texts = {name: BATCH[name] for name in ("tokens", "types", "segments")}
    everywhere_found = apply("predict", texts)
    assert set(everywhere_found) == {"tokens", "log_probs", "random_probs"}
    np.testing.assert_array_equal(everywhere_found["tokens"], everywhere.argmax(-1))
    assert "random_probs" not in apply("predict", texts, next_sentence=None)


def test_the_table_shows_each_masked_token_between_its_neighbours(apply):
    one, predictions = task().build(), apply("predict")
    summaries = one.summaries(BATCH, predictions)
    check_summaries(one.summaries, summaries)
    table = summaries["masked tokens"]
    assert isinstance(table, Table)
    columns, (first, second, third) = table.columns, BATCH["tokens"].tolist()
    assert columns["before"] == ([first[0]], first[:4], second[:2], [third[0]], third[:2])
    assert columns["input"] == ([first[1]], [first[4]], [second[2]], [third[1]], [third[2]])
    assert columns["after"] == (first[2:], [first[5]], [second[3]], third[2:4], [third[3]])
    assert isinstance(columns["input"], TokenIds)
    assert columns["right"] == ([3], [5], [7], [9], [2])
    assert columns["guess"][1] == [predictions["tokens"][0, 1]]
    np.testing.assert_allclose(
        columns["probability of the right token"][2],
        math.exp(predictions["target_log_probs"][1, 0]),
    )
    assert "'3'" in table.with_texts(lambda ids: str(ids[0])).to_markdown()
    nothing = {**BATCH, "masked_weights": np.zeros([B, K], "f")}
    assert one.summaries(nothing, predictions) == {}


def test_flops_are_those_of_the_products_but_for_the_choice_of_positions(draw):
    one = task().build()
    specs = {name: (array.shape, array.dtype.name) for name, array in BATCH.items()}
    weights = draw(one)
    call = tf.function(
        lambda: context.apply(one, weights, tensors(BATCH), method="loss")[0], autograph=False
    )
    choices = 2 * B * K * T * D
    assert graph_flops(call.get_concrete_function().graph) == one.batch_flops(specs) + choices


@pytest.mark.parametrize("stack", [Repeat, Pipeline])
def test_a_scan_and_a_pipeline_compute_what_the_stack_does(stack, draw):
    fields = {"num_stages": 2, "num_micro_batches": 3} if stack is Pipeline else {}
    plain, other = (task() for _ in range(2))
    for params in (plain, other):
        params.model.stack.num_layers = 2
    other.all(Stack).swap(stack, **fields)
    one, two = plain.build(), other.build()
    weights = draw(one)
    stacked = {
        name: weights[name]
        if name in weights
        else tf.stack([weights[name.replace("[0:2]", str(i))] for i in range(2)])
        for name in two.weights()
    }
    expected, found = (
        context.apply(layer, values, tensors(BATCH), method="loss")[0]
        for layer, values in ((one, weights), (two, stacked))
    )
    for term, value in expected.items():
        assert float(found[term]) == pytest.approx(float(value), rel=1e-5)


def test_what_does_not_fit_is_told():
    with pytest.raises(ParamError, match="vocab_size=11, but the input has 12 token ids"):
        task().build().check_input({"vocab_size": 12})
    task().build().check_input({"vocab_size": 11})
    task().build().check_input({})
    params = task()
    params.model.pooler = None
    with pytest.raises(ParamError, match="next_sentence reads the pooled vector"):
        params.build()
