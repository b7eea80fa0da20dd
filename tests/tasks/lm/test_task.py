"""Language modelling: the loss and the metrics, against NumPy.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import Attention, Linear, MoE, Remat, Repeat, Stack, TransformerLayer, context
from lingo.layers.moe.learned import ExpertChoiceRouter
from lingo.layers.moe.router import HashRouter, Router
from lingo.layers.moe.token_choice import GShardRouter, SwitchRouter, TopNRouter
from lingo.layers.sequence.mask import Bidirectional, LocalWindow, Prefix
from lingo.learner.state import initial_value
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

B, T, V, D = 3, 4, 7, 5
DRAW = np.random.default_rng(0)
BATCH = {
    "tokens": DRAW.integers(0, V, [B, T]).astype("i"),
    "targets": DRAW.integers(0, V, [B, T]).astype("i"),
    "segments": np.array([[1, 1, 2, 2], [1, 1, 1, 0], [1, 1, 1, 1]], "i"),
    "positions": np.tile(np.arange(T, dtype="i"), (B, 1)),
    "weights": np.array([1, 1, 0], "f"),
}
COUNTED = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]], bool)


STACK = Stack.params(layer=Linear.params(output_dim=D), num_layers=1)
TASK = LanguageModeling.params(vocab_size=V, model=LanguageModel.params(dim=D, stack=STACK)).build()
WEIGHTS = {k: 3 * initial_value(s, 0) for k, s in TASK.weights().items()}


def call(method: str, task: LanguageModeling = TASK, **changes: Any) -> Any:
    batch = {k: tf.constant(v) for k, v in (BATCH | changes).items()}
    return context.apply(task, WEIGHTS, batch, method=method)[0]


def with_extras(**fields: Any) -> LanguageModeling:
    """Returns the task with fields of the loss set."""
    model = LanguageModel.params(dim=D, stack=STACK.copy())
    return LanguageModeling.params(vocab_size=V, model=model, **fields).build()


def logits() -> np.ndarray:
    return context.apply(TASK.model, WEIGHTS, tf.constant(BATCH["tokens"]))[0].numpy()


def log_z() -> np.ndarray:
    return np.log(np.exp(logits()).sum(-1))


def log_probabilities() -> np.ndarray:
    return logits() - log_z()[..., None]


def test_the_loss_is_minus_the_log_probability_of_counted_targets() -> None:
    found = np.take_along_axis(log_probabilities(), BATCH["targets"][..., None], -1)[..., 0]
    other = np.where(COUNTED, BATCH["targets"], (BATCH["targets"] + 1) % V)
    for targets in (BATCH["targets"], other):
        loss = call("loss", targets=targets)["cross_entropy"]
        np.testing.assert_allclose(loss, -found[COUNTED].sum(), rtol=1e-5)
    norms = {name: float(value) for name, value in call("loss_denominators").items()}
    assert norms == {"cross_entropy": COUNTED.sum(), "examples": 2.0}


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_smoothing_and_the_z_loss_are_summed_over_counted_targets(chunk_size: int | None) -> None:
    task = with_extras(label_smoothing=0.1, z_loss=1e-3, chunk_size=chunk_size)
    found = log_probabilities()
    labels = 0.9 * np.eye(V)[BATCH["targets"]] + 0.1 / V
    smoothed = -(labels * found).sum(-1)[COUNTED].sum()
    z_loss = (log_z() ** 2)[COUNTED].sum()
    losses = {term: float(value) for term, value in call("loss", task).items()}
    assert losses == pytest.approx({"cross_entropy": smoothed, "z_loss": z_loss}, rel=1e-5)
    norms = {name: float(value) for name, value in call("loss_denominators", task).items()}
    assert norms == {"cross_entropy": COUNTED.sum(), "z_loss": COUNTED.sum(), "examples": 2.0}
    assert task.coefficients()["z_loss"] == 1e-3


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_predictions_are_the_likeliest_tokens_and_log_probabilities(chunk_size: int | None) -> None:
    found, expected = call("predict", with_extras(chunk_size=chunk_size)), log_probabilities()
    np.testing.assert_array_equal(found["tokens"], expected.argmax(-1))
    np.testing.assert_allclose(found["log_probs"], expected.max(-1), rtol=1e-4, atol=1e-6)
    of_targets = np.take_along_axis(expected, BATCH["targets"][..., None], -1)[..., 0]
    np.testing.assert_allclose(found["target_log_probs"], of_targets, rtol=1e-4, atol=1e-6)


def test_predictions_need_no_targets() -> None:
    batch = {k: tf.constant(v) for k, v in BATCH.items() if k in ("tokens", "segments")}
    found = context.apply(TASK, WEIGHTS, batch, method="predict")[0]
    assert {k: (v.dtype, v.shape) for k, v in found.items()} == {
        "tokens": (tf.int32, BATCH["tokens"].shape),
        "log_probs": (tf.float32, BATCH["tokens"].shape),
    }


def test_metrics_are_sums_over_counted_tokens() -> None:
    metrics = call("metrics", with_extras(label_smoothing=0.1, z_loss=1e-3, chunk_size=2))
    assert set(metrics) == {"loss", "accuracy"}
    right = log_probabilities().argmax(-1) == BATCH["targets"]
    assert float(metrics["accuracy"]["sum"]) == right[COUNTED].sum()
    np.testing.assert_allclose(metrics["loss"]["sum"], call("loss")["cross_entropy"], rtol=1e-6)
    assert {float(state["weight"]) for state in metrics.values()} == {COUNTED.sum()}
    results = TASK.results({"loss": math.log(8.0), "accuracy": 0.5})
    assert results == pytest.approx({"loss": math.log(8.0), "accuracy": 0.5, "perplexity": 8.0})


def test_logits_are_computed_once_for_all_metrics() -> None:
    def metrics(batch: Any) -> Any:
        return context.apply(TASK, WEIGHTS, batch, method="metrics")[0]

    batch = {k: tf.constant(v) for k, v in BATCH.items()}
    graph = tf.function(metrics, autograph=False).get_concrete_function(batch).graph
    wide = [
        op for op in graph.get_operations() if op.type == "Einsum" and op.outputs[0].shape[-1] == V
    ]
    assert len(wide) == 1


def test_bits_per_byte_are_those_of_the_text_that_counts() -> None:
    assert "bits_per_byte" not in call("metrics")
    state = call("metrics", bytes=np.array([10, 7, 9], "i"))["bits_per_byte"]
    assert float(state["weight"]) == 17.0  # the last example has weight 0
    nats = float(call("metrics")["loss"]["sum"])
    assert float(state["sum"]) == pytest.approx(nats / math.log(2), rel=1e-12)


PREFIX = {
    "prefix": np.array([[1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0]], bool),
    "target_weights": np.array([[1, 1, 0, 1], [0, 1, 1, 0], [0, 0, 1, 1]], "f"),
}


def test_targets_of_weight_0_count_nowhere() -> None:
    counted = COUNTED & (PREFIX["target_weights"] > 0)
    found = np.take_along_axis(log_probabilities(), BATCH["targets"][..., None], -1)[..., 0]
    np.testing.assert_allclose(
        call("loss", **PREFIX)["cross_entropy"], -found[counted].sum(), rtol=1e-5
    )
    assert float(call("loss_denominators", **PREFIX)["cross_entropy"]) == counted.sum()
    metrics = call("metrics", **PREFIX)
    assert {float(metrics[k]["weight"]) for k in ("loss", "accuracy")} == {counted.sum()}


def test_an_exact_match_is_asked_of_the_targets_that_count() -> None:
    right = log_probabilities().argmax(-1).astype("i")

    def matches(*wrong: tuple[int, int]) -> dict[str, float]:
        targets = right.copy()
        for place in wrong:
            targets[place] = (targets[place] + 1) % V
        state = call("metrics", targets=targets, **PREFIX)["exact_match"]
        return {name: float(value) for name, value in state.items()}

    assert matches() == {"sum": 3.0, "weight": 3.0}  # documents, the last example has weight 0
    assert matches((0, 2), (1, 0), (2, 2)) == {"sum": 3.0, "weight": 3.0}
    assert matches((0, 0)) == matches((0, 0), (0, 1)) == {"sum": 2.0, "weight": 3.0}
    assert matches((0, 3), (1, 1)) == {"sum": 1.0, "weight": 3.0}


def test_a_batch_says_what_a_prefix_mask_shows() -> None:
    layer = TransformerLayer.params(attention=Attention.params(num_heads=1, mask=Prefix))
    model = LanguageModel.params(dim=D, stack=Stack.params(layer=layer))
    task = LanguageModeling.params(vocab_size=V, model=model).build()
    weights = {k: initial_value(s, 0) for k, s in task.weights().items()}

    def first_activations(tokens: np.ndarray, **prefix: np.ndarray) -> np.ndarray:
        batch = {k: tf.constant(v) for k, v in (BATCH | {"tokens": tokens} | prefix).items()}
        return context.apply(task, weights, batch, method="activations")[0].numpy()[:, 0]

    other = BATCH["tokens"].copy()
    other[:, 1] = (other[:, 1] + 1) % V
    sees = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]], bool)
    shown = [first_activations(tokens, prefix=sees) for tokens in (BATCH["tokens"], other)]
    hidden = [first_activations(tokens) for tokens in (BATCH["tokens"], other)]
    changed = np.abs(shown[0] - shown[1]).max(axis=-1) > 1e-6
    assert changed.tolist() == [True, True, False]
    np.testing.assert_array_equal(*hidden)


def test_an_input_with_more_tokens_than_the_model_is_refused() -> None:
    TASK.check_input({"vocab_size": V})
    with pytest.raises(ParamError, match=r"task\.vocab_size=7, but the input has 8 token ids"):
        TASK.check_input({"vocab_size": V + 1})


@pytest.mark.parametrize("mask", [Bidirectional, LocalWindow.params(window=3, ahead=1)])
def test_attention_to_the_token_that_is_to_be_predicted_is_refused(mask: Any) -> None:
    layer = TransformerLayer.params(attention=Attention.params(num_heads=1, mask=mask))
    model = LanguageModel.params(dim=D, stack=Stack.params(layer=Remat.params(layer=layer)))
    with pytest.raises(ParamError, match=r"stack/layers/0/attention: \w+ shows later positions"):
        LanguageModeling.params(vocab_size=V, model=model).build()


@pytest.mark.parametrize(
    ("router", "stack"),
    [
        (ExpertChoiceRouter.params(), Stack),
        (SwitchRouter.params(priority="gate"), Repeat),
        (TopNRouter.params(priority="gate"), Stack),
    ],
)
def test_routing_by_later_tokens_is_refused(router: Params, stack: type[Stack]) -> None:
    where = r"layers/\S+/ffn/router: this \w+Router routes a token by later tokens"
    with pytest.raises(ParamError, match=where + ".*; take a router in which tokens choose"):
        sparse(router, stack).build()


@pytest.mark.parametrize("router", [SwitchRouter, GShardRouter, TopNRouter, HashRouter])
def test_routing_by_position_is_taken(router: type[Router]) -> None:
    assert sparse(router.params(), Stack).build().weights()


def sparse(router: Params, stack: type[Stack]) -> Params:
    layer = TransformerLayer.params(ffn=MoE.params(num_experts=2, router=router))
    layer.attention.num_heads = 1
    layers = stack.params(layer=Remat.params(layer=layer), num_layers=2)
    return LanguageModeling.params(vocab_size=V, model=LanguageModel.params(dim=D, stack=layers))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("label_smoothing", 1.0, r"is not in \[0, 1\)"),
        ("z_loss", -1.0, "is negative"),
        ("chunk_size", 0, "is not positive; None is its default"),
    ],
)
def test_settings_that_make_no_sense_are_refused(field: str, value: Any, reason: str) -> None:
    with pytest.raises(ParamError, match=f"{field}={value} {reason}"):
        with_extras(**{field: value})
