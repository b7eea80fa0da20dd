"""Between tokens and activations: what every model of tokens does at its two ends.

Axes: B batch, T positions, C positions of a chunk, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from lingo.config.lazy import tf
from lingo.layers.chunks import in_chunks
from lingo.layers.context import annotate
from lingo.layers.embedding import Embedding
from lingo.layers.layer import Layer
from lingo.layers.sequence.positions import LearnedPositions
from lingo.layers.sequence.softmax import Head
from lingo.ops.shape import size_of


class TokenModel(Protocol):
    """What scores tokens: a model whose activations become logits."""

    embedding: Embedding
    head: Head

    def logits(self, activations: tf.Tensor) -> tf.Tensor:
        """Returns float32 logits [B, T, V] of activations [B, T, D]."""
        ...


def position_ids(tokens: tf.Tensor) -> tf.Tensor:
    """Returns int32 [B, T]: 0, 1, 2, ... in each row."""
    return tf.zeros_like(tokens) + tf.range(size_of(tokens, 1))


def embed_tokens(
    tokens: tf.Tensor,
    numbers: tf.Tensor,
    *,
    embedding: Embedding,
    positions: LearnedPositions | None,
    scaled: bool,
) -> tf.Tensor:
    """Returns what a stack reads, [B, T, D].

    Args:
        tokens: int32 [B, T].
        numbers: int32 [B, T], each position's number in its document.
        embedding: a vector for each token.
        positions: a vector for each number, added; None: nothing.
        scaled: whether the sum is times sqrt(D); Vaswani et al. 2017, sec. 3.4, scale the token's
            vector alone.
    """
    x = embedding(tokens)
    if positions is not None:
        x += positions(numbers)
    if scaled:
        width: Any = x.shape[-1]
        x *= math.sqrt(width)
    return annotate(x, "batch", "length", "embed")


def stack_inputs(
    stack: Layer, *, tokens: tf.Tensor, **others: tf.Tensor | None
) -> dict[str, tf.Tensor]:
    """Returns the inputs that not every stack knows: those that are there, and those it asks for.

    Args:
        stack: what they are for.
        tokens: int32 [B, T]; it asks for them if one of its layers has `reads_tokens`.
        **others: None if they are not there.
    """
    inputs = {name: value for name, value in others.items() if value is not None}
    if any(layer.reads_tokens for layer in stack.tree()):
        inputs["tokens"] = tokens
    return inputs


def score_in_chunks(
    model: TokenModel,
    function: Callable[[tf.Tensor, tf.Tensor], Any],
    activations: tf.Tensor,
    targets: tf.Tensor,
    *,
    chunk_size: int | None,
) -> Any:
    """Applies a function to logits and targets; of so many positions at a time, if that is set.

    The logits of all positions are the largest tensor of a small model by far.

    Args:
        model: gives the logits.
        function: from logits, float32 [B, C, V], and targets, [B, C], to a structure of float
            tensors, [B, C].
        activations: [B, T, D].
        targets: int32 [B, T].
        chunk_size: C; None: T.

    Returns:
        Structure of [B, T] tensors.
    """

    def of_logits(x: tf.Tensor, targets: tf.Tensor) -> Any:
        return function(model.logits(x), targets)

    layers = [model.embedding, model.head]
    return in_chunks(of_logits, activations, targets, layers=layers, size=chunk_size)
