"""Choosing the next token: the most likely one, or one drawn among the likely.

Axes: B rows, V vocabulary, K candidates.
"""

from __future__ import annotations

from typing import Any

from lingo.config import ranges
from lingo.config.params import Configurable, ParamError
from lingo.lazy import tf


class Sampling(Configurable):
    """How a text is continued, token by token.

    Logits are divided by the temperature; then the `top_k` most likely tokens are kept, and of
    these the nucleus: the fewest that have the probability `top_p` together (Holtzman et al. 2020,
    sec. 3.1). The next token is drawn among what is left.
    """

    max_tokens: int = 200  # tokens that are added to a prompt, at most
    num_samples: int = 1  # texts for each prompt
    temperature: float = 0.8  # below 1: more of what is likely; 0: always the most likely token
    top_k: int | None = None  # number of most likely tokens to draw among; None: all
    top_p: float | None = None  # probability that those to draw among have together; None: 1

    def check(self) -> None:
        p = self.p
        ranges.check_positive(p, "max_tokens", "num_samples", "top_k")
        if p.temperature < 0:
            raise ParamError(f"temperature={p.temperature} is negative; 0 takes the likeliest")
        if p.top_p is not None and not 0 < p.top_p <= 1:
            raise ParamError(f"top_p={p.top_p} is not in (0, 1]")

    def choose(self, logits: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
        """Returns the next token of each row.

        Args:
            logits: float32 [B, V], V known.
            uniform: float32 [B] in [0, 1), multiples of 2**-24; decides which token is drawn.

        Returns:
            int32 [B].
        """
        p = self.p
        if p.temperature == 0:
            return tf.argmax(logits, axis=-1, output_type=tf.int32)
        # the likeliest becomes 0 and stays it: no temperature is too small
        logits -= tf.reduce_max(logits, axis=-1, keepdims=True)
        logits *= min(1 / p.temperature, 1e30)
        if p.top_k is None and p.top_p is None:
            return draw(logits, uniform)
        size: Any = logits.shape[-1]
        likely, tokens = tf.math.top_k(logits, k=min(p.top_k or size, size))
        if p.top_p is not None:
            likely = nucleus(likely, p.top_p)
        return tf.gather(tokens, draw(likely, uniform), batch_dims=1)


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
