"""From tokens to activations and from activations to scores: the two ends of a model of tokens.

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
    """A model of tokens, with an embedding and a head.

    Attributes:
        embedding: a vector for each token; the head may share it.
        head: from activations to logits.
    """

    embedding: Embedding
    head: Head

    def logits(self, activations: tf.Tensor) -> tf.Tensor:
        """Returns float32 logits [B, T, V] of activations [B, T, D], any float type."""
        ...


def position_ids(tokens: tf.Tensor) -> tf.Tensor:
    """Returns 0, 1, 2, ... for each example: int32 [B, T], the shape of `tokens`."""
    return tf.zeros_like(tokens) + tf.range(size_of(tokens, 1))


def embed_tokens(
    tokens: tf.Tensor,
    numbers: tf.Tensor,
    *,
    embedding: Embedding,
    positions: LearnedPositions | None,
    scaled: bool,
) -> tf.Tensor:
    """Returns the input of a stack.

    Args:
        tokens: int32 [B, T].
        numbers: int32 [B, T], the position ids: each position's index in its document.
        embedding: a vector for each token.
        positions: a vector for each position id, which is added; None: nothing is added.
        scaled: whether to multiply the sum by sqrt(D); Vaswani et al. 2017, sec. 3.4, multiply only
            the token's vector.

    Returns:
        [B, T, D], the type of the embedding.
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
    """Returns the optional inputs of a stack: those that are not None, and tokens if it needs them.

    Args:
        stack: the stack that takes them.
        tokens: int32 [B, T], returned if a layer of the stack has `reads_tokens`.
        **others: tensors of any shape, by name; None is left out.
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
    """Applies a function to logits and targets, optionally in chunks of positions.

    In a small model the logits of all positions are by far the largest tensor.

    Args:
        model: computes the logits.
        function: from logits, float32 [B, C, V], and targets, int32 [B, C], to a structure of float
            tensors, [B, C].
        activations: [B, T, D], any float type.
        targets: int32 [B, T].
        chunk_size: C; None: T, all positions at once.

    Returns:
        The structure that `function` returns, of float [B, T] tensors.
    """

    def of_logits(x: tf.Tensor, targets: tf.Tensor) -> Any:
        return function(model.logits(x), targets)

    layers = [model.embedding, model.head]
    return in_chunks(of_logits, activations, targets, layers=layers, size=chunk_size)
