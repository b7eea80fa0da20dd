"""Choosing the next token from logits: the nucleus, a random draw, and log-probabilities.

Axes: B rows (one per text), V vocabulary, K candidates.
"""

from __future__ import annotations

from lingo.config.lazy import tf


def nucleus(logits: tf.Tensor, top_p: float) -> tf.Tensor:
    """Returns logits with -inf outside the nucleus: the fewest tokens with probability `top_p`.

    Args:
        logits: float32 [B, K], largest first.
        top_p: in (0, 1]; the token that reaches it is kept.

    Returns:
        float32 [B, K].
    """
    before = tf.cumsum(tf.nn.softmax(logits), axis=-1, exclusive=True)
    return tf.where(before < top_p, logits, -float("inf"))


def draw(logits: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Draws an index with the probabilities softmax(logits); never one of probability 0.

    Args:
        logits: float32 [B, K].
        uniform: float32 [B] in [0, 1), multiples of 2**-24, so that their product with the sum of
            probabilities is below that sum.

    Returns:
        int32 [B], in 0..K-1.
    """
    sums = tf.cumsum(tf.nn.softmax(logits), axis=-1)
    below = sums <= uniform[:, None] * sums[:, -1:]
    return tf.reduce_sum(tf.cast(below, tf.int32), axis=-1)


def log_prob(logits: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Returns the log-probability of one token per row.

    Args:
        logits: float32 [B, V].
        tokens: int32 [B].

    Returns:
        float32 [B].
    """
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(tokens, logits)
