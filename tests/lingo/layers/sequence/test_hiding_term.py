"""Masked attention in files of 8 bits, whose levels the mask must not take up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import Attention, Bidirectional, Causal
from lingo.layers.context import apply
from lingo.layers.sequence import dot_product

X = np.random.default_rng(0).normal(size=[32, 1, 7, 16]).astype(np.float32)


def error_of_8_bits(mask: Any, draw: Callable) -> float:
    """Returns the root mean square error of a converted attention, relative to its results."""
    layer = Attention.params(dim=16, num_heads=2, mask=mask).build()
    weights = {name: 0.5 * value for name, value in draw(layer).items()}  # logits of a few units
    exact = np.stack([apply(layer, weights, x)[0] for x in X])
    call = {"constant_ranges": True}
    graph: Any = tf.function(lambda x: apply(layer, weights, x, call=call)[0], autograph=False)
    concrete = graph.get_concrete_function(tf.TensorSpec([1, 7, 16]))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], graph)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]

    def examples() -> Iterator[list[np.ndarray]]:
        yield from ([x] for x in X)

    converter.representative_dataset = examples
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    interpreter.allocate_tensors()
    (source,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    found = []
    for x in X:
        interpreter.set_tensor(source["index"], x)
        interpreter.invoke()
        found.append(interpreter.get_tensor(result["index"]))
    return float(np.sqrt(np.mean((np.stack(found) - exact) ** 2)) / exact.std())


@pytest.mark.filterwarnings("ignore")
def test_a_mask_costs_8_bits_no_more_than_none(
    draw: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, masked = (error_of_8_bits(mask, draw) for mask in (Bidirectional, Causal))
    monkeypatch.setattr(dot_product, "_HIDING_TERM", None)
    assert masked < whole < error_of_8_bits(Causal, draw)
