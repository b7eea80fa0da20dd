"""Choosing the next token among scores: the nucleus, a draw, what a choice is worth.

Axes: B rows, V vocabulary, K candidates.
"""

from __future__ import annotations

from lingo.config.lazy import tf


def nucleus(logits: tf.Tensor, top_p: float) -> tf.Tensor:
    """Returns the logits of the fewest tokens that have a probability together; -inf for others.

    Args:
        logits: float32 [B, K], largest first.
        top_p: in (0, 1]; the token that reaches it is kept.
    """
    before = tf.cumsum(tf.nn.softmax(logits), axis=-1, exclusive=True)
    return tf.where(before < top_p, logits, -float("inf"))


def draw(logits: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Returns int32 [B], drawn with the probabilities of a softmax; never one of probability 0.

    Args:
        logits: float32 [B, K].
        uniform: float32 [B] in [0, 1), multiples of 2**-24: times the sum it stays below the sum.
    """
    sums = tf.cumsum(tf.nn.softmax(logits), axis=-1)
    below = sums <= uniform[:, None] * sums[:, -1:]
    return tf.reduce_sum(tf.cast(below, tf.int32), axis=-1)


def log_prob(logits: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Returns the log-probability of a token in each row, float32 [B].

    Args:
        logits: float32 [B, V].
        tokens: int32 [B].
    """
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(tokens, logits)
