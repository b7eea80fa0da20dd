"""Keys and values cached in 8 bits: attention to rounded keys and values, however it is computed.

Axes: B batch, T positions, D model width, H head width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo import layers
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.data.prompt import Prompt
from lingo.decode import Beam
from lingo.decode.text import prompt_batch
from lingo.layers.context import Call, apply
from lingo.layers.layer import Layer
from lingo.layers.sequence.mask import LocalWindow
from lingo.learner.step import decode_batch
from lingo.ops import random
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

X = np.random.default_rng(0).normal(size=[2, 7, 8]).astype(np.float32)  # [B, T, D]
SMALL = layers.Attention.params(dim=8, num_heads=2, cache_dtype="int8")
FORMS: dict[str, dict[str, Any]] = {
    "rotary": {"positions": layers.Rotary},
    "grouped": {"num_heads": 4, "num_kv_heads": 2},
    "local": {"mask": LocalWindow.params(window=3), "positions": layers.Rotary},
}


def rounded(heads: np.ndarray) -> np.ndarray:
    """Returns the nearest of 255 values from -m to m for each vector of the last axis."""
    result = np.zeros_like(heads)
    for i in np.ndindex(heads.shape[:-1]):
        scale = np.abs(heads[i]).max() / np.float32(127)
        result[i] = np.floor(heads[i] / scale + np.float32(0.5)) * scale
    return result


def attend_rounded(layer: Layer, weights: Any) -> np.ndarray:
    """Returns what the layer computes for `X` at once, of rounded keys and values."""
    changes = {
        "logits": lambda heads: [heads["query"], rounded(heads["key"].numpy())],
        "averages": lambda heads: [
            rounded(v.numpy()) if name == "value" else v for name, v in heads.items()
        ],
    }
    with layers.context.enter_call(Call(weights=weights, operands=changes)):
        return layer(tf.constant(X)).numpy()


def in_chunks(layer: Layer, weights: Any, sizes: list[int]) -> np.ndarray:
    caches, outputs, start = layer.empty_caches(batch_size=2, length=7), [], 0
    for size in sizes:
        part = X[:, start : start + size]
        y, sides = apply(
            layer, weights, part, tf.constant(start), method="step", call={"caches": caches}
        )
        caches, start = {**caches, **sides.caches}, start + size
        outputs.append(y)
    return np.concatenate(outputs, axis=1)


@pytest.mark.parametrize("form", FORMS)
def test_steps_attend_to_rounded_keys_and_values(form: str, draw: Callable) -> None:
    layer = SMALL.copy().set(**FORMS[form]).build()
    weights = draw(layer)
    expected = attend_rounded(layer, weights)
    for sizes in ([7], [3, 1, 3], [1] * 7):
        np.testing.assert_allclose(in_chunks(layer, weights, sizes), expected, rtol=1e-4, atol=1e-5)
    exact = SMALL.copy().set(**FORMS[form], cache_dtype=None).build()
    plain = apply(exact, weights, tf.constant(X))[0]
    assert 1e-5 < np.abs(plain - expected).max() < 0.03 * np.abs(plain).max()


def test_caches_are_a_quarter_as_large_and_a_scale() -> None:
    def size(**fields: Any) -> int:
        layer = layers.Attention.params(dim=64, num_heads=1, **fields).build()
        caches = layer.empty_caches(batch_size=2, length=10)
        return sum(value.numpy().nbytes for value in caches.values())

    assert size(cache_dtype="int8") == size() // 4 + 2 * 2 * 10 * 4


def test_a_memory_is_rounded_once(draw: Callable) -> None:
    layer = layers.CrossAttention.params(dim=8, num_heads=2, cache_dtype="int8").build()
    weights, memory = draw(layer), tf.constant(X[:, ::-1])
    caches = layer.empty_caches(batch_size=2, length=7)

    def step(part: np.ndarray, memory: Any) -> tuple[Any, Any]:
        inputs = layers.CallInputs(memory=memory, memory_segments=tf.ones([2, 7], tf.int32))
        call = {"caches": caches}
        return apply(layer, weights, part, tf.constant(0), method="step", inputs=inputs, call=call)

    first, sides = step(X[:, :2], memory)
    caches = {**caches, **sides.caches}
    assert {where: v.dtype.name for where, v in caches.items()} == {
        "memory_key": "int8",
        "memory_key_scale": "float32",
        "memory_value": "int8",
        "memory_value_scale": "float32",
    }
    again, sides = step(X[:, :2], None)
    np.testing.assert_array_equal(again, first)
    assert not sides.caches
    plain = layers.CrossAttention.params(dim=8, num_heads=2).build()
    exact, _ = apply(plain, weights, X[:, :2], inputs=layers.CallInputs(memory=memory))
    assert 1e-5 < np.abs(exact - first).max() < 0.03 * np.abs(exact).max()


def test_beams_of_prompts_of_several_lengths_have_their_own_caches(draw: Callable) -> None:
    attention = SMALL.copy().set(positions=layers.Rotary)
    del attention.dim
    model: Params = LanguageModel.params(dim=8)
    layer = layers.TransformerLayer.params(attention=attention)
    layer.ffn.hidden_dim = 8
    model.stack = layers.Repeat.params(layer=layer, num_layers=2)
    task = LanguageModeling.params(model=model, vocab_size=9).build()
    weights = draw(task)
    search = Beam.params(max_tokens=4, num_beams=3, num_samples=3).build()
    prompts = [[2, 5, 6, 3], [2, 7]]
    batch = prompt_batch([Prompt(np.array(p, np.int32)) for p in prompts], rows=[0, 1], end_id=-1)
    tensors = {name: tf.constant(value) for name, value in batch.items()}
    decode = tf.function(lambda: decode_batch(task, weights, {}, tensors, search, KEY))
    found = decode()
    common = len(batch["prefix"][0])
    for i, prompt in enumerate(prompts):
        for k in range(3):
            size = len(prompt) - common + 4
            text = [*prompt[:common], *found["tokens"][i, k, :size].numpy()]
            assert text[: len(prompt)] == prompt
            caches = task.model.empty_caches(batch_size=1, length=len(text))
            logits, _ = apply(
                task.model,
                weights,
                tf.constant([text], tf.int32),
                tf.constant(0),
                method="step",
                call={"caches": caches},
            )
            scores = tf.nn.log_softmax(logits)[0].numpy()
            expected = [scores[t - 1, text[t]] for t in range(len(prompt), len(text))]
            np.testing.assert_allclose(
                found["log_probs"][i, k, len(prompt) - common : size], expected, rtol=1e-4
            )


KEY = random.Key(*map(tf.constant, random.root_key(0)))
