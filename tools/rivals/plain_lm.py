"""A decoder-only Transformer and its AdamW step, written by hand in TensorFlow: one function.

What a careful engineer writes for one model and one machine: variables updated in place, no layers,
no configuration.

Axes: B batch, T positions, D model width, N heads, H head width, F hidden width, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf


class Size(NamedTuple):
    """Sizes of the model and of its batches."""

    dim: int = 512
    num_layers: int = 6
    num_heads: int = 8
    hidden_dim: int = 2048
    vocab_size: int = 8192
    length: int = 256
    batch_size: int = 8


class Rates(NamedTuple):
    """Constants of AdamW."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-7
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0


def initial_weights(size: Size, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns float32 weights of variance 1 / fan-in; scales of norms are one."""
    draw = np.random.default_rng(seed)
    d, n, f = size.dim, size.num_heads, size.hidden_dim
    into = [d, n, d // n]
    shapes: dict[str, tuple[list[int], int]] = {"table": ([size.vocab_size, d], d)}
    for i in range(size.num_layers):
        shapes |= {f"{i}/{name}": (into, d) for name in ("query", "key", "value")}
        shapes |= {f"{i}/output": ([n, d // n, d], d)}
        shapes |= {f"{i}/in": ([d, f], d), f"{i}/out": ([f, d], f)}
    weights = {
        name: draw.normal(0.0, fan_in**-0.5, shape).astype("f")
        for name, (shape, fan_in) in shapes.items()
    }
    scales = ["scale", *(f"{i}/{part}_scale" for i in range(size.num_layers) for part in "af")]
    return weights | {name: np.ones(d, "f") for name in scales}


def logits(w: dict[str, Any], tokens: tf.Tensor, segments: tf.Tensor, size: Size) -> tf.Tensor:
    """Returns float32 [B, T, V] for int32 tokens and segments, [B, T]."""
    x = tf.gather(w["table"], tokens) * math.sqrt(size.dim)
    index = tf.range(size.length)
    mask = (index[:, None] >= index)[None] & (segments[:, :, None] == segments[:, None, :])
    scale = (size.dim // size.num_heads) ** -0.5
    for i in range(size.num_layers):
        h = _norm(x, w[f"{i}/a_scale"])
        query = tf.einsum("btd,dnh->bnth", h, w[f"{i}/query"]) * scale
        key = tf.einsum("btd,dnh->bnth", h, w[f"{i}/key"])
        value = tf.einsum("btd,dnh->bnth", h, w[f"{i}/value"])
        scores = tf.matmul(query, key, transpose_b=True)
        attention = tf.nn.softmax(tf.where(mask[:, None], scores, scores.dtype.min))
        x += tf.einsum("bnth,nhd->btd", tf.matmul(attention, value), w[f"{i}/output"])
        h = _norm(x, w[f"{i}/f_scale"])
        x += tf.tensordot(tf.nn.relu(tf.tensordot(h, w[f"{i}/in"], 1)), w[f"{i}/out"], 1)
    return tf.matmul(_norm(x, w["scale"]), w["table"], transpose_b=True)


def _norm(x: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + 1e-6) * scale


class PlainTraining:
    """The model in training."""

    def __init__(self, size: Size, *, xla: bool, rates: Rates | None = None) -> None:
        self._size, self._rates = size, rates or Rates()
        self._w = {
            name: tf.Variable(tf.constant(value)) for name, value in initial_weights(size).items()
        }
        self._m = {name: tf.Variable(tf.zeros_like(w)) for name, w in self._w.items()}
        self._v = {name: tf.Variable(tf.zeros_like(w)) for name, w in self._w.items()}
        self._steps = tf.Variable(tf.constant(0, tf.int64))
        self.step = tf.function(self._step, autograph=False, jit_compile=xla)

    def _step(self, batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the loss and the norm of its gradient."""
        counted = tf.cast(batch["segments"] > 0, tf.float32)
        with tf.GradientTape() as tape:
            scores = logits(self._w, batch["tokens"], batch["segments"], self._size)
            nats = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], scores)
            loss = tf.reduce_sum(nats * counted) / tf.reduce_sum(counted)
        gradients = tape.gradient(loss, self._w)
        gradients = {name: tf.convert_to_tensor(g) for name, g in gradients.items()}
        norm = tf.linalg.global_norm(list(gradients.values()))
        self._update(gradients, norm)
        return loss, norm

    def _update(self, gradients: dict[str, tf.Tensor], norm: tf.Tensor) -> None:
        rates = self._rates
        steps = tf.cast(self._steps.assign_add(1), tf.float32)
        size = rates.learning_rate * tf.sqrt(1.0 - rates.beta2**steps) / (1.0 - rates.beta1**steps)
        factor = rates.max_grad_norm / tf.maximum(norm, rates.max_grad_norm)
        for name, w in self._w.items():
            g, m, v = gradients[name] * factor, self._m[name], self._v[name]
            m.assign_add((1.0 - rates.beta1) * (g - m))
            v.assign_add((1.0 - rates.beta2) * (tf.square(g) - v))
            decay = rates.learning_rate * rates.weight_decay if len(w.shape) > 1 else 0.0
            w.assign_sub(decay * w + size * m / (tf.sqrt(v) + rates.epsilon))
