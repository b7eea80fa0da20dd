"""One layer of a Transformer: attention, then a feed-forward network, each around a residual.

Axes: B batch, T positions, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.layers.context import annotate
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.feed_forward import FeedForward
from lingo.layers.layer import Layer
from lingo.layers.norm import Norm, RmsNorm
from lingo.layers.sequence.attention import Attention
from lingo.lazy import tf


class TransformerLayer(Layer):
    """x + attention(norm(x)), then x + ffn(norm(x)) (Vaswani et al. 2017, sec. 3.1).

    Departs from the paper: normalizes what goes into each of the two, not the sums, so that deep
    stacks train without a careful warm-up (Xiong et al. 2020).
    """

    dim: int  # width of the input and of the output
    attention: Attention = Attention  # how positions see each other
    ffn: FeedForward = FeedForward  # what happens at each position
    norm: Norm = RmsNorm  # before each of the two
    dropout_rate: float = 0.0  # of what each of the two adds

    def check(self) -> None:
        check_rate("dropout_rate", self.p.dropout_rate)

    def setup(self) -> None:
        p = self.p
        self.attention_norm = p.norm.build(dim=p.dim)
        self.attention = p.attention.build(dim=p.dim)
        self.ffn_norm = p.norm.build(dim=p.dim)
        self.ffn = p.ffn.build(dim=p.dim)

    def __call__(
        self,
        x: tf.Tensor,
        *,
        segments: tf.Tensor | None = None,
        positions: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Computes the layer.

        Args:
            x: [B, T, D], any float type.
            segments: int32 [B, T], the document of each position (0: padding); None: one.
            positions: int32 [B, T], each position's number in its document; None: 0, 1, 2, ...

        Returns:
            [B, T, D], in the layer's dtype.
        """
        inputs = {"segments": segments, "positions": positions}
        x = annotate(tf.cast(x, self.p.dtype), "batch", "length", "embed")
        x = self._plus(x, self.attention(self.attention_norm(x), **inputs), "attention")
        return self._plus(x, self.ffn(self.ffn_norm(x), **inputs), "ffn")

    def step(
        self, x: tf.Tensor, index: tf.Tensor, *, positions: tf.Tensor | None = None
    ) -> tf.Tensor:
        x = tf.cast(x, self.p.dtype)
        attended = self.attention.step(self.attention_norm(x), index, positions=positions)
        x = self._plus(x, attended, "attention")
        fed = self.ffn.step(self.ffn_norm(x), index, positions=positions)
        return self._plus(x, fed, "ffn")

    def flops(self, shape: Sequence[int]) -> int:
        return self.attention.flops(shape) + self.ffn.flops(shape)

    def _plus(self, x: tf.Tensor, change: tf.Tensor, name: str) -> tf.Tensor:
        change = dropout(self, change, rate=self.p.dropout_rate, name=f"{name}_dropout")
        return annotate(x + change, "batch", "length", "embed")
