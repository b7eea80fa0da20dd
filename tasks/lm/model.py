"""A decoder-only Transformer language model: from tokens to logits of the next token.

Axes: B batch, T positions, C new positions of a decoding step, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config.lazy import tf
from lingo.layers import Embedding, Layer, Norm, RmsNorm, Stack, TransformerLayer
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.sequence.positions import LearnedPositions, shared_table
from lingo.layers.sequence.softmax import Head, TiedHead
from tasks.tokens import embed_tokens, stack_inputs, with_position_ids


class LanguageModel(Layer):
    """An embedding, a stack of causal layers, a norm and a head.

    Weights:
        position_table: float32 [num_buckets, N], N heads, if attention has
            `RelativeBias(shared=True)`.
    """

    dim: int  # width of the stack
    vocab_size: int  # number of token ids; the task offers it
    embedding: Embedding = Embedding  # a vector for each token
    scale_embedding: bool = (
        True  # whether inputs are multiplied by sqrt(dim) (Vaswani et al. 2017, sec. 3.4)
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
        self.position_table = shared_table(self, "position_table", self.stack)
        self.norm = p.norm.build(dim=p.dim)
        self.head = p.head.build(dim=p.dim, vocab_size=p.vocab_size)

    def __call__(self, tokens: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns logits of the token after each of `tokens`, int32 [B, T]: float32 [B, T, V].

        Of `inputs` it reads `segments`, `position_ids` and `prefix`.
        """
        return self.logits(self.activations(tokens, inputs=inputs))

    def activations(self, tokens: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns the input of the head, [B, T, D], any float type; arguments as in `__call__`."""
        inputs = with_position_ids(inputs, tokens)
        x = self._embed(tokens, inputs)
        return self.norm(self.stack(x, inputs=self._stack_inputs(tokens, inputs)))

    def logits(self, activations: tf.Tensor) -> tf.Tensor:
        """Returns float32 logits [B, T, V] of activations [B, T, D], any float type."""
        return self.head(activations, self.embedding.vectors())

    def step(
        self, tokens: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS
    ) -> tf.Tensor:
        """Returns logits of the token after each new token, float32 [B, C, V], by caches.

        `tokens`, int32 [B, C], are the new tokens; `index`, int32 scalar, is the number of earlier
        positions. Of `inputs` it reads `position_ids` and `prefix`.
        """
        return self.logits(self._step(tokens, index, inputs))

    def next_logits(
        self, tokens: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS
    ) -> tf.Tensor:
        """Returns the logits of `step` at the last position, float32 [B, V], for decoding."""
        return self.logits(self._step(tokens, index, inputs)[:, -1:])[:, 0]

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the FLOPs of the matrix products of `__call__` on tokens of shape [B, T]."""
        batch, length = shape
        shape = [batch, length, self.p.dim]
        return self.stack.flops(shape) + self.head.flops(shape)

    def _step(self, tokens: tf.Tensor, index: tf.Tensor, inputs: CallInputs) -> tf.Tensor:
        """Returns the input of the head for `step`, [B, C, D]."""
        inputs = with_position_ids(inputs, tokens, index)
        x = self._embed(tokens, inputs, index)
        x = self.stack.step(x, index, inputs=self._stack_inputs(tokens, inputs))
        return self.norm.step(x, index)

    def _stack_inputs(self, tokens: tf.Tensor, inputs: CallInputs) -> CallInputs:
        return stack_inputs(self.stack, tokens, inputs, table=self.position_table)

    def _embed(
        self, tokens: tf.Tensor, inputs: CallInputs, index: tf.Tensor | None = None
    ) -> tf.Tensor:
        return embed_tokens(
            tokens,
            inputs.position_ids,
            index=index,
            embedding=self.embedding,
            positions=self.positions,
            scaled=self.p.scale_embedding,
        )
