"""Fingerprints are the same numbers in every program, and float32 holds each of their words."""

from __future__ import annotations

import numpy as np

from lingo.config.lazy import tf
from lingo.ops.fingerprint import WORD_BITS, fingerprint, join_words

NAMES = [f"name {i}" for i in range(20_000)]


def test_words_are_exact_in_float32_and_join_to_the_hash() -> None:
    words = fingerprint(tf.constant(NAMES)).numpy()
    assert words.dtype == np.int32
    assert words.min() >= 0
    assert words.max() < 2**WORD_BITS
    np.testing.assert_array_equal(words.astype("f").astype("i"), words)
    expected = tf.strings.to_hash_bucket_fast(NAMES, 2**48).numpy()
    np.testing.assert_array_equal(join_words(tf.constant(words, tf.float32)).numpy(), expected)


def test_twenty_thousand_names_have_as_many_fingerprints() -> None:
    assert len(np.unique(fingerprint(tf.constant(NAMES)).numpy(), axis=0)) == len(NAMES)


def test_a_fingerprint_never_changes() -> None:
    words = fingerprint(tf.constant(["", "nurse", "größe"])).numpy()
    assert words.tolist() == [[6961967, 9453647], [9525740, 4740034], [8573430, 14874968]]
