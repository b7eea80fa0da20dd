"""A table of vectors, one for each token; the same table gives tied logits.

Axes: B batch, T positions, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.layers.initial import FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.lazy import tf
from lingo.ops.lookup import lookup


class Embedding(Layer):
    """Looks up a vector for each token id.

    Weights:
        table: [V, D], at first of variance 1/D: logits of normalized activations have variance 1.
    """

    vocab_size: int  # number of token ids
    dim: int  # width of the vectors
    init: Initializer = FanIn  # of the table

    def setup(self) -> None:
        p = self.p
        self.table = self.weight(
            "table",
            [p.vocab_size, p.dim],
            axes=("vocab", "embed"),
            init=p.init.build(),
            fan_in=p.dim,
        )

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        """Looks up vectors.

        Args:
            ids: int32 [B, T], each below V.

        Returns:
            [B, T, D], in the layer's dtype.
        """
        return lookup(self.table, ids)

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """Scores every token by its vector (Press and Wolf 2017).

        Args:
            x: [B, T, D], any float type.

        Returns:
            float32 [B, T, V].
        """
        scores = tf.einsum("btd,vd->btv", tf.cast(x, self.p.dtype), self.table)
        return tf.cast(scores, tf.float32)

    def flops(self, shape: Sequence[int]) -> int:
        """Returns 0: a lookup multiplies nothing. `logits_flops` counts the tied head."""
        del shape
        return 0

    def logits_flops(self, num_positions: int) -> int:
        """Returns the floating-point operations of `logits` for so many positions."""
        return 2 * num_positions * self.p.dim * self.p.vocab_size
