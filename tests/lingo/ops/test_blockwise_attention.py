"""Attention by blocks against attention with all logits, and the memory that it saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops import blockwise_attention, random
from lingo.ops.attention import attend
from lingo.ops.blockwise_attention import Band, BlockSize, Logits, attend_blockwise
from lingo.ops.dropout import dropout

RNG = np.random.default_rng(0)
B, N, T, S, H = 2, 4, 7, 9, 3
QUERY: Any = RNG.normal(size=[B, N, T, H]).astype("f")
KEY: Any = RNG.normal(size=[B, N, S, H]).astype("f")
VALUE: Any = RNG.normal(size=[B, N, S, H]).astype("f")
UPWARD: Any = RNG.normal(size=[B, N, T, H]).astype("f")
QUERY_SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 2, 2, 0]], "i")
KEY_SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2, 2, 2], [1, 1, 1, 1, 2, 2, 0, 0, 0]], "i")
TABLE = RNG.normal(size=[N, T + S]).astype("f")
BANDS = [Band(), Band(None, 0), Band(None, 2), Band(2, 0), Band(3, 1), Band(1, None)]


def positions(length: int) -> tf.Tensor:
    return tf.range(length)[None]


def band_mask(band: Band) -> Any:
    distance = np.arange(T)[:, None] - np.arange(S)
    before, after = (100 if n is None else n for n in band)
    return ((distance <= before) & (-distance <= after))[None, None]


def gradients(function: Any, *tensors: Any) -> list[np.ndarray]:
    """Returns a result and its gradients."""
    tensors = tuple(map(tf.constant, tensors))
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = function(*tensors)
    found = tape.gradient(y, tensors, output_gradients=tf.cast(UPWARD, y.dtype))
    return [tf.cast(x, tf.float32).numpy() for x in (y, *map(tf.convert_to_tensor, found))]


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes blocks small; some tests ask for blocks of all keys, too."""
    block = BlockSize(*getattr(request, "param", (3, 4)))
    monkeypatch.setattr(blockwise_attention, "_SQUARE", block)
    monkeypatch.setattr(blockwise_attention, "_ROWS", block)


SIZES = pytest.mark.parametrize("block", [(3, 4), (3, 16)], ids=["squares", "rows"], indirect=True)


def in_blocks(logits: Logits, **fields: Any) -> Any:
    return lambda q, k, v: attend_blockwise(q, k, v, logits=logits, **fields)


def same_document(query: Any, key: Any) -> Any:
    return tf.equal(query[:, :, None], key[:, None])


@SIZES
@pytest.mark.parametrize("band", BANDS, ids=str)
@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_results_and_gradients_are_those_of_all_logits(band: Band, num_kv_heads: int) -> None:
    tensors = QUERY, KEY[:, :num_kv_heads], VALUE[:, :num_kv_heads]
    expected = gradients(lambda *x: attend(*x, mask=band_mask(band)), *tensors)
    assert_close(gradients(in_blocks(Logits(band=band)), *tensors), expected)


@SIZES
@pytest.mark.parametrize("cap", [None, 1.5])
def test_masks_and_a_cap_are_those_of_all_logits(cap: float | None) -> None:
    mask = (QUERY_SEGMENTS[:, :, None] == KEY_SEGMENTS[:, None])[:, None]
    tensors = QUERY, KEY[:, :2], VALUE[:, :2]
    expected = gradients(lambda *x: attend(*x, mask=mask, logit_cap=cap), *tensors)
    logits = Logits(
        mask=same_document,
        query_inputs=tf.constant(QUERY_SEGMENTS),
        key_inputs=tf.constant(KEY_SEGMENTS),
        logit_cap=cap,
    )
    assert_close(gradients(in_blocks(logits), *tensors), expected)


@SIZES
def test_a_query_that_sees_no_key_averages_all_values() -> None:
    mask: Any = np.zeros([B, 1, T, S], bool)
    expected = gradients(lambda *x: attend(*x, mask=mask), QUERY, KEY, VALUE)
    logits = Logits(
        mask=lambda q, k: q[:, :, None] & k[:, None],
        query_inputs=tf.zeros([1, T], tf.bool),
        key_inputs=tf.zeros([1, S], tf.bool),
    )
    assert_close(gradients(in_blocks(logits), QUERY, KEY, VALUE), expected)


def relative(query: Any, key: Any, table: Any) -> Any:
    return tf.gather(table, query[:, :, None] - key[:, None] + S, axis=1)


def biased(table: Any) -> Logits:
    return Logits(
        band=Band(None, 1),
        bias=lambda q, k, w: tf.transpose(relative(q, k, w["table"]), [1, 0, 2, 3]),
        weights={"table": table},
        query_inputs=positions(T),
        key_inputs=positions(S),
    )


@SIZES
@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_weights_of_a_bias_have_gradients(num_kv_heads: int) -> None:
    def whole(query: Any, key: Any, value: Any, table: Any) -> Any:
        bias = tf.transpose(relative(positions(T), positions(S), table), [1, 0, 2, 3])
        return attend(query, key, value, bias=bias, mask=band_mask(Band(None, 1)))

    def by_blocks(query: Any, key: Any, value: Any, table: Any) -> Any:
        return in_blocks(biased(table))(query, key, value)

    tensors = QUERY, KEY[:, :num_kv_heads], VALUE[:, :num_kv_heads], TABLE
    assert_close(gradients(by_blocks, *tensors), gradients(whole, *tensors))


@SIZES
@pytest.mark.parametrize("form", ["element", "feature", "position", "example"])
def test_dropout_drops_the_same_weights(form: Any) -> None:
    def drop(weights: Any, part: Any = None) -> Any:
        rows, key = tf.constant([5, 3]), random.root_key(1)
        return dropout(weights, rate=0.4, key=key, rows=rows, form=form, part=part)

    tensors = QUERY, KEY[:, :2], VALUE[:, :2]
    mask = band_mask(Band(None, 0))
    expected = gradients(lambda *x: attend(*x, mask=mask, dropout=drop), *tensors)
    actual = gradients(in_blocks(Logits(band=Band(None, 0)), dropout=drop), *tensors)
    assert_close(actual, expected)


@SIZES
def test_bfloat16_is_as_near_to_float32_as_with_all_logits() -> None:
    tensors = [tf.cast(x, tf.bfloat16) for x in (QUERY, KEY, VALUE)]
    exact = gradients(attend, *(tf.cast(x, tf.float32) for x in tensors))
    whole, ours = gradients(attend, *tensors), gradients(in_blocks(Logits()), *tensors)
    assert attend_blockwise(*tensors).dtype == tf.bfloat16
    for a, b, e in zip(whole, ours, exact, strict=True):
        assert np.abs(b - e).max() < 2 * np.abs(a - e).max() + 1e-3


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_graph_computes_the_same(jit_compile: bool) -> None:
    def compute(query: Any, key: Any, value: Any, table: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([query, key, value, table])
            y = in_blocks(biased(table))(query, key, value)
        return [y, *tape.gradient(y, [query, key, value, table], output_gradients=UPWARD)]

    tensors = [tf.constant(x) for x in (QUERY, KEY[:, :2], VALUE[:, :2], TABLE)]
    compiled = tf.function(compute, autograph=False, jit_compile=jit_compile)
    assert_close(compiled(*tensors), compute(*tensors))


def test_copies_may_be_vectorized() -> None:
    tensors = [tf.stack([x, 2 * x]) for x in (QUERY, KEY, VALUE)]
    function = in_blocks(Logits(band=Band(None, 0)))

    @tf.function(autograph=False)
    def compute(*tensors: Any) -> Any:
        return tf.vectorized_map(lambda x: function(*x), tensors, fallback_to_while_loop=False)

    expected = [function(*(x[i] for x in tensors)) for i in range(2)]
    assert_close(compute(*tensors), expected)


def test_a_hidden_block_is_never_computed() -> None:
    value = VALUE.copy()
    value[:, :, 4:] = np.nan  # in later blocks of keys than that of the first queries
    result = in_blocks(Logits(band=Band(None, 0)))(QUERY, KEY, value)
    assert np.isfinite(result[:, :, :3]).all()
    assert np.isnan(attend(QUERY, KEY, value, mask=band_mask(Band(None, 0)))[:, :, :3]).all()


def test_the_batch_may_be_known_only_at_run_time() -> None:
    specs = [tf.TensorSpec([None, *x.shape[1:]]) for x in (QUERY, KEY, VALUE)]
    compiled = tf.function(in_blocks(Logits()), autograph=False, input_signature=specs)
    assert_close([compiled(QUERY, KEY, VALUE)], [attend(QUERY, KEY, VALUE)])
