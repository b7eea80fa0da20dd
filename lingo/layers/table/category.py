"""Layers for categories of tables: `Vocabulary` numbers them, `OneHot` makes vectors of numbers.

Axes: B rows, T columns, V values of a column.
"""

from __future__ import annotations

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.initial import ZEROS
from lingo.layers.layer import Layer
from lingo.layers.residual import Residual, ResidualCall
from lingo.ops.fingerprint import MISSING, WORD_BITS, join_words

_UNKNOWN_ID, _MISSING_ID, _NUM_SPECIAL = 0, 1, 2


class Vocabulary(Layer):
    """The id of each category, by fingerprints of the fitted rows' categories.

    Fitted rows are the first training rows, at most `lingo.learner.fit.MAX_EXAMPLES`. Id 0 is for
    categories that no fitted row has, and for rare ones beyond a column's size. Id 1 is for missing
    ones. Ids from 2 on are for a column's most frequent categories, in the order of their
    fingerprints.

    States:
        words: [T, V, 2], fitted fingerprints in rising order (`lingo.ops.fingerprint`); words of
            2^24 fill the end. Initially zeros.
    """

    sizes: tuple[int, ...]  # largest number of known categories per column, [T]

    def check(self) -> None:
        ranges.check_positive(self.p, "sizes")

    def setup(self) -> None:
        shape = [len(self.p.sizes), max(self.p.sizes), 2]
        self.words = self.state("words", shape, decay=1.0, init=ZEROS)

    @property
    def id_counts(self) -> tuple[int, ...]:
        """The number of ids per column, [T], for `OneHot` or `EmbeddingTables`."""
        return tuple(size + _NUM_SPECIAL for size in self.p.sizes)

    def fit(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the fingerprints of the most frequent categories in x, int32 [B, T, 2]."""
        words = np.full([len(self.p.sizes), max(self.p.sizes), 2], 1 << WORD_BITS)
        for to, size, column in zip(words, self.p.sizes, np.moveaxis(x, 1, 0), strict=True):
            known = column[column[:, 0] != MISSING]
            values, counts = np.unique(known, axis=0, return_counts=True)
            # values are in rising order, which also decides between equally frequent ones
            kept = np.sort(np.argsort(-counts, kind="stable")[:size])
            to[: len(kept)] = values[kept]
        return {"words": words}

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the id of each category, int32 [B, T], for fingerprints x, int32 [B, T, 2]."""
        keys = tf.transpose(join_words(x))  # [T, B]
        known = join_words(self.words)  # [T, V]
        place = tf.minimum(tf.searchsorted(known, keys), max(self.p.sizes) - 1)
        is_known = tf.equal(tf.gather(known, place, batch_dims=1), keys)
        ids = tf.where(is_known, place + _NUM_SPECIAL, _UNKNOWN_ID)
        is_missing = tf.reduce_all(tf.equal(x, MISSING), axis=-1)
        return tf.where(is_missing, _MISSING_ID, tf.transpose(ids))

    def count_unknown(self, x: tf.Tensor) -> tf.Tensor:
        """Returns how many categories of each row have no id of their own, int32 [B].

        x has fingerprints, int32 [B, T, 2]. Missing categories do not count.
        """
        return tf.reduce_sum(tf.cast(tf.equal(self(x), _UNKNOWN_ID), tf.int32), axis=1)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []


class OneHot(Layer):
    """A vector for each row: 1 at the id of each column, else 0. It has no state."""

    sizes: tuple[int, ...]  # number of ids per column, [T]

    def check(self) -> None:
        ranges.check_positive(self.p, "sizes")

    @property
    def output_dim(self) -> int:
        """The width of the vectors."""
        return sum(self.p.sizes)

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns vectors, [B, sum of sizes] in the layer's dtype, for ids, int32 [B, T].

        An id that is not below its column's size has only zeros.
        """
        columns = tf.unstack(ids, num=len(self.p.sizes), axis=-1)
        pairs = zip(columns, self.p.sizes, strict=True)
        return tf.concat([tf.one_hot(c, size, dtype=self.p.dtype) for c, size in pairs], axis=-1)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []
