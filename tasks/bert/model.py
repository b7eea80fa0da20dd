"""BERT: an encoder of tokens, and the head that predicts masked tokens.

    logits of chosen tokens [B, K, V]                         logits of pairs, classes, spans
                MaskedHead                                           heads of tasks
        K chosen positions [B, K, D]        all [B, T, D]        pooled [B, D]
                     |                            |                    |
                     +-------------- Bert, [B, T, D] ---------- position 0
                       tokens + positions + types, [B, T]

Axes: B batch, T positions, K chosen positions, D model width, V vocabulary, S types of text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import (
    Attention,
    Bidirectional,
    Embedding,
    FeedForward,
    Initializer,
    Layer,
    LayerNorm,
    LearnedPositions,
    Linear,
    Norm,
    Product,
    Stack,
    TransformerLayer,
    TruncatedNormal,
)
from lingo.layers.context import annotate
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.initial import ZEROS
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.residual import ACTIVATION_COPIES, Residual, ResidualCall
from lingo.ops.activations import Activation, activate
from tasks.tokens import embed_tokens, stack_inputs, with_position_ids

INIT = TruncatedNormal.params(stddev=0.02)
"""Initializer of all matrices and tables, as in the authors' program."""

NORM = LayerNorm.params(epsilon=1e-12)

LAYER = TransformerLayer.params(
    attention=Attention.params(mask=Bidirectional, use_bias=True, dropout_rate=0.1, init=INIT),
    ffn=FeedForward.params(activation="gelu", use_bias=True, init=INIT),
    norm=NORM,
    norm_placement="post",
    dropout_rate=0.1,
)
"""The layer of BERT (Devlin et al. 2019, sec. 3); experiments set the number of its heads."""

DENSE = Linear.params(use_bias=True, init=INIT, axes=("embed", None))
"""A linear layer with bias. A mesh splits its matrix along "embed" only."""


class TypeEmbedding(Layer):
    """A trained vector for each type of text, such as the first or second text of a pair.

    Weights:
        table: [S, D].
    """

    dim: int  # D, width of the vectors
    num_types: int = 2  # S
    init: Initializer = INIT  # of the table

    positionwise = True

    def check(self) -> None:
        ranges.check_positive(self.p, "num_types")

    def setup(self) -> None:
        p = self.p
        shape, axes = [p.num_types, p.dim], (None, "embed")
        self.table = self.weight("table", shape, axes=axes, init=p.init.build(), fan_in=p.dim)

    def __call__(self, types: tf.Tensor) -> tf.Tensor:
        """Returns the vectors, [B, T, D], in the layer's dtype, of types, int32 [B, T], below S."""
        # a product, as the gradient of a lookup would sum all positions in a few rows
        one_hot = tf.one_hot(types, self.p.num_types, dtype=self.p.dtype)
        return tf.einsum("bts,sd->btd", one_hot, self.table)

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the FLOPs of a call on types [B, T]."""
        return 2 * math.prod(shape) * self.p.num_types * self.p.dim

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []


class Bert(Layer):
    """An encoder that sees both sides of each token (Devlin et al. 2019, sec. 3).

    Each position has the normalized sum of three vectors: of the token, its position and its type.
    Then come layers that normalize after each residual sum. `pool` maps the first position, [CLS],
    to one vector of the whole text.
    """

    dim: int  # width of the stack
    vocab_size: int  # number of token ids; the task offers it
    embedding: Embedding = Embedding.params(init=INIT)  # a vector for each token id
    positions: LearnedPositions = LearnedPositions.params(max_length=512, init=INIT)
    types: TypeEmbedding | None = TypeEmbedding  # None: `types` are ignored
    norm: Norm = NORM  # of the sum of the vectors
    dropout_rate: float = 0.1  # of the normalized sum
    stack: Stack = Stack.params(layer=LAYER)  # the layers
    pooler: Linear | None = DENSE  # of position 0, before a tanh; None: no `pool`

    def check(self) -> None:
        check_rate("dropout_rate", self.p.dropout_rate)

    def setup(self) -> None:
        p = self.p
        self.embedding = p.embedding.build(dim=p.dim, vocab_size=p.vocab_size)
        self.positions = p.positions.build(dim=p.dim)
        self.types = p.types and p.types.build(dim=p.dim)
        self.norm = p.norm.build(dim=p.dim)
        self.stack = p.stack.build(dim=p.dim)
        self.pooler = p.pooler and p.pooler.build(dim=p.dim, output_dim=p.dim)

    def __call__(
        self, tokens: tf.Tensor, *, types: Any = None, inputs: CallInputs = NO_INPUTS
    ) -> tf.Tensor:
        """Returns a vector for each token, [B, T, D], in the layer's dtype.

        Args:
            tokens: int32 [B, T], below V.
            types: int32 [B, T], below S; None: zeros. Ignored if the model has no types.
            inputs: `position_ids`, and `segments`; a token sees only its own segment.
        """
        inputs = with_position_ids(inputs, tokens)
        x = embed_tokens(
            tokens,
            inputs.position_ids,
            embedding=self.embedding,
            positions=self.positions,
            scaled=False,
        )
        if self.types is not None:
            x += self.types(tf.zeros_like(tokens) if types is None else types)
        x = dropout(self, self.norm(x), rate=self.p.dropout_rate)
        x = annotate(x, "batch", "length", "embed")
        return self.stack(x, inputs=stack_inputs(self.stack, tokens, inputs, table=None))

    def pool(self, x: tf.Tensor) -> tf.Tensor:
        """Returns a vector for each text, [B, D], in the layer's dtype.

        `x` is the result of a call, [B, T, D], any float type. Raises ParamError without a pooler.
        """
        if self.pooler is None:
            raise ParamError(
                f"{self.path or 'model'} has pooler=None, so it has no vector of a whole text:"
                " leave pooler out, or give it a Linear"
            )
        return annotate(tf.tanh(self.pooler(x[:, 0])), "batch", "embed")

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the FLOPs of a call on tokens [B, T] and, with a pooler, of `pool`."""
        batch, length = shape
        pooled = 0 if self.pooler is None else self.pooler.flops([batch, self.p.dim])
        typed = 0 if self.types is None else self.types.flops(shape)
        return typed + self.stack.flops([batch, length, self.p.dim]) + pooled


class MaskedHead(Layer):
    """Computes logits of masked tokens with the table of the input (Devlin et al. 2019, sec. 3.1).

    A linear layer, an activation and a norm come before the product with the table, as in the
    authors' program. The input has only the chosen positions (see `select_positions`), because
    logits of all positions would be the largest tensor.

    Weights:
        bias: [V], added to the logits, initially zeros.
    """

    dim: int  # D, width of the input
    vocab_size: int  # V; the task offers it
    dense: Linear = DENSE  # before the activation
    activation: Activation = "gelu"  # after `dense`
    norm: Norm = NORM  # before the product with the table

    positionwise = True
    products = (Product("logits", ("input", "embedding"), has_weight=False, exact=True),)

    def setup(self) -> None:
        p = self.p
        self.dense = p.dense.build(dim=p.dim, output_dim=p.dim)
        self.norm = p.norm.build(dim=p.dim)
        self.bias = self.weight("bias", [p.vocab_size], axes=("vocab",), init=ZEROS)

    def __call__(self, x: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
        """Returns float32 logits [B, K, V] of chosen positions.

        `x`, [B, K, D], has vectors of `Bert`, and `embedding`, [V, D], is its table of tokens. Both
        have any float type.
        """
        x = self.norm(activate(self.dense(x), self.p.activation))
        x = annotate(x, "batch", None, "embed")
        table = tf.cast(embedding, self.p.dtype)
        x, table = self.operands("logits", input=x, embedding=table)
        logits = tf.einsum("bkd,vd->bkv", x, table) + self.bias
        return annotate(tf.cast(logits, tf.float32), "batch", None, "vocab")

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the FLOPs of a call on chosen positions [B, K, D]."""
        batch, num_chosen, dim = shape
        logits = 2 * batch * num_chosen * dim * self.p.vocab_size
        return self.dense.flops(shape) + logits

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        hidden = Residual(1, tuple(call.shape), ("batch", None, "embed"))
        others = ACTIVATION_COPIES[self.p.activation] + 1  # and the norm's two, without `hidden`
        return [hidden, hidden._replace(copies=others, is_elementwise=True)]


def check_vocab_size(vocab_size: int, offers: Mapping[str, Any]) -> None:
    """Raises ParamError if an input offers more token ids than a task has."""
    if (size := offers.get("vocab_size", 0)) > vocab_size:
        raise ParamError(f"task.vocab_size={vocab_size}, but the input has {size} token ids")


def select_positions(x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Returns the vectors at some positions of each example.

    A product with one-hot rows selects exactly. A mesh splits it and its gradient like any product,
    and no gradient is summed in an order that may change. It costs 2 B K T D FLOPs, less than a
    thousandth of the FLOPs of BERT-Base or BERT-Large.

    Args:
        x: [B, T, D], any float type.
        positions: int32 [B, K], each in 0..T-1.

    Returns:
        [B, K, D], the type of `x`.

    >>> select_positions(tf.constant([[[1.0], [2.0], [3.0]]]), tf.constant([[2, 0]]))[0].numpy()
    array([[3.],
           [1.]], dtype=float32)
    """
    one_hot = tf.one_hot(positions, x.shape[1] or tf.shape(x)[1], dtype=x.dtype)
    return tf.einsum("bkt,btd->bkd", one_hot, x)
