"""An encoder-decoder Transformer: from source and target tokens to logits of the next target token.

Axes: B batch, S source positions, T target positions, C new positions of a decoding step, D model
width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config.lazy import tf
from lingo.layers import Attention, Bidirectional, Embedding, Layer, Norm, RmsNorm, Stack
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.sequence.cross_attention import CrossAttention
from lingo.layers.sequence.positions import LearnedPositions, shared_table
from lingo.layers.sequence.softmax import Head, TiedHead
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.ops.dropout import DropoutForm
from tasks.tokens import embed_tokens, stack_inputs, with_position_ids

ENCODER_LAYER = TransformerLayer.params(attention=Attention.params(mask=Bidirectional))
DECODER_LAYER = TransformerLayer.params(cross_attention=CrossAttention)


class EncoderDecoder(Layer):
    """An encoder of the source, and a decoder that sees target and source (Raffel et al. 2020).

    The logits of a tied head equal T5's. In T5 embeddings have variance 1 and logits are divided by
    sqrt(D); here embeddings have variance 1/D and the input is multiplied by sqrt(D). If attention
    has `positions=RelativeBias(shared=True)`, encoder and decoder each own the table of their
    layers, as in T5. In packed examples document i of the target sees document i of the source.
    """

    dim: int  # width of both stacks
    vocab_size: int  # number of target token ids; the task offers it
    embedding: Embedding = Embedding  # a vector for each token, of source and target
    source_embedding: Embedding | None = (
        None  # a separate embedding of source tokens; it may set vocab_size
    )
    scale_embedding: bool = True  # multiply inputs, positions included, by sqrt(dim)
    positions: LearnedPositions | None = None  # added to the embeddings; two are built
    encoder: Layer = Stack.params(layer=ENCODER_LAYER)  # reads the source
    decoder: Layer = Stack.params(layer=DECODER_LAYER)  # writes the target, with a memory
    norm: Norm | None = RmsNorm  # after the last layer; two are built; None: neither side has one
    head: Head = TiedHead  # from activations to logits
    dropout_rate: float = 0.0  # of the embeddings
    output_dropout_rate: float | None = None  # of both stacks' output; None: dropout_rate, like T5
    dropout_form: DropoutForm = "element"  # what is dropped together

    def check(self) -> None:
        check_rate("dropout_rate", self.p.dropout_rate)
        check_rate("output_dropout_rate", self._output_dropout_rate)

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
        self.encoder_norm = p.norm and p.norm.build(dim=p.dim)
        self.decoder_norm = p.norm and p.norm.build(dim=p.dim)
        self.head = p.head.build(**sizes)
        self.memory_seen = self.cache("memory_seen", [0], axes=(None,), dtype="float32")

    def __call__(
        self,
        tokens: tf.Tensor,
        *,
        source_tokens: tf.Tensor,
        source_inputs: CallInputs = NO_INPUTS,
        inputs: CallInputs = NO_INPUTS,
    ) -> tf.Tensor:
        """Returns float32 logits [B, T, V] of the target token that follows each position.

        `tokens`, int32 [B, T], are the target shifted right by one; `source_tokens` are int32
        [B, S]. `inputs` and `source_inputs` have `segments` and `position_ids`.
        """
        inputs = inputs._replace(
            memory=self.encode(source_tokens, inputs=source_inputs),
            memory_segments=source_inputs.segments,
        )
        return self.logits(self.activations(tokens, inputs=inputs))

    def encode(self, tokens: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns the memory [B, S, D] that the decoder sees, for source `tokens`, int32 [B, S]."""
        inputs = with_position_ids(inputs, tokens)
        x = embed_tokens(
            tokens,
            inputs.position_ids,
            embedding=self.source_embedding or self.embedding,
            positions=self.source_positions,
            scaled=self.p.scale_embedding,
        )
        x = self._dropout(x, "source")
        inputs = stack_inputs(self.encoder, tokens, inputs, table=self.encoder_table)
        x = self.encoder(x, inputs=inputs)
        return self._dropout(x if self.encoder_norm is None else self.encoder_norm(x), "memory")

    def activations(self, tokens: tf.Tensor, *, inputs: CallInputs) -> tf.Tensor:
        """Returns the input of the head, [B, T, D], any float type, of target tokens, int32 [B, T].

        Of `inputs` it reads `memory` (see `encode`), `memory_segments`, `segments`, `position_ids`.
        """
        inputs = with_position_ids(inputs, tokens)
        x = self._embed(tokens, inputs)
        inputs = stack_inputs(self.decoder, tokens, inputs, table=self.decoder_table)
        x = self.decoder(x, inputs=inputs)
        return self._dropout(x if self.decoder_norm is None else self.decoder_norm(x), "output")

    def logits(self, activations: tf.Tensor) -> tf.Tensor:
        """Returns float32 logits [B, T, V] of activations [B, T, D], any float type."""
        return self.head(activations, self.embedding.vectors())

    def step(
        self, tokens: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS
    ) -> tf.Tensor:
        """Returns logits of the token after each new token, float32 [B, C, V], by caches.

        `tokens`, int32 [B, C], are the new tokens; `index`, int32 scalar, is the number of earlier
        positions. Of `inputs` it reads `position_ids`; in the first step also `memory` (see
        `encode`) and `memory_segments`, which it caches.
        """
        return self.logits(self._step(tokens, index, inputs))

    def next_logits(
        self, tokens: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS
    ) -> tf.Tensor:
        """Returns the logits of `step` at the last position, float32 [B, V], for decoding."""
        return self.logits(self._step(tokens, index, inputs)[:, -1:])[:, 0]

    def flops(self, shape: Sequence[int], *, source_length: int | None = None) -> int:
        """Returns the FLOPs of a call on targets [B, T], sources of `source_length` (None: T)."""
        batch, length = shape
        target = [batch, length, self.p.dim]
        source = [batch, length if source_length is None else source_length, self.p.dim]
        decoder = self.decoder.flops(target, memory_length=source[1])
        return self.encoder.flops(source) + decoder + self.head.flops(target)

    def _step(self, tokens: tf.Tensor, index: tf.Tensor, inputs: CallInputs) -> tf.Tensor:
        """Returns the input of the head for `step`, [B, C, D]."""
        inputs = with_position_ids(inputs, tokens, index)
        if inputs.memory is None:
            seen = self.memory_seen
        else:
            segments = inputs.memory_segments
            everywhere = tf.ones_like(inputs.memory[:, :, 0], tf.float32)
            seen = everywhere if segments is None else tf.cast(segments > 0, tf.float32)
            self.new_cache("memory_seen", seen)
        x = self._embed(tokens, inputs, index)
        inputs = inputs._replace(memory_segments=tf.cast(seen, tf.int32))
        inputs = stack_inputs(self.decoder, tokens, inputs, table=self.decoder_table)
        x = self.decoder.step(x, index, inputs=inputs)
        return x if self.decoder_norm is None else self.decoder_norm.step(x, index)

    def _embed(
        self, tokens: tf.Tensor, inputs: CallInputs, index: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns the input of the decoder, [B, T, D]; `index` as in `embed_tokens`."""
        x = embed_tokens(
            tokens,
            inputs.position_ids,
            index=index,
            embedding=self.embedding,
            positions=self.positions,
            scaled=self.p.scale_embedding,
        )
        return self._dropout(x, "target")

    @property
    def _output_dropout_rate(self) -> float:
        p = self.p
        return p.dropout_rate if p.output_dropout_rate is None else p.output_dropout_rate

    def _dropout(self, x: tf.Tensor, name: str) -> tf.Tensor:
        is_output = name in ("memory", "output")
        rate = self._output_dropout_rate if is_output else self.p.dropout_rate
        return dropout(self, x, rate=rate, form=self.p.dropout_form, name=f"{name}_dropout")
