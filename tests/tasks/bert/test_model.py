"""BERT's encoder: its sizes, what positions see, and its head, against slow NumPy."""

import math
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import Linear, context
from lingo.layers.layer import Layer
from lingo.learner.state import initial_value
from lingo.ops import random
from tasks.bert.model import DENSE, Bert, MaskedHead, TypeEmbedding, select_positions

B, T, K, D, V = 2, 5, 3, 8, 11


def bert(dim: int = D, num_layers: int = 2, num_heads: int = 2, **fields: Any) -> Params:
    model = Bert.params(dim=dim, vocab_size=V).set(**fields)
    model.stack.num_layers = num_layers
    model.stack.layer.attention.num_heads = num_heads
    return model


def count(layer: Layer) -> int:
    return sum(spec.size for spec in layer.weights().values())


def weights(layer: Layer, seed: int = 0) -> dict[str, tf.Tensor]:
    """Returns random weights, biases and scales included."""
    draw = np.random.default_rng(seed)
    return {
        k: tf.constant(draw.normal(size=s.shape), tf.float32) for k, s in layer.weights().items()
    }


def tokens(seed: int = 0) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).integers(0, V, (B, T)), tf.int32)


def call(layer: Layer, *args: Any, method: str = "__call__", **kwargs: Any) -> np.ndarray:
    return context.apply(layer, weights(layer), *args, method=method, **kwargs)[0].numpy()


@pytest.mark.parametrize(
    ("sizes", "encoder", "with_heads"),
    [((768, 12, 12), 109_482_240, 110_106_428), ((1024, 24, 16), 335_141_888, 336_226_108)],
    ids=["base", "large"],
)
def test_the_counts_are_those_of_the_published_models(sizes, encoder, with_heads):
    dim, num_layers, num_heads = sizes
    model = bert(dim, num_layers, num_heads, vocab_size=30_522).build()
    assert count(model) == encoder
    head = MaskedHead.params(dim=dim, vocab_size=30_522).build()
    pair = DENSE.copy().set(dim=dim, output_dim=2).build()
    assert count(model) + count(head) + count(pair) == with_heads


def test_matrices_and_tables_start_within_two_deviations_of_0_02_and_biases_at_zero():
    for layer in (bert(), MaskedHead.params(dim=D, vocab_size=V)):
        for name, spec in layer.build().weights().items():
            values, last = initial_value(spec, 0), name.split("/")[-1]
            if last.startswith("w") or last == "table":
                assert 0.01 < values.std() < 0.03, name
                assert np.abs(values).max() < 2 * 0.02 / 0.8796, name
            else:
                assert (values == (last == "scale")).all(), name


def test_a_position_sees_both_sides_but_neither_padding_nor_other_documents():
    model = bert().build()
    segments = tf.constant([[1, 1, 1, 0, 0], [1, 1, 2, 2, 2]])
    first, ids = call(model, tokens(), segments=segments), tokens().numpy()
    ids[0, 3:] = 0
    ids[1, 2:] = 0
    second = call(model, tf.constant(ids), segments=segments)
    np.testing.assert_array_equal(second[0, :3], first[0, :3])
    np.testing.assert_array_equal(second[1, :2], first[1, :2])
    ids[0, 2] = (ids[0, 2] + 1) % V
    assert (call(model, tf.constant(ids), segments=segments)[0, :3] != first[0, :3]).any(-1).all()


def test_types_change_the_result_and_none_are_zeros():
    model, types = bert().build(), tf.constant([[0, 0, 0, 1, 1]] * B)
    plain = call(model, tokens())
    np.testing.assert_array_equal(call(model, tokens(), types=tf.zeros([B, T], tf.int32)), plain)
    assert (call(model, tokens(), types=types) != plain).any()
    untyped = bert(types=None).build()
    np.testing.assert_array_equal(
        call(untyped, tokens(), types=types), call(untyped, tokens(), types=None)
    )


def test_types_select_rows():
    layer = TypeEmbedding.params(dim=D, num_types=3).build()
    types = np.array([[0, 1, 2], [2, 2, 1]], "i")
    table = weights(layer)["table"].numpy()
    np.testing.assert_array_equal(call(layer, tf.constant(types)), table[types])
    with pytest.raises(ParamError, match="num_types=0"):
        TypeEmbedding.params(dim=D, num_types=0).build()


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def layer_norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12) * scale + bias


def test_the_encoder_and_pooler_compute_what_slow_numpy_does():
    model = bert(num_layers=1).build()
    w = {k: v.numpy().astype("d") for k, v in weights(model).items()}
    ids, types = tokens().numpy(), np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]], "i")
    lengths = (T, 3)
    segments = (np.arange(T) < np.array(lengths)[:, None]).astype("i")
    found = call(model, tf.constant(ids), types=tf.constant(types), segments=tf.constant(segments))
    layer = "stack/layers/0/"

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return layer_norm(x, w[f"{name}/scale"], w[f"{name}/bias"])

    for b, length in enumerate(lengths):
        x = w["embedding/table"][ids[b]] + w["positions/table"][:T] + w["types/table"][types[b]]
        x = norm(x, "norm")[:length]
        heads = {
            name: np.einsum("td,dnh->tnh", x, w[f"{layer}attention/w_{name}"])
            + w[f"{layer}attention/b_{name}"]
            for name in ("query", "key", "value")
        }
        logits = np.einsum("tnh,snh->nts", heads["query"], heads["key"]) / math.sqrt(D / 2)
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        averages = np.einsum("nts,snh->tnh", shares, heads["value"])
        change = np.einsum("tnh,nhd->td", averages, w[f"{layer}attention/w_output"])
        x = norm(x + change + w[f"{layer}attention/b_output"], f"{layer}attention_norm")
        hidden = gelu(x @ w[f"{layer}ffn/w_in"] + w[f"{layer}ffn/b_in"])
        change = hidden @ w[f"{layer}ffn/w_out"] + w[f"{layer}ffn/b_out"]
        x = norm(x + change, f"{layer}ffn_norm")
        np.testing.assert_allclose(found[b, :length], x, rtol=1e-4, atol=1e-4)
        pooled = np.tanh(x[0] @ w["pooler/w"] + w["pooler/b"])
        result = call(model, tf.constant(found), method="pool")[b]
        np.testing.assert_allclose(result, pooled, rtol=1e-4, atol=1e-4)


def test_the_head_computes_what_slow_numpy_does():
    head = MaskedHead.params(dim=D, vocab_size=V).build()
    w = {k: v.numpy().astype("d") for k, v in weights(head).items()}
    draw = np.random.default_rng(1)
    x, table = draw.normal(size=(B, K, D)), draw.normal(size=(V, D))
    hidden = layer_norm(gelu(x @ w["dense/w"] + w["dense/b"]), w["norm/scale"], w["norm/bias"])
    found = call(head, tf.constant(x, tf.float32), tf.constant(table, tf.float32))
    np.testing.assert_allclose(found, hidden @ table.T + w["bias"], rtol=1e-4, atol=1e-4)


def test_selected_positions_are_rows_bit_for_bit_and_their_gradients_add_up():
    x = tf.random.stateless_normal([B, T, D], (1, 2))
    positions = tf.constant([[4, 0, 0], [1, 3, 2]])
    expected = np.take_along_axis(x.numpy(), positions.numpy()[..., None], 1)
    np.testing.assert_array_equal(select_positions(x, positions), expected)
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(select_positions(x, positions))
    gradient: Any = tape.gradient(total, x)
    counts = [[2, 0, 0, 0, 1], [0, 1, 1, 1, 0]]
    np.testing.assert_array_equal(gradient, np.repeat(np.array(counts, "f")[..., None], D, -1))


def test_dropout_is_in_training_only_and_at_every_place():
    model, key = bert(num_layers=1), random.root_key(1)
    in_training = {"training": True, "key": key, "rows": tf.range(B)}

    def train(params: Params) -> np.ndarray:
        layer = params.build()
        return context.apply(layer, weights(layer), tokens(), call=in_training)[0].numpy()

    off = bert(num_layers=1, dropout_rate=0.0)
    off.stack.layer.dropout_rate = off.stack.layer.attention.dropout_rate = 0.0
    plain = call(model.build(), tokens())
    np.testing.assert_array_equal(train(off), plain)
    for params in (off, off.stack.layer, off.stack.layer.attention):
        params.dropout_rate = 0.1
        assert (train(off) != plain).any()
        params.dropout_rate = 0.0


def test_without_a_pooler_there_is_no_vector_of_a_text():
    model = bert(pooler=None).build()
    assert not any("pooler" in name for name in model.weights())
    with pytest.raises(ParamError, match="pooler=None"):
        call(model, tf.zeros([B, T, D]), method="pool")


def test_more_positions_than_the_table_has_are_refused():
    model = bert()
    model.positions.max_length = T - 1
    with pytest.raises(ValueError, match="5 positions, but max_length=4"):
        call(model.build(), tokens())


def test_a_dropout_rate_of_one_is_refused():
    with pytest.raises(ParamError, match="dropout_rate=1"):
        bert(dropout_rate=1.0).build()


def test_flops_are_those_of_the_products():
    model, head = bert().build(), MaskedHead.params(dim=D, vocab_size=V).build()
    attention = 4 * D * D + 2 * T * D  # a token's
    layer = 2 * B * T * (attention + 2 * D * 4 * D)
    layers = 2 * layer + 2 * B * T * 2 * D  # with the product of types
    assert model.flops([B, T]) == layers + 2 * B * D * D
    assert bert(pooler=None).build().flops([B, T]) == layers
    assert bert(pooler=None, types=None).build().flops([B, T]) == 2 * layer
    assert head.flops([B, K, D]) == 2 * B * K * D * (D + V)
    assert isinstance(model.pooler, Linear)
