"""The output layer of a language model with a matrix of its own.

Axes: B batch, T positions, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.layers.initial import FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.lazy import tf


class SoftmaxHead(Layer):
    """Scores every token by a matrix that is not the embedding.

    Weights:
        w: [D, V].
    """

    dim: int  # width of the input
    vocab_size: int  # number of token ids
    init: Initializer = FanIn  # of w

    def setup(self) -> None:
        p = self.p
        self.w = self.weight(
            "w", [p.dim, p.vocab_size], axes=("embed", "vocab"), init=p.init.build()
        )

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns float32 logits [B, T, V] of `x`, [B, T, D], any float type."""
        scores = tf.einsum("btd,dv->btv", tf.cast(x, self.p.dtype), self.w)
        return tf.cast(scores, tf.float32)

    def flops(self, shape: Sequence[int]) -> int:
        batch, length, dim = shape
        return 2 * batch * length * dim * self.p.vocab_size
