"""The language model: causality, packing, steps, and exact counts of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers import Layer, Lora, Remat, Repeat, SoftmaxHead, Stack, WeightNorm
from lingo.layers.context import Call, apply, enter_call
from lingo.layers.sequence.positions import LearnedPositions, RelativeBias, Rotary
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.ops.losses import token_losses
from tasks.lm.model import LanguageModel
from tasks.tokens import score_in_chunks as in_logits
from tests.processor import HAS_AVX512

TOKENS = np.random.default_rng(0).integers(0, 11, [2, 6]).astype(np.int32)


def model(positions: Any = None, stack: type[Stack] = Stack) -> Params:
    """Returns two layers of two heads of width four, over eleven tokens."""
    layer = TransformerLayer.params()
    layer.attention.set(num_heads=2, positions=positions)
    params = LanguageModel.params(dim=8, vocab_size=11)
    return params.set(stack=stack.params(layer=layer, num_layers=2))


def rotary() -> Params:
    return model(Rotary)


def relative() -> Params:
    return model(RelativeBias, stack=Repeat)


def learned() -> Params:
    return model().set(positions=LearnedPositions.params(max_length=6), head=SoftmaxHead)


KINDS = [rotary, relative, learned]


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_ignore_later_tokens(kind: Callable, draw: Callable) -> None:
    layer = kind().build()
    weights = draw(layer)
    logits, _ = apply(layer, weights, TOKENS)
    assert logits.shape == (2, 6, 11)
    close(logits[:, :4], apply(layer, weights, TOKENS[:, :4])[0])


def test_the_embedding_gives_the_logits_unless_the_head_has_a_matrix() -> None:
    assert "head/w" not in rotary().build().weights()
    assert learned().build().weights()["head/w"].shape == (8, 11)


@pytest.mark.parametrize("wrapper", [Lora, WeightNorm, Remat])
def test_a_tied_head_uses_the_vectors_of_a_wrapped_embedding(wrapper: type, draw: Callable) -> None:
    params = rotary()
    layer = params.set(embedding=wrapper.params(layer=params.embedding)).build()
    weights = draw(layer)
    vectors, _ = apply(layer.embedding, weights, method="vectors")
    x, _ = apply(layer, weights, TOKENS, method="activations")
    close(apply(layer, weights, TOKENS)[0], x @ tf.transpose(vectors))


def test_an_embedding_of_width_d_is_scaled_by_the_root_of_d(draw: Callable) -> None:
    scaled, plain = rotary().build(), rotary().set(scale_embedding=False).build()
    weights = draw(plain)
    larger = weights | {"embedding/table": weights["embedding/table"] * np.sqrt(8)}
    expected = apply(plain, larger, TOKENS)[0] / np.sqrt(8)  # the table gives the logits, too
    close(apply(scaled, weights, TOKENS)[0], expected)


def test_learned_positions_are_added_to_the_embeddings(draw: Callable) -> None:
    layer = learned().build()
    weights, ids = draw(layer), TOKENS[:, :1]
    logits = [apply(layer, weights, ids, position_ids=np.full([2, 1], p))[0] for p in (0, 3)]
    assert not np.allclose(logits[0], logits[1])
    moved = weights["embedding/table"] + weights["positions/table"][3]
    moved -= weights["positions/table"][0]  # the head is another matrix
    expected, _ = apply(layer, weights | {"embedding/table": moved}, ids)
    close(logits[1], expected)


def test_activations_have_logical_axes(draw: Callable) -> None:
    seen = []

    class Seen:
        def activation(self, x: tf.Tensor, axes: tuple[str, ...]) -> tf.Tensor:
            seen.append(axes)
            return x

        def weight(self, x: tf.Tensor, axes: tuple[str, ...]) -> tf.Tensor:
            return x

    layer = rotary().build()
    apply(layer, draw(layer), TOKENS, call={"rules": Seen()})
    assert set(seen) == {
        ("batch", "length", "embed"),
        ("batch", "length", "heads", "head_dim"),
        ("batch", "length", "mlp"),
        ("batch", "length", "vocab"),
    }


@pytest.mark.parametrize("kind", [rotary, learned])
def test_flops_are_those_of_the_traced_graph(kind: Callable, traced_flops: Callable) -> None:
    layer = kind().build()
    assert layer.flops(TOKENS.shape) == traced_flops(layer, TOKENS)


TARGETS = np.random.default_rng(1).integers(0, 11, [2, 6]).astype(np.int32)


def scored(layer: Layer, weights: Any, chunk_size: int | None) -> Any:
    """Returns losses by token, and gradients of a weighted sum of them."""

    def losses(logits: tf.Tensor, targets: tf.Tensor) -> Any:
        return token_losses(logits, targets, label_smoothing=0.1)._asdict()

    @tf.function(autograph=False)
    def step(weights: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            x, _ = apply(layer, weights, tf.constant(TOKENS), method="activations")
            with enter_call(Call(weights=weights)):
                by_token = in_logits(layer, losses, x, TARGETS, chunk_size=chunk_size)
            total = tf.reduce_sum(by_token["cross_entropy"] * TARGETS + by_token["z_loss"])
        gradients = tape.gradient(total, weights, unconnected_gradients="zero")
        return by_token, {k: tf.convert_to_tensor(g) for k, g in gradients.items()}

    return step(weights)


tied_or_not = pytest.mark.parametrize("kind", [rotary, learned], ids=["tied", "untied"])


@tied_or_not
def test_losses_in_chunks_and_their_gradients_are_those_of_the_whole(kind, draw):
    params = kind()
    params.head.logit_cap = 3.0
    layer = params.build()
    weights = draw(layer)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=2e-6),
        scored(layer, weights, 4),
        scored(layer, weights, None),
    )


@tied_or_not
def test_chunks_of_a_bfloat16_model_round_gradients_no_more_than_the_whole(kind, draw):
    layer, exact = kind().set(dtype="bfloat16").build(), kind().build()
    weights = draw(layer)
    (losses, gradients), (whole_losses, whole) = (scored(layer, weights, c) for c in (2, None))
    for name, value in whole_losses.items():  # each position by itself: the same products
        np.testing.assert_allclose(losses[name], value, rtol=1e-6)
    name = "head/w" if "head/w" in weights else "embedding/table"
    expected = scored(exact, weights, None)[1][name]
    errors = [np.linalg.norm(g[name] - expected) for g in (gradients, whole)]
    assert errors[0] < (1.2 if HAS_AVX512 else 1.5) * errors[1]
