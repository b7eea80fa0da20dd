"""Question answering by spans: the loss and the metrics, against NumPy, and a step."""

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from tasks.bert.question_task import QuestionAnswering

B, T, D, V = 3, 6, 8, 11
DRAW = np.random.default_rng(0)
SIZES = np.array([6, 4, 5])
BATCH = {
    "tokens": DRAW.integers(0, V, (B, T)).astype("i"),
    "types": np.tile([0, 0, 1, 1, 1, 1], (B, 1)).astype("i"),
    "segments": (np.arange(T) < SIZES[:, None]).astype("i"),
    "starts": np.array([2, 0, 3], "i"),
    "ends": np.array([4, 0, 3], "i"),
    "weights": np.array([1, 1, 0], "f"),
    "rows": np.arange(B, dtype="i"),
}


def task():
    params = QuestionAnswering.params(vocab_size=V)
    params.model.dim = D
    params.model.stack.num_layers = 1
    params.model.stack.layer.attention.num_heads = 2
    return params.build()


@pytest.fixture
def call():
    """Calls a method of the task with random weights."""
    built = task()
    weights = {
        name: tf.constant(np.random.default_rng(1).normal(size=spec.shape), tf.float32)
        for name, spec in built.weights().items()
    }

    def call(method, batch=BATCH):
        tensors = {name: tf.constant(value) for name, value in batch.items()}
        return tf.nest.map_structure(
            lambda x: x.numpy(), context.apply(built, weights, tensors, method=method)[0]
        )

    return call


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_the_loss_is_the_mean_of_both_cross_entropies(call):
    predictions, rows = call("predict"), np.arange(B)
    starts, ends = (log_softmax(predictions[f"{end}_logits"]) for end in ("start", "end"))
    losses = -(starts[rows, BATCH["starts"]] + ends[rows, BATCH["ends"]]) / 2
    np.testing.assert_allclose(call("loss")["cross_entropy"], losses[:2].sum(), rtol=1e-5)
    metrics = call("metrics")
    np.testing.assert_allclose(metrics["loss"]["sum"], losses[:2].sum(), rtol=1e-5)
    assert metrics["accuracy"]["weight"] == 2


def test_an_input_with_more_token_ids_is_refused():
    task().check_input({"vocab_size": V})
    with pytest.raises(ParamError, match=r"task\.vocab_size=11, but the input has 12 token ids"):
        task().check_input({"vocab_size": V + 1})


def test_padding_is_neither_likely_nor_seen(call):
    predictions = call("predict")
    padding = BATCH["segments"] == 0
    assert (predictions["start_logits"][padding] == -1e9).all()
    other = {**BATCH, "tokens": np.where(padding, (BATCH["tokens"] + 1) % V, BATCH["tokens"])}
    for name, values in call("predict", other).items():
        np.testing.assert_array_equal(values, predictions[name])


def test_a_row_is_right_if_both_ends_are(call):
    predictions = call("predict")
    starts, ends = (predictions[f"{end}_logits"].argmax(-1) for end in ("start", "end"))
    both = {**BATCH, "starts": starts.astype("i"), "ends": ends.astype("i")}
    assert call("metrics", both)["accuracy"]["sum"] == 2
    one = {**both, "ends": ((ends + 1) % T).astype("i")}
    assert call("metrics", one)["accuracy"]["sum"] == 0
