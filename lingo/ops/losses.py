"""Losses: one number for every prediction, float32, never averaged here.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from lingo.lazy import tf


def cross_entropy(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Returns -log softmax(logits)[target]: the nats that the model spends on each target.

    Args:
        logits: [B, T, V], any float type; [..., V] in general.
        targets: int32 [B, T], each below V.

    Returns:
        float32 [B, T]. Neither overflows nor loses the small differences of large logits.
    """
    return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, tf.cast(logits, tf.float32))
