"""The same decoder-only Transformer in Keras' own layers, trained by `fit`.

Axes: B batch, T positions, D model width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import keras

from lingo.config.lazy import tf
from tools.rivals.plain_lm import Rates, Size


class TiedEmbedding(keras.layers.Embedding):
    """An embedding whose table also gives the logits."""

    def logits(self, x: tf.Tensor) -> Any:
        """Returns [B, T, V] of [B, T, D]."""
        return keras.ops.matmul(x, keras.ops.transpose(self.embeddings))


class KerasLm(keras.Model):
    """Embedding, causal layers with norms before attention and network, a norm, tied logits."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self._scale = size.dim**0.5
        self.embedding = TiedEmbedding(size.vocab_size, size.dim)
        self.blocks = [
            {
                "attention_norm": keras.layers.RMSNormalization(),
                "attention": keras.layers.MultiHeadAttention(
                    size.num_heads, size.dim // size.num_heads, use_bias=False
                ),
                "norm": keras.layers.RMSNormalization(),
                "in": keras.layers.Dense(size.hidden_dim, activation="relu", use_bias=False),
                "out": keras.layers.Dense(size.dim, use_bias=False),
            }
            for _ in range(size.num_layers)
        ]
        self.norm = keras.layers.RMSNormalization()

    def call(self, batch: dict[str, tf.Tensor]) -> Any:
        """Returns logits [B, T, V] of `tokens` and `segments`, [B, T]."""
        segments = batch["segments"]
        mask = keras.ops.equal(segments[:, :, None], segments[:, None, :])
        x = self.embedding(batch["tokens"]) * self._scale
        for block in self.blocks:
            h = block["attention_norm"](x)
            x += block["attention"](h, h, attention_mask=mask, use_causal_mask=True)
            x += block["out"](block["in"](block["norm"](x)))
        return self.embedding.logits(self.norm(x))


def fit(
    size: Size,
    batch: dict[str, Any],
    *,
    jit_compile: Any,
    callback: keras.callbacks.Callback,
    num_steps: int,
) -> None:
    """Trains on `tokens`, `segments` and `targets`, int32 [B, T], again and again."""
    model, rates = KerasLm(size), Rates()
    optimizer = keras.optimizers.AdamW(
        rates.learning_rate, rates.weight_decay, global_clipnorm=rates.max_grad_norm
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=jit_compile)
    inputs = {name: batch[name] for name in ("tokens", "segments")}
    data = tf.data.Dataset.from_tensors((inputs, batch["targets"])).repeat()
    silent: Any = 0
    model.fit(data, steps_per_epoch=num_steps, callbacks=[callback], shuffle=False, verbose=silent)
