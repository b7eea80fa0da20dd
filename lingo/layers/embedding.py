"""A table of vectors, one per token.

Axes: B batch, T positions, D model width, V vocabulary.
"""

from __future__ import annotations

from lingo.config.lazy import tf
from lingo.layers.initial import FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.residual import SEQUENCE_AXES, Residual, ResidualCall
from lingo.ops.lookup import lookup


class Embedding(Layer):
    """Looks up a vector for each token id.

    Its weight `table`, [V, D], has initial variance 1/D, so that a tied head maps normalized
    activations to logits of variance 1.
    """

    vocab_size: int  # number of token ids
    dim: int  # width of the vectors
    init: Initializer = FanIn  # of the table

    positionwise = True

    def setup(self) -> None:
        p = self.p
        shape, axes = [p.vocab_size, p.dim], ("vocab", "embed")
        self.table = self.weight("table", shape, axes=axes, init=p.init.build(), fan_in=p.dim)

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the vectors, [B, T, D], in the layer's dtype, of ids, int32 [B, T], below V."""
        return lookup(self.table, ids)

    def vectors(self) -> tf.Tensor:
        """Returns the vectors of all tokens, [V, D], in the layer's dtype."""
        return self.table

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        if len(call.shape) not in (2, 3):
            return super().residuals(call)
        return [Residual(2, (*call.shape[:2], self.p.dim), (*SEQUENCE_AXES, "embed"))]
