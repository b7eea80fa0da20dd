"""From tokens to activations and from activations to scores: the two ends of a model of tokens.

Axes: B batch, T positions, C positions of a chunk, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from lingo.config.lazy import tf
from lingo.layers import Embedding, Layer, LearnedPositions
from lingo.layers.context import annotate
from lingo.layers.inputs import CallInputs, needs_token_ids
from lingo.layers.sequence.softmax import Head
from lingo.layers.wrap.remat import in_chunks
from lingo.ops.shape import size_of


class TokenModel(Protocol):
    """A model of tokens: an embedding gives each token a vector, and a head gives logits.

    Embedding and head may share a table.
    """

    embedding: Embedding
    head: Head

    def logits(self, activations: tf.Tensor) -> tf.Tensor:
        """Returns float32 logits [B, T, V] of activations [B, T, D], any float type."""
        ...


def with_position_ids(
    inputs: CallInputs, tokens: tf.Tensor, index: tf.Tensor | None = None
) -> CallInputs:
    """Returns inputs with position ids; missing ids are `index` (None: 0) + 0, 1, 2, ..."""
    if inputs.position_ids is not None:
        return inputs
    ids = tf.zeros_like(tokens) + tf.range(size_of(tokens, 1))
    return inputs._replace(position_ids=ids if index is None else index + ids)


def stack_inputs(
    stack: Layer, tokens: tf.Tensor, inputs: CallInputs, *, table: tf.Tensor | None
) -> CallInputs:
    """Returns inputs with the model's position table, and with tokens if a layer needs them.

    `tokens` are int32 [B, T]; `table` is the model's `shared_table`, float32 [num_buckets, N], if
    any.
    """
    token_ids = tokens if needs_token_ids(stack) else None
    return inputs._replace(position_table=table, token_ids=token_ids)


def embed_tokens(
    tokens: tf.Tensor,
    position_ids: tf.Tensor,
    *,
    index: tf.Tensor | None = None,
    embedding: Embedding,
    positions: LearnedPositions | None,
    scaled: bool,
) -> tf.Tensor:
    """Returns the input of a stack, [B, T, D], for tokens and position ids, int32 [B, T].

    With `index`, int32 scalar, the tokens are new in decoding, after `index` earlier tokens.
    `scaled` multiplies the sum by sqrt(D); Vaswani et al. 2017, sec. 3.4, multiply only the token's
    vector.
    """

    def compute(layer: Layer, ids: tf.Tensor) -> tf.Tensor:
        return layer(ids) if index is None else layer.step(ids, index)

    x = compute(embedding, tokens)
    if positions is not None:
        x += compute(positions, position_ids)
    if scaled:
        width: Any = x.shape[-1]
        x *= math.sqrt(width)
    return annotate(x, "batch", "length", "embed")


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
            tensors, [B, C]; the tensors of the result are [B, T].
        activations: [B, T, D], any float type.
        targets: int32 [B, T].
        chunk_size: C; None: T, all positions at once.
    """

    def of_logits(x: tf.Tensor, targets: tf.Tensor) -> Any:
        return function(model.logits(x), targets)

    layers = [model.embedding, model.head]
    return in_chunks(of_logits, activations, targets, layers=layers, size=chunk_size)
