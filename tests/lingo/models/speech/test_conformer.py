"""The Conformer: counts of weights, slow NumPy, padding, streaming, and meshes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers import (
    Attention,
    BatchNorm,
    Bidirectional,
    Causal,
    DepthwiseConv1D,
    GroupNorm,
    Layer,
    LayerNorm,
    LocalWindow,
    Pipeline,
    Quantized,
    Repeat,
    Stack,
)
from lingo.layers.context import apply
from lingo.layers.flops import record_flops
from lingo.learner.state import initial_value
from lingo.models import ConformerConv, ConformerEncoder, ConformerLayer
from lingo.models.speech.conformer import gate
from tests.lingo.layers.sequence.test_transformer_xl import slow as slow_attention

D, T = 8, 7
X = np.random.default_rng(0).normal(size=[2, T, D]).astype(np.float32)
SEGMENTS = np.array([[1] * T, [1] * 4 + [0] * 3], "i")


def block(**fields: Any) -> Params:
    layer = ConformerLayer.params(dim=D, **fields)
    layer.all(Attention).set(num_heads=2)
    layer.all(ConformerConv).set(kernel=4)
    return layer


def streaming(norm: Any = BatchNorm, mask: Any = Causal) -> Params:
    layer = block()
    layer.conv.set(is_causal=True, norm=norm)
    layer.attention.mask = mask
    return layer


def states(layer: Layer) -> dict[str, Any]:
    """Returns moving averages as after some training."""
    generator = np.random.default_rng(1)
    drawn = {}
    for name, spec in layer.states().items():
        value = generator.normal(size=spec.program_shape).astype("f")
        drawn[name] = 1 + value**2 if "square" in name else 0.3 * value
    return drawn


def close(actual: Any, expected: Any, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=atol)


@pytest.mark.parametrize(
    ("dim", "num_layers", "num_heads", "of_layer", "of_encoder"),
    [
        (144, 16, 4, 506_736, 8_713_152),
        (256, 16, 4, 1_588_992, 27_331_584),
        (512, 17, 8, 6_323_712, 115_120_128),
    ],
)
def test_weights_of_the_sizes_of_the_paper(dim, num_layers, num_heads, of_layer, of_encoder):
    encoder = ConformerEncoder.params(dim=80, output_dim=dim)
    encoder.all(Attention).set(num_heads=num_heads)
    encoder.stack.num_layers = num_layers
    assert sum(s.size for s in encoder.build().weights().values()) == of_encoder
    layer = encoder.stack.layer.copy()
    layer.all(DepthwiseConv1D).set(use_bias=False)
    weights = layer.build(dim=dim).weights().values()
    assert sum(s.size for s in weights) == of_layer == 24 * dim**2 + (32 + 31) * dim


def test_the_gate_is_the_first_half() -> None:
    halves = tf.reshape(tf.constant([3.0, 4.0, 1.0, 2.0]), [2, 2])
    close(gate(halves), [0.952574127, 1.96402758], 1e-6)


def slow_block(w: dict[str, np.ndarray], state: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Computes a Conformer layer for one recording [T, D], frame by frame."""

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-6) * w[f"{name}/scale"] + w[f"{name}/bias"]

    def swish(x: np.ndarray) -> np.ndarray:
        return x / (1 + np.exp(-x))

    def ffn(name: str, x: np.ndarray) -> np.ndarray:
        hidden = swish(norm(f"{name}_norm", x) @ w[f"{name}/w_in"] + w[f"{name}/b_in"])
        return hidden @ w[f"{name}/w_out"] + w[f"{name}/b_out"]

    def conv(x: np.ndarray) -> np.ndarray:
        x = norm("conv_norm", x)
        gates, values = (x @ w["conv/w_in"][:, i] + w["conv/b_in"][i] for i in range(2))
        padded = np.pad(values / (1 + np.exp(-gates)), [(1, 2), (0, 0)])  # 4 taps: SAME
        taps = w["conv/conv/w"][:, :, 0]
        y = np.stack([np.sum(padded[t : t + 4] * taps, 0) for t in range(len(x))])
        y += w["conv/conv/b"]
        mean, square = state["conv/norm/moving_mean"], state["conv/norm/moving_mean_square"]
        y = (y - mean) / np.sqrt(square - mean**2 + 1e-5)
        y = swish(y * w["conv/norm/gamma"] + w["conv/norm/beta"])
        return y @ w["conv/w_out"] + w["conv/b_out"]

    inner = {k.removeprefix("attention/"): v for k, v in w.items() if k.startswith("attention/")}
    x = x + ffn("first_ffn", x) / 2
    x = x + slow_attention(
        inner, norm("attention_norm", x), Bidirectional.params(), np.arange(len(x))
    )
    x = x + conv(x)
    return norm("out_norm", x + ffn("last_ffn", x) / 2)


def test_a_layer_is_that_of_numpy_without_the_padding(draw: Callable) -> None:
    layer = block().build()
    weights, state = draw(layer), states(layer)
    exact = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    y, _ = apply(layer, weights, X, segments=SEGMENTS, call={"state": state})
    close(y[0], slow_block(exact, state, X[0]))
    close(y[1, :4], slow_block(exact, state, X[1, :4]))


def test_orders_have_their_sublayers_in_turn(draw: Callable) -> None:
    weights = draw(block().build())
    results = {}
    for order in ("mhsa", "conv", "mhsa_before_conv", "conv_before_mhsa"):
        layer = block(order=order).build()
        own = {name: weights[name] for name in layer.weights()}
        results[order] = apply(layer, own, X, call={"state": states(layer)})[0].numpy()
    silent = weights | {k: 0 * v for k, v in weights.items() if k.startswith("attention/")}
    layer = block(order="conv_before_mhsa").build()
    close(apply(layer, silent, X, call={"state": states(layer)})[0], results["conv"])
    assert np.abs(results["mhsa_before_conv"] - results["conv_before_mhsa"]).max() > 0.01


NORMS: dict[str, Any] = {
    "batch": BatchNorm,
    "group": GroupNorm.params(num_groups=2, is_cumulative=True),
    "layer": LayerNorm,
}


@pytest.mark.parametrize(
    ("norm", "mask"),
    [("batch", Causal), ("group", LocalWindow.params(window=3)), ("layer", Causal)],
)
def test_streaming_computes_what_the_whole_does(norm: str, mask: Any, draw: Callable) -> None:
    layer = Stack.params(layer=streaming(NORMS[norm], mask), num_layers=2).build()
    weights, state = draw(layer), states(layer)
    whole, _ = apply(layer, weights, X, call={"state": state})
    for sizes in ([1, 2, 4], [3, 4]):
        caches, start, parts = layer.empty_caches(batch_size=2, length=T), 0, []
        for size in sizes:
            call = {"state": state, "caches": caches}
            chunk = X[:, start : start + size]
            y, sides = apply(layer, weights, chunk, start, method="step", call=call)
            caches, start = sides.caches, start + size
            parts.append(y)
        close(np.concatenate(parts, axis=1), whole)


FRAMES = np.random.default_rng(2).normal(size=[2, 20, 6]).astype(np.float32)
LENGTHS = np.array([18, 11])


def encoder(layer: Params) -> Layer:
    params = ConformerEncoder.params(
        dim=6, output_dim=D, stack=Stack.params(layer=layer, num_layers=2)
    )
    return params.build()


def test_an_encoder_streams_recordings_that_end_inside_of_a_chunk(draw: Callable) -> None:
    layer = encoder(streaming())
    weights, state = draw(layer), states(layer)
    segments = (np.arange(20) < LENGTHS[:, None]).astype("i")
    whole, _ = apply(layer, weights, FRAMES, segments=segments, call={"state": state})
    caches, parts = layer.empty_caches(batch_size=2, length=5), []
    for start, stop in ((0, 4), (4, 12), (12, 20)):
        call, part = {"state": state, "caches": caches}, slice(start, stop)
        y, sides = apply(
            layer,
            weights,
            FRAMES[:, part],
            start,
            method="step",
            segments=segments[:, part],
            call=call,
        )
        caches = sides.caches
        parts.append(y)
    steps = np.concatenate(parts, axis=1)
    for row, length in enumerate(-(-LENGTHS // 4)):
        close(steps[row, :length], whole[row, :length])


@pytest.mark.parametrize("norm", ["batch", "group", "layer"])
def test_padding_changes_no_frame_in_training(norm: str, draw: Callable) -> None:
    params = block()
    params.conv.norm = GroupNorm.params(num_groups=2) if norm == "group" else NORMS[norm]
    layer = encoder(params)
    weights, segments = draw(layer), (np.arange(20) < LENGTHS[:, None]).astype("i")
    call = {"state": states(layer), "training": True}
    y, sides = apply(layer, weights, FRAMES, segments=segments, call=call)
    noise = np.where(segments[..., None] > 0, FRAMES, 9.0).astype("f")
    longer = np.pad(noise, [(0, 0), (0, 5), (0, 0)], constant_values=7.0)
    more = np.pad(segments, [(0, 0), (0, 5)])
    z, others = apply(layer, weights, longer, segments=more, call=call)
    for row, length in enumerate(-(-LENGTHS // 4)):
        close(z[row, :length], y[row, :length])
    for name, value in sides.batch_statistics.items():
        close(others.batch_statistics[name]["sum"], value["sum"], 1e-4)
        assert value["weight"] == 5 + 3


def test_stacks_scans_and_pipelines_compute_the_same(draw: Callable) -> None:
    layer = block()
    layer.conv.norm = BatchNorm.params(statistics_over=1)
    stack = Stack.params(layer=layer, num_layers=2).build()
    weights = draw(stack)
    expected, _ = apply(stack, weights, X, segments=SEGMENTS, call={"state": states(stack)})
    for other in (
        Repeat.params(layer=layer, num_layers=2).build(),
        Pipeline.params(layer=layer, num_layers=2, num_stages=2, num_micro_batches=2).build(),
    ):
        stacked = _stack_values(weights, other.weights())
        state = _stack_values(states(stack), other.states())
        close(apply(other, stacked, X, segments=SEGMENTS, call={"state": state})[0], expected)


def _stack_values(values: dict[str, Any], specs: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of two layers in the tensors of a program that stacks them."""
    stacked = {}
    for name, spec in specs.items():
        front, _, tail = name.partition("/")
        end = "/".join(part for part in tail.split("/")[1:])
        pair = np.stack([values[f"{front}/{i}/{end}"] for i in range(2)])
        stacked[name] = tf.constant(pair.reshape(spec.program_shape))
    return stacked


def test_its_products_are_quantized_and_its_operations_counted(draw: Callable) -> None:
    params = block()
    layer = Quantized.params(layer=params).build()
    plain, weights = params.build(), draw(params.build())
    values = {k: tf.constant(initial_value(s, 0)) for k, s in layer.states().items()}
    names = {name.split("/range")[0] for name in layer.states()}
    assert any("conv" in name for name in names)
    assert len(values) > len(plain.states())
    call = {"state": values, "training": True}
    rounded, _ = apply(layer, weights, X, call=call)
    exact, _ = apply(plain, weights, X, call={"state": states(plain), "training": True})
    assert 1e-4 < np.abs(rounded - exact).max() < 0.5
    with record_flops() as calls:
        plain.flops((2, T, D))
    assert calls[plain.conv].flops == 2 * 2 * T * D * (3 * D + 4)
