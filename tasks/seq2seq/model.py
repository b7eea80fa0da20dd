"""An encoder-decoder Transformer: from source and target tokens to logits of the next target token.

Axes: B batch, S source positions, T target positions, C new positions of a decoding step, D model
width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lingo.config.lazy import tf
from lingo.layers import path
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.embedding import Embedding
from lingo.layers.layer import Layer
from lingo.layers.norm import Norm, RmsNorm
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.cross_attention import CrossAttention
from lingo.layers.sequence.mask import Bidirectional
from lingo.layers.sequence.positions import LearnedPositions, shared_table
from lingo.layers.sequence.softmax import Head, TiedHead
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.stack import Stack
from lingo.ops.dropout import DropoutForm
from tasks.tokens import embed_tokens, position_ids, stack_inputs

ENCODER_LAYER = TransformerLayer.params(attention=Attention.params(mask=Bidirectional))
DECODER_LAYER = TransformerLayer.params(cross_attention=CrossAttention)


class EncoderDecoder(Layer):
    """An encoder of the source, and a decoder of the target that sees both (Raffel et al. 2020).

    The logits of a tied head equal T5's. In T5 embeddings have variance 1 and logits are divided by
    sqrt(D); here embeddings have variance 1/D and the input is multiplied by sqrt(D). If attention
    has `positions=RelativeBias(shared=True)`, encoder and decoder each own the table of their
    layers, as in T5. In packed examples document i of the target sees document i of the source.
    """

    dim: int  # width of both stacks
    vocab_size: int  # number of target token ids; the task offers it
    embedding: Embedding = Embedding  # a vector for each token, of source and target
    source_embedding: Embedding | None = None  # one for the source alone; it may set vocab_size
    scale_embedding: bool = True  # whether inputs are times sqrt(dim), positions included
    positions: LearnedPositions | None = None  # added to the embeddings; two are built
    encoder: Stack = Stack.params(layer=ENCODER_LAYER)  # the layers that read the source
    decoder: Stack = Stack.params(layer=DECODER_LAYER)  # the layers that write the target
    norm: Norm = RmsNorm  # after the last layer; two are built
    head: Head = TiedHead  # from activations to logits
    dropout_rate: float = 0.0  # of the embeddings, and of both stacks' output, as in T5
    dropout_form: DropoutForm = "element"  # what is dropped together

    def check(self) -> None:
        check_rate("dropout_rate", self.p.dropout_rate)

    def setup(self) -> None:
        p = self.p
        sizes = {"dim": p.dim, "vocab_size": p.vocab_size}
        self.embedding = p.embedding.build(**sizes)
        self.source_embedding = None
        if p.source_embedding is not None:  # it does not inherit vocab_size if it sets its own
            offers = {"dim": p.dim} if p.source_embedding.is_given("vocab_size") else sizes
            self.source_embedding = p.source_embedding.build(**offers)
        self.source_positions = p.positions and p.positions.build(dim=p.dim)
        self.positions = p.positions and p.positions.build(dim=p.dim)
        self.encoder = p.encoder.build(dim=p.dim)
        self.decoder = p.decoder.build(dim=p.dim)
        self.encoder_table = shared_table(self, "encoder_table", self.encoder)
        self.decoder_table = shared_table(self, "decoder_table", self.decoder)
        self.encoder_norm = p.norm.build(dim=p.dim)
        self.decoder_norm = p.norm.build(dim=p.dim)
        self.head = p.head.build(**sizes)
        self.memory_seen = self.cache("memory_seen", [0], axes=(None,), dtype="float32")

    def __call__(
        self,
        tokens: tf.Tensor,
        *,
        source_tokens: tf.Tensor,
        source_segments: tf.Tensor | None = None,
        source_positions: tf.Tensor | None = None,
        segments: tf.Tensor | None = None,
        positions: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Scores the target token that follows each position.

        Args:
            tokens: int32 [B, T], the target shifted right by one: inputs of the decoder.
            source_tokens: int32 [B, S].
            source_segments: int32 [B, S], the document of each position (0: padding); None: one.
            source_positions: int32 [B, S], each position's index in its document; None: 0, 1, ...
            segments: int32 [B, T], the document of each position (0: padding); document i sees
                document i of the source. None: one.
            positions: int32 [B, T], each position's index in its document; None: 0, 1, ...

        Returns:
            float32 logits [B, T, V].
        """
        memory = self.encode(source_tokens, segments=source_segments, positions=source_positions)
        inputs = {"segments": segments, "positions": positions}
        return self.logits(
            self.activations(tokens, memory=memory, memory_segments=source_segments, **inputs)
        )

    def encode(
        self,
        tokens: tf.Tensor,
        *,
        segments: tf.Tensor | None = None,
        positions: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Encodes the source.

        Args:
            tokens: int32 [B, S].
            segments: int32 [B, S], the document of each position (0: padding); None: one.
            positions: int32 [B, S], each position's index in its document; None: 0, 1, 2, ...

        Returns:
            The memory that the decoder attends to, [B, S, D], any float type.
        """
        numbers = position_ids(tokens) if positions is None else positions
        x = embed_tokens(
            tokens,
            numbers,
            embedding=self.source_embedding or self.embedding,
            positions=self.source_positions,
            scaled=self.p.scale_embedding,
        )
        x = self._dropout(x, "source")
        inputs = stack_inputs(self.encoder, tokens=tokens, position_table=self.encoder_table)
        x = self.encoder(x, segments=segments, positions=numbers, **inputs)
        return self._dropout(self.encoder_norm(x), "memory")

    def activations(
        self,
        tokens: tf.Tensor,
        *,
        memory: tf.Tensor,
        memory_segments: tf.Tensor | None = None,
        segments: tf.Tensor | None = None,
        positions: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns the input of the head, [B, T, D], any float type.

        Args:
            tokens: int32 [B, T], inputs of the decoder.
            memory: [B, S, D], the result of `encode`.
            memory_segments: int32 [B, S], the document of each of its positions; None: one.
            segments: int32 [B, T], the document of each position; None: one.
            positions: int32 [B, T], each position's index in its document; None: 0, 1, 2, ...
        """
        numbers = position_ids(tokens) if positions is None else positions
        x = self._embed(tokens, numbers)
        inputs = self._stack_inputs(tokens, memory=memory, memory_segments=memory_segments)
        x = self.decoder(x, segments=segments, positions=numbers, **inputs)
        return self._dropout(self.decoder_norm(x), "output")

    def logits(self, activations: tf.Tensor) -> tf.Tensor:
        """Returns float32 logits [B, T, V] of activations [B, T, D], any float type."""
        return self.head(activations, self.embedding.vectors())

    def step(
        self,
        tokens: tf.Tensor,
        index: tf.Tensor,
        *,
        positions: tf.Tensor | None = None,
        memory: tf.Tensor | None = None,
        memory_segments: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Scores the tokens that follow new positions, using the caches of earlier ones.

        Args:
            tokens: int32 [B, C], positions index, ..., index + C - 1 of each target.
            index: int32 scalar, number of positions computed before.
            positions: int32 [B, C], position ids; None: index, index + 1, ...
            memory: [B, S, D], the result of `encode`, in the first step; None in later steps.
            memory_segments: int32 [B, S], 0 where the memory is padding; None: nowhere. It is given
                in the first step only, and cached.

        Returns:
            float32 logits [B, C, V].
        """
        numbers = index + position_ids(tokens) if positions is None else positions
        return self.logits(self._step(tokens, index, numbers, memory, memory_segments))

    def next_logits(
        self,
        tokens: tf.Tensor,
        index: tf.Tensor,
        *,
        memory: tf.Tensor | None = None,
        memory_segments: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Scores the token that follows the last of the new positions, as decoding needs it.

        Args:
            tokens: int32 [B, C], positions index, ..., index + C - 1 of each target.
            index: int32 scalar, number of positions computed before.
            memory: as in `step`.
            memory_segments: as in `step`.

        Returns:
            float32 logits [B, V].
        """
        numbers = index + position_ids(tokens)
        x = self._step(tokens, index, numbers, memory, memory_segments)
        return self.logits(x[:, -1:])[:, 0]

    def flops(self, shape: Sequence[int], *, source_length: int | None = None) -> int:
        """Returns the FLOPs of the matrix products of `__call__`.

        Args:
            shape: shape of the target tokens, [B, T].
            source_length: S; None: T.
        """
        batch, length = shape
        target = [batch, length, self.p.dim]
        source = [batch, length if source_length is None else source_length, self.p.dim]
        total = self.encoder.flops(source) + self.decoder.flops(target) + self.head.flops(target)
        for layer in self.decoder.tree():  # the decoder assumes S = T
            if isinstance(layer, CrossAttention):
                more = layer.flops(target, memory_length=source[1]) - layer.flops(target)
                total += more * math.prod(path.stack_shape(layer.path))
        return total

    def _step(
        self,
        tokens: tf.Tensor,
        index: tf.Tensor,
        numbers: tf.Tensor,
        memory: tf.Tensor | None,
        segments: tf.Tensor | None,
    ) -> tf.Tensor:
        """Returns the input of the head for `step`, [B, C, D]."""
        if memory is None:
            seen = self.memory_seen
        else:
            everywhere = tf.ones_like(memory[:, :, 0], tf.float32)
            seen = everywhere if segments is None else tf.cast(segments > 0, tf.float32)
            self.new_cache("memory_seen", seen)
        x = self._embed(tokens, numbers)
        segments = tf.cast(seen, tf.int32)
        inputs = self._stack_inputs(tokens, memory=memory, memory_segments=segments)
        return self.decoder_norm(self.decoder.step(x, index, positions=numbers, **inputs))

    def _stack_inputs(self, tokens: tf.Tensor, **memory: tf.Tensor | None) -> dict[str, tf.Tensor]:
        """Returns the optional inputs of the decoder."""
        return stack_inputs(
            self.decoder, tokens=tokens, position_table=self.decoder_table, **memory
        )

    def _embed(self, tokens: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        """Returns the input of the decoder, [B, T, D]."""
        x = embed_tokens(
            tokens,
            numbers,
            embedding=self.embedding,
            positions=self.positions,
            scaled=self.p.scale_embedding,
        )
        return self._dropout(x, "target")

    def _dropout(self, x: tf.Tensor, name: str) -> tf.Tensor:
        p = self.p
        return dropout(self, x, rate=p.dropout_rate, form=p.dropout_form, name=f"{name}_dropout")
