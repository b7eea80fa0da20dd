"""The output layer of a language model, which computes a logit for every token.

Axes: B batch, T positions, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.context import annotate
from lingo.layers.initial import ZEROS, FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.product import Product
from lingo.layers.residual import Residual, ResidualCall


class Head(Layer, interface=True):
    """Computes the logits of all tokens at each position, from the activations at this position.

    Subclasses define `product`.
    """

    dim: int  # width of the input
    vocab_size: int  # number of token ids
    logit_scale: float = 1.0  # factor of the logits; in T5 with a tied head: 1 / sqrt(dim)
    logit_cap: float | None = None  # c: logits become c * tanh(logits / c); None: no cap

    positionwise = True

    def check(self) -> None:
        ranges.check_positive(self.p, "logit_scale", "logit_cap")

    def __call__(self, x: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
        """Returns the logits of all tokens, float32 [B, T, V], for activations x [B, T, D].

        `embedding`, [V, D], is the table of the model's input embedding. x and `embedding` have any
        float type. `logit_cap` is from Gemma Team 2024, sec. 2.
        """
        x = tf.cast(x, self.p.dtype)
        if self.p.logit_scale != 1:
            x *= self.p.logit_scale  # not the logits, which have more elements than x
        logits = self.product(x, tf.cast(embedding, self.p.dtype))
        logits, cap = tf.cast(logits, tf.float32), self.p.logit_cap
        if cap is not None:
            logits = cap * tf.tanh(logits / cap)
        return annotate(logits, "batch", "length", "vocab")

    def product(self, x: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
        """Returns the logits before the cap, [B, T, V], for x [B, T, D] and embedding [V, D]."""
        raise NotImplementedError(f"{type(self).__name__} has no product")

    def flops(self, shape: Sequence[int]) -> int:
        batch, length, dim = shape
        return 2 * batch * length * dim * self.p.vocab_size

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []  # plans of memory add the logits of a vocabulary themselves


class TiedHead(Head):
    """Computes logits with the table of the input embedding (Press and Wolf 2017)."""

    products = (Product("logits", ("input", "embedding"), has_weight=False, exact=True),)

    def product(self, x: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
        return tf.einsum("btd,vd->btv", *self.operands("logits", input=x, embedding=embedding))


class SoftmaxHead(Head):
    """Computes logits with its own matrix.

    Weights:
        w: [D, V].
        b: [V], with `use_bias`.
    """

    use_bias: bool = False  # whether b is added
    init: Initializer = FanIn  # of w; b starts at zero

    products = (Product("w", exact=True),)

    def setup(self) -> None:
        p = self.p
        shape, axes = [p.dim, p.vocab_size], ("embed", "vocab")
        self.w = self.weight("w", shape, axes=axes, init=p.init.build())
        if p.use_bias:
            self.b = self.weight("b", [p.vocab_size], axes=("vocab",), init=ZEROS)

    def product(self, x: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
        logits = tf.einsum("btd,dv->btv", *self.operands("w", input=x))
        return logits + self.b if self.p.use_bias else logits
