"""Attention as mathematics: masks and the weighted average, without weights of its own.

Axes: B batch, T query positions, S key positions, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Callable

from lingo.lazy import tf


def causal_mask(length: tf.Tensor | int) -> tf.Tensor:
    """Returns a bool mask [1, 1, length, length], True where the key is not later."""
    index = tf.range(length)
    return (index[:, None] >= index[None, :])[None, None]


def segment_mask(segments: tf.Tensor) -> tf.Tensor:
    """Returns a bool mask [B, 1, T, T], True where query and key belong to one segment.

    Args:
        segments: int32 [B, T], the document of each position; 0 for padding. Padding sees padding,
            so that no query is left without a key.
    """
    return (segments[:, :, None] == segments[:, None, :])[:, None]


def attend(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    *,
    mask: tf.Tensor,
    bias: tf.Tensor | None = None,
    thin: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> tf.Tensor:
    """Averages values, weighted by how keys match queries (Vaswani et al. 2017, sec. 3.2.1).

    Scores and softmax are float32 whatever the inputs are: bfloat16 keeps 8 significant bits, too
    few to rank keys whose scores are close.

    Args:
        query: [B, T, N, H], any float type.
        key: [B, S, N, H], same type.
        value: [B, S, N, H], same type.
        mask: bool, broadcastable to [B, N, T, S]. A query that may see no key sees all equally.
        bias: float32, broadcastable to [B, N, T, S], added to the scores.
        thin: applied to the weights, float32 [B, N, T, S]: dropout.

    Returns:
        [B, T, N, H], the type of `value`.
    """
    scale = tf.math.rsqrt(tf.cast(tf.shape(query)[-1], tf.float32))
    query, key = tf.cast(query, tf.float32) * scale, tf.cast(key, tf.float32)
    scores = tf.einsum("btnh,bsnh->bnts", query, key)
    if bias is not None:
        scores += bias
    weights = tf.nn.softmax(tf.where(mask, scores, scores.dtype.min))
    if thin is not None:
        weights = thin(weights)
    return tf.einsum("bnts,bsnh->btnh", tf.cast(weights, value.dtype), value)
