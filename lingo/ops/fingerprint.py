"""Fingerprints of texts, which are numbers that any device can hold, and equal in any program.

Axes: B examples, T columns.
"""

from __future__ import annotations

from lingo.config.lazy import tf

WORD_BITS = 24
"""Bits of each of a fingerprint's two words. So float32, the type of all states, holds a word."""

MISSING = -1
"""Both words of a missing text."""


def fingerprint(texts: tf.Tensor) -> tf.Tensor:
    """Returns 48 bits of the 64-bit FarmHash of texts, string [...]: int32 [..., 2].

    Among 10,000 texts, two have the same fingerprint with a probability of 2e-7.

    >>> fingerprint(tf.constant(["nurse", ""])).numpy().tolist()
    [[9525740, 4740034], [6961967, 9453647]]
    """
    value = tf.strings.to_hash_bucket_fast(texts, 1 << 2 * WORD_BITS)
    words = [value // (1 << WORD_BITS), value % (1 << WORD_BITS)]
    return tf.cast(tf.stack(words, axis=-1), tf.int32)


def join_words(words: tf.Tensor) -> tf.Tensor:
    """Returns fingerprints, any number type [..., 2], as one number each: int64 [...].

    >>> join_words(tf.constant([[1, 2], [-1, -1]])).numpy().tolist()
    [16777218, -16777217]
    """
    high, low = tf.unstack(tf.cast(words, tf.int64), axis=-1)
    return high * (1 << WORD_BITS) + low
