"""Rotary positions against complex numbers, the others against their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import Attention, FanIn, Layer, Remat, Repeat, Stack, TransformerLayer
from lingo.layers.context import apply
from lingo.layers.sequence.positions import (
    Alibi,
    AttentionPositions,
    LearnedPositions,
    RelativeBias,
    Rotary,
    SinusoidPositions,
    diagonals,
    distance_buckets,
    shared_table,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=[2, 5, 3, 8]).astype(np.float32)  # [B, T, N, H]
POSITIONS = np.array([[0, 1, 2, 3, 4], [0, 1, 0, 1, 2]], np.int32)


def rotate(x: np.ndarray, positions: np.ndarray, **values: float) -> np.ndarray:
    layer = Rotary.params(head_dim=x.shape[-1], **values).build()
    return apply(layer, {}, [tf.constant(x)], positions, method="rotate")[0][0].numpy()


def test_rotary_turns_pairs_as_complex_numbers() -> None:
    pairs = X[..., :4] + 1j * X[..., 4:]
    angles = POSITIONS[:, :, None, None] * 100.0 ** (-np.arange(4) / 4)
    turned = pairs * np.exp(1j * angles)
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    np.testing.assert_allclose(rotate(X, POSITIONS, max_wavelength=100.0), expected, atol=1e-5)


def test_rotary_computes_in_float32_and_keeps_the_type() -> None:
    x = tf.cast(X, tf.bfloat16)
    layer = Rotary.params(head_dim=8, dtype="bfloat16").build()
    (turned,), _ = apply(layer, {}, [x], POSITIONS + 1000, method="rotate")
    exact = rotate(tf.cast(x, tf.float32).numpy(), POSITIONS + 1000)
    assert turned.dtype == tf.bfloat16
    np.testing.assert_array_equal(turned, tf.cast(exact, tf.bfloat16))


def test_a_fraction_of_the_pairs_turns_as_a_smaller_head_would() -> None:
    turned = rotate(X, POSITIONS, fraction=0.5)
    features = [0, 1, 4, 5]  # pairs 0 and 1 of four
    np.testing.assert_allclose(
        turned[..., features], rotate(X[..., features], POSITIONS), rtol=1e-6
    )
    still = [2, 3, 6, 7]
    np.testing.assert_array_equal(turned[..., still], X[..., still])


def test_positions_of_no_kind_do_nothing() -> None:
    layer = AttentionPositions.params().build()
    np.testing.assert_array_equal(layer.rotate([X], POSITIONS), [X])
    assert layer.bias(POSITIONS, POSITIONS) is None


def t5_bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    """The formula of T5 for one distance of a model that looks back."""
    half = num_buckets // 2
    if distance < half:
        return distance
    growth = math.log(distance / half) / math.log(max_distance / half)
    return min(half + int(growth * (num_buckets - half)), num_buckets - 1)


def test_buckets_are_those_of_t5() -> None:
    expected = [t5_bucket(n, 32, 128) for n in range(129)]
    np.testing.assert_array_equal(distance_buckets(32, 128), expected)
    assert expected[15:18] == [15, 16, 16]
    assert expected[-1] == t5_bucket(10_000, 32, 128) == 31


def test_a_distance_that_begins_a_bucket_is_in_it() -> None:
    # 5 buckets share the 5 doublings from 5 to 160; float64 logarithms fall just short at 10
    buckets = distance_buckets(10, 160)
    assert [buckets[n] for n in (9, 10, 19, 20, 39, 40, 79, 80)] == [5, 6, 6, 7, 7, 8, 8, 9]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_relative_bias_is_the_entry_of_the_bucket_of_each_distance(bidirectional, with_weights):
    num = 8 if bidirectional else 4  # later keys have the second half
    params = RelativeBias.params(num_heads=3, num_buckets=num, max_distance=8, dtype="bfloat16")
    layer, weights = with_weights(params.set(bidirectional=bidirectional).build())
    table, keys = weights["table"].numpy(), np.array([[0, 1, 12], [0, 30, 3]], np.int32)
    bias, _ = apply(layer, weights, POSITIONS + 2, keys, method="bias")
    expected = np.zeros([2, 3, 5, 3])
    for b, t, s in np.ndindex(2, 5, 3):
        distance = POSITIONS[b, t] + 2 - keys[b, s]
        first = 4 if bidirectional and distance < 0 else 0
        distance = abs(distance) if bidirectional else max(distance, 0)
        expected[b, :, t, s] = table[first + t5_bucket(distance, 4, 8)]
    assert bias.dtype == tf.float32
    np.testing.assert_allclose(bias, expected)


def test_a_shared_bias_reads_the_table_that_it_is_given(draw: Callable) -> None:
    own = RelativeBias.params(num_heads=3, num_buckets=4, max_distance=8)
    shared = own.copy().set(shared=True).build()
    assert not shared.weights()
    own = own.build()
    weights, positions = draw(own), [POSITIONS + 9, POSITIONS]
    given, _ = apply(shared, {}, *positions, weights["table"], method="bias")
    np.testing.assert_array_equal(given, apply(own, weights, *positions, method="bias")[0])
    with pytest.raises(ValueError, match=r"shared=True\) needs the table of its model"):
        apply(shared, {}, *positions, method="bias")


class Model(Layer):
    """Layers, and the table that they share."""

    stack: Layer  # the layers

    def setup(self) -> None:
        self.stack = self.p.stack.build(dim=6)
        self.table = shared_table(self, "table", self.stack)


def attending(**fields: Any) -> Params:
    bias = RelativeBias.params(**{"num_buckets": 4, "max_distance": 8, "shared": True, **fields})
    return TransformerLayer.params(attention=Attention.params(num_heads=3, positions=bias))


@pytest.mark.parametrize("stack", [Stack, Repeat])
def test_layers_that_share_have_one_table_of_the_model(stack: type[Stack]) -> None:
    def tables(layer: Params) -> dict[str, Any]:
        weights = Model.params(stack=stack.params(layer=layer, num_layers=3)).build().weights()
        return {where: spec for where, spec in weights.items() if where.endswith("table")}

    ((where, spec),) = tables(Remat.params(layer=attending(init=FanIn.params(scale=2.0)))).items()
    assert (where, spec.shape, spec.fan_in, spec.dtype) == ("table", (4, 3), 3, "float32")
    assert spec.init.p.scale == 2.0
    assert "table" not in tables(attending(shared=False))


@pytest.mark.parametrize("field", [{"num_buckets": 6}, {"max_distance": 9}])
def test_biases_that_differ_share_no_table(field: dict[str, int]) -> None:
    stack = Stack.params(layer=[attending(), attending(**field)], num_layers=2)
    ((name, value),) = field.items()
    with pytest.raises(ParamError, match=f"layers/1/.*has {name}={value} instead of"):
        Model.params(stack=stack).build()
    stack.layer[1].attention.positions.shared = False
    Model.params(stack=stack).build()


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("first", "last"), [((0, 7), (0, 7)), ((3, 9), (1, 6)), ((0, 1), (0, 9))])
def test_a_bias_of_constant_positions_is_the_one_of_any_others(first, last, bidirectional) -> None:
    layer = RelativeBias.params(
        num_heads=3, num_buckets=8, max_distance=6, bidirectional=bidirectional, shared=True
    ).build()
    queries, keys = (np.arange(*ends, dtype=np.int32)[None] for ends in (first, last))
    table = RNG.normal(size=[8, 3]).astype(np.float32)
    weights = RNG.normal(size=[1, 3, queries.size, keys.size]).astype(np.float32)

    def compute(queries: Any, keys: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            variable = tf.constant(table)
            tape.watch(variable)
            bias = layer.bias(queries, keys, variable)
            total = tf.reduce_sum(bias * weights)
        return bias, tape.gradient(total, variable)

    traced = tf.function(compute, input_signature=2 * [tf.TensorSpec([1, None], tf.int32)])
    for ours, theirs in zip(compute(queries, keys), traced(queries, keys), strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(ours), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 5), (4, 1), (1, 6)])
def test_diagonals_have_a_value_each(size: tuple[int, int]) -> None:
    rows, columns = size
    values = RNG.normal(size=[2, rows + columns - 1]).astype(np.float32)
    expected = [
        [[one[rows - 1 - i + j] for j in range(columns)] for i in range(rows)] for one in values
    ]
    np.testing.assert_array_equal(diagonals(tf.constant(values), rows, columns), expected)


def test_alibi_takes_the_distance_times_the_slope_of_the_head() -> None:
    layer = Alibi.params(num_heads=4).build()
    bias = layer.bias(np.array([[5]], np.int32), np.array([[5, 3, 6]], np.int32))
    slopes = np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256])  # of the paper, for four heads
    np.testing.assert_allclose(bias[0, :, 0], -slopes[:, None] * [0, 2, 1])


def test_sinusoids_are_those_of_the_formula() -> None:
    layer = SinusoidPositions.params(dim=6).build()
    vectors = layer(POSITIONS).numpy()
    for i in range(3):
        angle = POSITIONS / 10_000 ** (2 * i / 6)
        np.testing.assert_allclose(vectors[..., i], np.sin(angle), atol=1e-6)
        np.testing.assert_allclose(vectors[..., 3 + i], np.cos(angle), atol=1e-6)


def test_sinusoids_are_computed_in_float32_and_not_stored() -> None:
    layer = SinusoidPositions.params(dim=4, dtype="bfloat16").build()
    far = np.array([[10_001]], np.int32)
    expected = tf.cast(SinusoidPositions.params(dim=4).build()(far), tf.bfloat16)
    np.testing.assert_array_equal(layer(far), expected)
    assert layer.weights() == {}


def test_learned_positions_find_their_rows(with_weights) -> None:
    layer, weights = with_weights(LearnedPositions.params(max_length=5, dim=4).build())
    rows = weights["table"].numpy()[POSITIONS]
    np.testing.assert_array_equal(apply(layer, weights, POSITIONS)[0], rows)


def test_learned_positions_refuse_an_input_longer_than_their_table(draw: Callable) -> None:
    layer = LearnedPositions.params(max_length=4, dim=4).build()
    with pytest.raises(ValueError, match="5 positions, but max_length=4"):
        apply(layer, draw(layer), POSITIONS)
