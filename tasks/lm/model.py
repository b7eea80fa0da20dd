"""A decoder-only Transformer language model: from tokens to logits of the next token.

Axes: B batch, T positions, C new positions of a decoding step, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config.lazy import tf
from lingo.layers.embedding import Embedding
from lingo.layers.layer import Layer
from lingo.layers.norm import Norm, RmsNorm
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.positions import LearnedPositions, shared_table
from lingo.layers.sequence.softmax import Head, TiedHead
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.stack import Stack
from tasks.tokens import embed_tokens, position_ids, stack_inputs


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
        self.position_table = shared_table(self, "position_table", self.stack)
        self.norm = p.norm.build(dim=p.dim)
        self.head = p.head.build(dim=p.dim, vocab_size=p.vocab_size)

    def __call__(
        self,
        tokens: tf.Tensor,
        *,
        segments: tf.Tensor | None = None,
        positions: tf.Tensor | None = None,
        prefix: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Scores the token that follows each position.

        Args:
            tokens: int32 [B, T].
            segments: int32 [B, T], the document of each position (0: padding); None: one.
            positions: int32 [B, T], each position's index in its document; None: 0, 1, 2, ...
            prefix: bool [B, T], positions that the mask `Prefix` shows to their whole document;
                None: no position.

        Returns:
            float32 logits [B, T, V].
        """
        inputs = {"segments": segments, "positions": positions, "prefix": prefix}
        return self.logits(self.activations(tokens, **inputs))

    def activations(
        self,
        tokens: tf.Tensor,
        *,
        segments: tf.Tensor | None = None,
        positions: tf.Tensor | None = None,
        prefix: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns the input of the head, [B, T, D], any float type; arguments as in `__call__`."""
        numbers = position_ids(tokens) if positions is None else positions
        x = self._embed(tokens, numbers)
        inputs = self._stack_inputs(tokens, prefix)
        return self.norm(self.stack(x, segments=segments, positions=numbers, **inputs))

    def logits(self, activations: tf.Tensor) -> tf.Tensor:
        """Returns float32 logits [B, T, V] of activations [B, T, D], any float type."""
        return self.head(activations, self.embedding.vectors())

    def step(
        self,
        tokens: tf.Tensor,
        index: tf.Tensor,
        *,
        positions: tf.Tensor | None = None,
        prefix: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Scores the tokens that follow new positions, using the caches of earlier ones.

        Args:
            tokens: int32 [B, C], positions index, ..., index + C - 1 of each row.
            index: int32 scalar, number of positions computed before.
            positions: int32 [B, C], position ids; None: index, index + 1, ...
            prefix: bool [B, C], positions that the mask `Prefix` shows to the whole chunk; None: no
                position.

        Returns:
            float32 logits [B, C, V].
        """
        numbers = index + position_ids(tokens) if positions is None else positions
        return self.logits(self._step(tokens, index, numbers, prefix))

    def next_logits(
        self, tokens: tf.Tensor, index: tf.Tensor, *, prefix: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Scores the token that follows the last of the new positions, as decoding needs it.

        Args:
            tokens: int32 [B, C], positions index, ..., index + C - 1 of each row.
            index: int32 scalar, number of positions computed before.
            prefix: bool [B, C], as in `step`.

        Returns:
            float32 logits [B, V].
        """
        x = self._step(tokens, index, index + position_ids(tokens), prefix)
        return self.logits(x[:, -1:])[:, 0]

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the FLOPs of the matrix products of `__call__` on tokens of shape [B, T]."""
        batch, length = shape
        shape = [batch, length, self.p.dim]
        return self.stack.flops(shape) + self.head.flops(shape)

    def _step(
        self, tokens: tf.Tensor, index: tf.Tensor, numbers: tf.Tensor, prefix: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns the input of the head for `step`, [B, C, D]."""
        x = self._embed(tokens, numbers)
        inputs = self._stack_inputs(tokens, prefix)
        return self.norm(self.stack.step(x, index, positions=numbers, **inputs))

    def _stack_inputs(self, tokens: tf.Tensor, prefix: tf.Tensor | None) -> dict[str, tf.Tensor]:
        """Returns the optional inputs of the stack."""
        if not any(isinstance(layer, Attention) for layer in self.stack.tree()):
            prefix = None
        inputs = {"position_table": self.position_table, "prefix": prefix}
        return stack_inputs(self.stack, tokens=tokens, **inputs)

    def _embed(self, tokens: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        return embed_tokens(
            tokens,
            numbers,
            embedding=self.embedding,
            positions=self.positions,
            scaled=self.p.scale_embedding,
        )
