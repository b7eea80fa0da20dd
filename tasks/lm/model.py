"""A decoder-only Transformer language model: tokens to the logits of the next token.

Axes: B batch, T positions, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from lingo.layers.chunks import in_chunks
from lingo.layers.context import annotate
from lingo.layers.embedding import Embedding
from lingo.layers.layer import Layer
from lingo.layers.norm import Norm, RmsNorm
from lingo.layers.sequence.positions import LearnedPositions
from lingo.layers.sequence.softmax import Head, TiedHead
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stack import Stack
from lingo.lazy import tf


class LanguageModel(Layer):
    """Embedding, a stack of causal layers, a norm, logits."""

    dim: int  # width of the stack
    vocab_size: int  # number of token ids; the task offers it
    embedding: Embedding = Embedding  # a vector for each token
    scale_embedding: bool = (
        True  # whether inputs are times sqrt(dim) (Vaswani et al. 2017, sec. 3.4)
    )
    positions: LearnedPositions | None = None  # added to the embeddings
    stack: Stack = Stack.params(layer=TransformerLayer)  # the layers
    norm: Norm = RmsNorm  # after the last layer
    head: Head = TiedHead  # from activations to logits

    def setup(self) -> None:
        p = self.p
        self.embedding = p.embedding.build(dim=p.dim, vocab_size=p.vocab_size)
        self.positions = p.positions and p.positions.build(dim=p.dim)
        self.stack = p.stack.build(dim=p.dim)
        self.norm = p.norm.build(dim=p.dim)
        self.head = p.head.build(dim=p.dim, vocab_size=p.vocab_size)

    def __call__(
        self,
        tokens: tf.Tensor,
        *,
        segments: tf.Tensor | None = None,
        positions: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Scores the token that follows each position.

        Args:
            tokens: int32 [B, T].
            segments: int32 [B, T], the document of each position (0: padding); None: one.
            positions: int32 [B, T], each position's number in its document; None: 0, 1, 2, ...

        Returns:
            float32 logits [B, T, V].
        """
        return self.logits(self.activations(tokens, segments=segments, positions=positions))

    def activations(
        self,
        tokens: tf.Tensor,
        *,
        segments: tf.Tensor | None = None,
        positions: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns what the logits are made of, [B, T, D]; arguments as in `__call__`."""
        numbers = _count(tokens) if positions is None else positions
        x = self._embed(tokens, numbers)
        return self.norm(self.stack(x, segments=segments, positions=numbers))

    def logits(self, activations: tf.Tensor) -> tf.Tensor:
        """Returns float32 logits [B, T, V] of activations [B, T, D]."""
        return self.head(activations, self.embedding.vectors())

    def score(
        self,
        function: Callable[[tf.Tensor, tf.Tensor], Any],
        activations: tf.Tensor,
        targets: tf.Tensor,
        *,
        chunk_size: int | None,
    ) -> Any:
        """Applies a function to logits and targets; of so many positions at a time, if that is set.

        The logits of all positions are the largest tensor of a small model by far.

        Args:
            function: from logits, float32 [B, C, V], and targets, [B, C], to a structure of
                float tensors, [B, C].
            activations: [B, T, D].
            targets: int32 [B, T].
            chunk_size: C; None: T.

        Returns:
            Structure of [B, T] tensors.
        """

        def scored(x: tf.Tensor, targets: tf.Tensor) -> Any:
            return function(self.logits(x), targets)

        layers = [self.embedding, self.head]
        return in_chunks(scored, activations, targets, layers=layers, size=chunk_size)

    def step(
        self, tokens: tf.Tensor, index: tf.Tensor, *, positions: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Scores the tokens that follow the next positions, from the caches of those before.

        Args:
            tokens: int32 [B, C], positions index, ..., index + C - 1 of each row.
            index: int32 scalar, how many positions were computed before.
            positions: int32 [B, C]; None: index, index + 1, ...

        Returns:
            float32 logits [B, C, V].
        """
        numbers = index + _count(tokens) if positions is None else positions
        x = self._embed(tokens, numbers)
        return self.logits(self.norm(self.stack.step(x, index, positions=numbers)))

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the operations of the matrix products of `__call__` on tokens of shape [B, T]."""
        batch, length = shape
        shape = [batch, length, self.p.dim]
        return self.stack.flops(shape) + self.head.flops(shape)

    def _embed(self, tokens: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        x = self.embedding(tokens)
        if self.positions is not None:
            x += self.positions(positions)
        if self.p.scale_embedding:
            x *= math.sqrt(self.p.dim)
        return annotate(x, "batch", "length", "embed")


def _count(tokens: tf.Tensor) -> tf.Tensor:
    """Returns int32 [B, T]: 0, 1, 2, ... in each row."""
    return tf.zeros_like(tokens) + tf.range(tokens.shape[1] or tf.shape(tokens)[1])
