"""Small functions that are served as if they were a trained model's."""

from __future__ import annotations

from typing import Any

import pytest

from lingo.config.lazy import tf
from lingo.serving.model import ServedModel, ServedSignature


def double(x: tf.Tensor) -> dict[str, tf.Tensor]:
    """float32 [B, 2] -> the same."""
    return {"y": 2.0 * x}


def count(tokens: tf.Tensor, segments: tf.Tensor) -> dict[str, tf.Tensor]:
    """int32 [B, T] -> sums of the tokens before each position, and of all that count."""
    tokens = tf.where(segments > 0, tokens, 0)
    return {"sums": tf.cumsum(tokens, axis=1), "sum": tf.reduce_sum(tokens, axis=1)}


def shout(text: tf.Tensor) -> dict[str, tf.Tensor]:
    """string [B] -> upper case as text, and as bytes."""
    upper = tf.strings.upper(text)
    return {"text": upper, "text_bytes": upper}


def invert(x: tf.Tensor) -> dict[str, tf.Tensor]:
    """int32 [B] -> 100 // x; it refuses 0."""
    check = tf.debugging.assert_none_equal(x, 0, message="x is 0")
    with tf.control_dependencies([check]):
        return {"y": 100 // x}


ids = tf.TensorSpec([None, None], tf.int32)
SPECS: dict[Any, dict[str, tf.TensorSpec]] = {
    double: {"x": tf.TensorSpec([None, 2], tf.float32)},
    count: {"tokens": ids, "segments": ids},
    shout: {"text": tf.TensorSpec([None], tf.string)},
    invert: {"x": tf.TensorSpec([None], tf.int32)},
}


def trace_all() -> dict[str, Any]:
    """Returns the functions, by name."""
    traced = {}
    for function, specs in SPECS.items():
        named = {name: tf.TensorSpec(s.shape, s.dtype, name=name) for name, s in specs.items()}
        compiled = tf.function(lambda f=function, **inputs: f(**inputs), autograph=False)
        traced[function.__name__] = compiled.get_concrete_function(**named)
    return traced


@pytest.fixture(scope="session")
def model() -> ServedModel:
    functions = trace_all()
    signatures = {name: ServedSignature(name, function) for name, function in functions.items()}
    return ServedModel("small", 7, signatures, functions)
