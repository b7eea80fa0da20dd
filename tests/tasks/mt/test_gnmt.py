"""GNMT against slow NumPy and Keras' LSTM, in steps, packed and alone, and trained.

Axes: B batch, S source positions, T target positions, D model width, A attention, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import AdditiveAttention, CallInputs, Layer, Lstm
from lingo.layers.context import apply
from lingo.layers.sequence.softmax import SoftmaxHead
from lingo.ops import random
from tasks.mt.gnmt import AttentionDecoder, RecurrentEncoder
from tasks.seq2seq.model import EncoderDecoder

B, S, T, D, A, V = 2, 5, 4, 6, 3, 11
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=[B, T, D]).astype(np.float32)
MEMORY = DRAW.normal(size=[B, S, D]).astype(np.float32)
SOURCE = DRAW.integers(0, V, [B, S]).astype(np.int32)
TOKENS = DRAW.integers(0, V, [B, T]).astype(np.int32)


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def gnmt(**decoder: Any) -> Params:
    return EncoderDecoder.params(
        dim=D,
        vocab_size=V,
        scale_embedding=False,
        encoder=RecurrentEncoder.params(num_layers=3),
        decoder=AttentionDecoder.params(num_layers=3, **decoder),
        norm=None,
        head=SoftmaxHead.params(use_bias=True),
    )


def attend(w: dict[str, Any], x: np.ndarray, memory: np.ndarray, seen: Any) -> tuple[Any, Any]:
    """Returns contexts and weights of one example, position by position, by loops."""
    v = w["g"] * w["v"] / np.sqrt(np.sum(w["v"] ** 2))
    contexts, weights = [], np.zeros([len(x), len(memory)])
    for t, s in np.ndindex(weights.shape):
        hidden = np.tanh(x[t] @ w["w_query"] + memory[s] @ w["w_key"] + w["b"])
        weights[t, s] = np.exp(np.dot(v, hidden)) * seen(t, s)
    weights /= weights.sum(1, keepdims=True)
    contexts = [sum(weights[t, s] * memory[s] for s in range(len(memory))) for t in range(len(x))]
    return np.stack(contexts), weights


def attention(draw: Callable) -> tuple[Any, dict[str, Any]]:
    layer = AdditiveAttention.params(dim=D, hidden_dim=A).build()
    return layer, draw(layer)


def test_attention_is_that_of_slow_numpy(draw: Callable) -> None:
    layer, weights = attention(draw)
    numbers = {where: np.asarray(value, np.float64) for where, value in weights.items()}
    found = apply(layer, weights, X, inputs=CallInputs(memory=MEMORY))[0]
    expected = [attend(numbers, *row, lambda t, s: 1)[0] for row in zip(X, MEMORY, strict=True)]
    close(found, expected)


def test_attention_hides_padding_and_the_memory_of_other_documents(draw: Callable) -> None:
    layer, weights = attention(draw)
    numbers = {where: np.asarray(value, np.float64) for where, value in weights.items()}
    memory_segments = np.array([[1, 1, 2, 2, 0]] * B, np.int32)
    inputs = CallInputs(memory=MEMORY, memory_segments=memory_segments)
    found = apply(layer, weights, X, inputs=inputs)[0]
    expected = [attend(numbers, *row, lambda t, s: s < 4)[0] for row in zip(X, MEMORY, strict=True)]
    close(found, expected)
    segments = np.array([[1, 2, 2, 0]] * B, np.int32)
    found = apply(layer, weights, X, inputs=inputs._replace(segments=segments))[0]

    def is_same(t: int, s: int) -> bool:
        return segments[0, t] == memory_segments[0, s]

    close(found, [attend(numbers, *row, is_same)[0] for row in zip(X, MEMORY, strict=True)])


def test_steps_of_attention_add_up_what_was_covered(draw: Callable) -> None:
    layer, weights = attention(draw)
    numbers = {where: np.asarray(value, np.float64) for where, value in weights.items()}
    segments = np.array([[1] * S, [1] * 3 + [0] * 2], np.int32)
    caches, outputs = layer.empty_caches(batch_size=B, length=T), []
    for t in range(T):
        inputs = CallInputs(memory=None if t else MEMORY, memory_segments=segments)
        call = {"caches": caches}
        y, sides = apply(
            layer, weights, X[:, t : t + 1], t, method="step", call=call, inputs=inputs
        )
        caches = {**caches, **sides.caches}
        outputs.append(y)
    found, covered = np.concatenate(outputs, 1), caches["coverage"].numpy()
    for i, size in enumerate((S, 3)):
        context, shares = attend(numbers, X[i], MEMORY[i], lambda t, s, size=size: s < size)
        close(found[i], context)
        close(covered[i], shares.sum(0))
    np.testing.assert_allclose(covered.sum(1), T, rtol=1e-6)


def keras(weights: dict[str, Any], at: str, x: Any, **options: Any) -> np.ndarray:
    """Returns what Keras' LSTM computes of x, [1, T, width], by the weights of a network."""
    lstm = tf.keras.layers.LSTM(D, return_sequences=True, unit_forget_bias=False, **options)
    lstm.build(x.shape)
    flat = [weights[f"{at}/{name}"] for name in ("w_input", "w_hidden", "bias")]
    lstm.set_weights([np.reshape(w, [-1, 4 * D]).squeeze() for w in flat])
    y = lstm(x).numpy()
    return y[:, ::-1] if options else y


def test_encoder_is_that_of_keras(draw: Callable) -> None:
    layer = RecurrentEncoder.params(dim=D, num_layers=4).build()
    w = draw(layer)
    ahead, back = keras(w, "forward", MEMORY), keras(w, "backward", MEMORY, go_backwards=True)
    first = keras(w, "layers/0", np.concatenate([ahead, back], -1))
    third = first + keras(w, "layers/1", first)
    close(apply(layer, w, MEMORY)[0], third + keras(w, "layers/2", third))


def test_decoder_is_that_of_keras_and_numpy(draw: Callable) -> None:
    layer = AttentionDecoder.params(dim=D, num_layers=3).build()
    w = draw(layer)
    inner = {k[10:]: np.asarray(v, np.float64) for k, v in w.items() if k.startswith("attention/")}
    first = keras(w, "first", X)
    rows = zip(first, MEMORY, strict=True)
    context = np.stack([attend(inner, *row, lambda t, s: 1)[0] for row in rows])
    context = context.astype(np.float32)
    second = keras(w, "layers/0", np.concatenate([first, context], -1))
    expected = second + keras(w, "layers/1", np.concatenate([second, context], -1))
    close(apply(layer, w, X, inputs=CallInputs(memory=MEMORY))[0], expected)


def test_pairs_in_a_row_score_as_they_do_alone(draw: Callable) -> None:
    layer = gnmt().build()
    weights = draw(layer)

    def logits(tokens: Any, source: Any, **inputs: Any) -> np.ndarray:
        return apply(layer, weights, tokens, source_tokens=source, **inputs)[0].numpy()

    packed = logits(
        TOKENS,
        SOURCE,
        source_inputs=CallInputs(
            segments=np.array([[1, 1, 2, 2, 0]] * B, np.int32),
            position_ids=np.array([[0, 1, 0, 1, 0]] * B, np.int32),
        ),
        segments=np.array([[1, 2, 2, 0]] * B, np.int32),
        position_ids=np.array([[0, 0, 1, 0]] * B, np.int32),
    )
    close(packed[:, :1], logits(TOKENS[:, :1], SOURCE[:, :2]))
    close(packed[:, 1:3], logits(TOKENS[:, 1:3], SOURCE[:, 2:4]))
    assert np.isfinite(packed).all()


@pytest.mark.parametrize("chunks", [[1] * T, [3, 1]])
def test_chunk_by_chunk_equals_the_whole(chunks: list[int], draw: Callable) -> None:
    layer = gnmt().build()
    weights = draw(layer)
    segments = np.array([[1] * S, [1] * 3 + [0] * 2], np.int32)
    memory, _ = apply(layer, weights, SOURCE, inputs=CallInputs(segments=segments), method="encode")
    caches, outputs, start = layer.empty_caches(batch_size=B, length=T), [], 0
    for size in chunks:
        first = CallInputs() if start else CallInputs(memory=memory, memory_segments=segments)
        tokens, call = TOKENS[:, start : start + size], {"caches": caches}
        y, sides = apply(layer, weights, tokens, start, method="step", call=call, inputs=first)
        caches, start = {**caches, **sides.caches}, start + size
        outputs.append(y)
    source = CallInputs(segments=segments)
    inputs = CallInputs(segments=np.ones_like(TOKENS))
    whole, _ = apply(
        layer, weights, TOKENS, source_tokens=SOURCE, source_inputs=source, inputs=inputs
    )
    close(np.concatenate(outputs, 1), whole)


def test_inputs_of_later_layers_are_dropped_out(draw: Callable) -> None:
    layer = RecurrentEncoder.params(dim=D, num_layers=2, dropout_rate=0.5).build()
    weights = draw(layer)
    call = {"training": True, "key": random.root_key(0), "rows": tf.range(B)}
    trained, plain = apply(layer, weights, MEMORY, call=call)[0], apply(layer, weights, MEMORY)[0]
    assert np.abs(trained - plain).max() > 0.01


def test_a_second_bias_is_added_to_the_first(draw: Callable) -> None:
    layer = Lstm.params(dim=D, use_hidden_bias=True).build()
    plain, weights = Lstm.params(dim=D).build(), draw(layer)
    both = {k: v for k, v in weights.items() if k != "hidden_bias"}
    both["bias"] = weights["bias"] + weights["hidden_bias"]
    close(apply(layer, weights, X)[0], apply(plain, both, X)[0])


@pytest.mark.parametrize("cls", [RecurrentEncoder, AttentionDecoder])
def test_one_layer_is_too_few(cls: Any) -> None:
    with pytest.raises(ParamError, match="num_layers=1: there are at least 2"):
        cls.params(dim=D, num_layers=1).build()


def test_attention_needs_a_memory(draw: Callable) -> None:
    layer, weights = attention(draw)
    with pytest.raises(ValueError, match="needs the input `memory`"):
        apply(layer, weights, X)


def test_a_reversed_network_has_no_steps(draw: Callable) -> None:
    layer = Lstm.params(dim=D, is_reversed=True).build()
    call = {"caches": layer.empty_caches(batch_size=B, length=T)}
    with pytest.raises(ValueError, match="reads documents from their end, so it cannot write them"):
        apply(layer, draw(layer), X, 0, method="step", call=call)


def test_flops_are_those_of_the_traced_graph(traced_flops: Callable) -> None:
    class Called(Layer):
        """Attention, called with a memory."""

        attention: AdditiveAttention  # what is called

        def setup(self) -> None:
            self.attention = self.p.attention.build(dim=D, hidden_dim=A)

        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            return self.attention(x, inputs=CallInputs(memory=tf.constant(MEMORY)))

    layer = Called.params(attention=AdditiveAttention).build()
    assert layer.attention.flops(X.shape, memory_length=S) == traced_flops(layer, X)
