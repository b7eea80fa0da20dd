"""Positions in chunks: the same numbers, less memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers.context import apply
from lingo.layers.layer import Layer
from lingo.layers.wrap.chunks import in_chunks

B, T, D, F = 2, 6, 3, 5
X = np.random.default_rng(0).normal(size=[B, T, D]).astype(np.float32)
NUMBERS = np.arange(B * T, dtype=np.int32).reshape(B, T)


class Wide(Layer):
    """Something of each position, by a wide inner value."""

    size: int | None = None  # positions at a time

    def setup(self) -> None:
        self.w = self.weight("w", [D, F], axes=("embed", "mlp"))

    def __call__(self, x: tf.Tensor, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        def inner(x: tf.Tensor, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
            hidden = tf.tanh(tf.einsum("btd,df->btf", x, self.w))
            hidden *= tf.cast(numbers, tf.float32)[..., None] / T
            return {"sum": tf.reduce_sum(hidden, -1), "largest": tf.reduce_max(hidden, -1)}

        return in_chunks(inner, x, numbers, layers=[self], size=self.p.size)


def computed(draw: Callable, size: int | None, *, jit: bool = False, eager: bool = False) -> Any:
    """Returns outputs, and gradients of the input and the weights."""
    layer = Wide.params(size=size).build()

    def step(weights: Any, x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, weights])
            outputs, _ = apply(layer, weights, x, tf.constant(NUMBERS))
            total = tf.add_n([tf.reduce_sum(tf.sin(v)) for v in outputs.values()])
        return outputs, tape.gradient(total, [x, weights])

    step = step if eager else tf.function(step, autograph=False, jit_compile=jit)
    return step(draw(layer), tf.constant(X))


def assert_same(a: Any, b: Any) -> None:
    tf.nest.map_structure(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), a, b)


@pytest.mark.parametrize(
    ("size", "how"),
    [(1, {}), (2, {}), (4, {}), (6, {}), (7, {}), (4, {"jit": True}), (4, {"eager": True})],
)  # 4 and 7 leave a chunk to fill up
def test_chunks_of_any_size_give_the_values_and_gradients_of_the_whole(size, how, draw):
    assert_same(computed(draw, size, **how), computed(draw, None, **how))


def test_sizes_may_be_unknown_when_it_is_traced(with_weights) -> None:
    layer, weights = with_weights(Wide.params(size=4).build())
    specs = tf.TensorSpec([None, None, D], tf.float32), tf.TensorSpec([None, None], tf.int32)
    call = tf.function(lambda x, n: apply(layer, weights, x, n)[0], specs, autograph=False)
    for length in (1, 5, 6):
        expected, _ = apply(layer, weights, X[:, :length], NUMBERS[:, :length])
        assert_same(call(X[:, :length], NUMBERS[:, :length]), expected)


@pytest.mark.parametrize("size", [2, None])
def test_the_program_has_inner_values_of_one_chunk_only(size: int | None, with_weights) -> None:
    layer, weights = with_weights(Wide.params(size=size).build())

    @tf.function(autograph=False, jit_compile=True)
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs, _ = apply(layer, weights, x, tf.constant(NUMBERS))
        return tape.gradient(outputs, x)

    program = step.experimental_get_compiler_ir(tf.constant(X))(stage="optimized_hlo")
    shapes = re.findall(r"f32\[([\d,]+)\]", program)
    largest = max(math.prod(map(int, shape.split(","))) for shape in shapes)
    assert (largest < B * T * F) == (size is not None)
