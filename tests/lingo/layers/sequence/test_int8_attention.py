"""Attention in files of 8 bits, with masks, whose levels the mask must not take up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.export.lite_int8 import convert_to_int8
from lingo.layers import Attention, Bidirectional, Causal, Layer, Quantized, TransformerXl
from lingo.layers.context import apply
from lingo.layers.sequence import dot_product
from lingo.models import ConformerLayer

X = np.random.default_rng(0).normal(size=[32, 1, 7, 16]).astype(np.float32)
SIZES = np.random.default_rng(1).integers(3, 8, size=[32, 1]).astype(np.int32)

pytestmark = pytest.mark.filterwarnings("ignore")


def attention(**fields: Any) -> Params:
    return Attention.params(dim=16, num_heads=2, **fields)


def conformer() -> Params:
    layer = ConformerLayer.params(dim=16)
    layer.all(Attention).set(num_heads=2)
    layer.conv.kernel = 4
    return layer


LAYERS = {
    "causal": attention(mask=Causal),
    "biased": attention(mask=Bidirectional, use_bias=True),
    "relative": attention(mask=Bidirectional, positions=TransformerXl),
    "conformer": conformer(),
}


def states(layer: Layer) -> dict[str, tf.Tensor]:
    """Returns trained ranges, which hold all values of the test, and moments of batch norms."""

    def value(name: str) -> float:
        ends = {"_low": -3.0, "_high": 3.0, "_square": 1.0}
        return next((v for end, v in ends.items() if name.endswith(end)), 0.0)

    specs = layer.states().items()
    return {name: tf.fill(spec.program_shape, value(name)) for name, spec in specs}


def error_of_8_bits(params: Params, draw: Callable) -> float:
    """Returns the root mean square error of a converted layer, relative to its results."""
    layer = params.build()
    weights = {name: 0.5 * value for name, value in draw(layer).items()}  # logits of a few units

    def compute(x: tf.Tensor, size: tf.Tensor, *, constant_ranges: bool) -> tf.Tensor:
        segments = tf.sequence_mask(size, 7, tf.int32)
        call = {"state": states(layer), "weights_ready": True, "constant_ranges": constant_ranges}
        y, _ = apply(layer, weights, x, segments=segments, call=call)
        return y * tf.cast(segments, tf.float32)[..., None]

    graph: Any = tf.function(lambda x, n: compute(x, n, constant_ranges=True), autograph=False)
    specs = tf.TensorSpec([1, 7, 16]), tf.TensorSpec([1], tf.int32)
    concrete = graph.get_concrete_function(*specs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], graph)
    content = convert_to_int8(converter, lambda: ([x, n] for x, n in zip(X, SIZES, strict=True)))
    interpreter = tf.lite.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    floats, sizes = interpreter.get_input_details()
    (result,) = interpreter.get_output_details()
    found = []
    for x, size in zip(X, SIZES, strict=True):
        interpreter.set_tensor(floats["index"], x)
        interpreter.set_tensor(sizes["index"], size)
        interpreter.invoke()
        found.append(interpreter.get_tensor(result["index"]))
    pairs = zip(X, SIZES, strict=True)
    exact = np.stack([compute(x, n, constant_ranges=False) for x, n in pairs])
    return float(np.sqrt(np.mean((np.stack(found) - exact) ** 2)) / exact.std())


@pytest.mark.parametrize("ranges", ["measured", "trained"])
@pytest.mark.parametrize("name", LAYERS)
def test_masked_attention_in_8_bits(name: str, ranges: str, draw: Callable) -> None:
    layer = LAYERS[name]
    params = layer if ranges == "measured" else Quantized.params(layer=layer)
    assert error_of_8_bits(params, draw) < 0.05


def test_the_least_float32_would_take_the_levels_of_visible_logits(
    draw: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    masked = error_of_8_bits(LAYERS["causal"], draw)
    monkeypatch.setattr(dot_product, "_HIDING_TERM", None)
    assert masked < 0.2 * error_of_8_bits(LAYERS["causal"], draw)
