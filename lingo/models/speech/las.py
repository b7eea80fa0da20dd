"""Listen, Attend and Spell: an LSTM writes what it hears (Chan et al. 2016), as Lingvo builds it.

    encoder    two 3x3 convolutions of stride 2; bidirectional LSTMs, with a projection, a norm and
               a ReLU after each but the last
    decoder    for each token: LSTM 1 reads the token and the last context; its output attends to
               the memory; LSTM 2 reads that output and the new context; the head reads both, too

Axes: B batch, S frames, F frequencies, T tokens, C new tokens of a step, M width of the memory,
H width of an LSTM, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers import context
from lingo.layers.context import annotate
from lingo.layers.embedding import Embedding
from lingo.layers.initial import Uniform
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.norm import Norm
from lingo.layers.sequence.additive_attention import AdditiveAttention, visible_memory
from lingo.layers.sequence.recurrent import BidirectionalRecurrent, Lstm, Recurrent
from lingo.layers.sequence.softmax import SoftmaxHead
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.models.speech.subsampling import ConvSubsampling, normalize
from lingo.ops.activations import Activation, activate
from lingo.ops.scan import scan
from lingo.ops.shape import size_of

NETWORK = Lstm.params(forget_bias=0.0, cell_cap=10.0, init=Uniform.params(limit=0.1))
"""Lingvo's LSTM."""


class LasEncoder(Layer):
    """Convolutions that shorten a recording, then bidirectional LSTMs (Chan et al. 2016, sec. 3.1).

    With 80 frequencies and the defaults it has 101,766,560 weights, as in Lingvo's models of
    LibriSpeech.
    """

    dim: int  # F, number of frequencies
    hidden_dim: int = 1024  # H, width of each LSTM; the result is twice as wide
    num_layers: int = 4  # number of bidirectional LSTMs
    network: Recurrent = NETWORK  # of each direction
    subsampling: ConvSubsampling = ConvSubsampling.params(
        channels=32, use_bias=False, norm=BatchNorm
    )
    layer: BidirectionalRecurrent = BidirectionalRecurrent  # each layer
    projection: Linear = Linear  # between two layers
    norm: Norm = BatchNorm  # after each projection
    activation: Activation = "relu"  # after each norm

    def check(self) -> None:
        ranges.check_positive(self.p, "hidden_dim", "num_layers")

    def setup(self) -> None:
        p = self.p
        self.subsampling = p.subsampling.build(dim=p.dim)
        width = self.subsampling.output_shape((1, 64, p.dim))[-1]
        widths = [width, *[2 * p.hidden_dim] * (p.num_layers - 1)]
        self.layers = [
            p.layer.build(dim=width, hidden_dim=p.hidden_dim, network=p.network) for width in widths
        ]
        width = 2 * p.hidden_dim
        between = range(p.num_layers - 1)
        self.projections = [p.projection.build(dim=width, output_dim=width) for _ in between]
        self.norms = [p.norm.build(dim=width) for _ in between]

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns [B, S', 2 H], in the layer's dtype, for frames x [B, S, F], any float type.

        Of `inputs` it reads `segments`, int32 [B, S]: frames of segment 0 are padding.
        """
        segments = inputs.segments
        x = self.subsampling(x, inputs=CallInputs(segments=segments))
        if segments is not None:
            segments = self.subsample(segments)
        for i, layer in enumerate(self.layers):
            x = layer(x, inputs=CallInputs(segments=segments))
            if i < len(self.projections):
                x = normalize(self.norms[i], self.projections[i](x), segments)
                x = activate(x, self.p.activation)
        return annotate(x, "batch", "length", "embed")

    def subsample(self, segments: tf.Tensor) -> tf.Tensor:
        """Returns the document ids of the result's frames, int32 [B, S'], for int32 [B, S]."""
        return self.subsampling.subsample(segments)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for frames of shape [B, S, F]."""
        return (*self.subsampling.output_shape(shape)[:2], 2 * self.p.hidden_dim)

    def flops(self, shape: Sequence[int]) -> int:
        shape = tuple(shape)
        total, shape = self.subsampling.flops(shape), self.subsampling.output_shape(shape)
        for i, layer in enumerate(self.layers):
            total, shape = total + layer.flops(shape), layer.output_shape(shape)
            if i < len(self.projections):
                total += self.projections[i].flops(shape)
                shape = self.projections[i].output_shape(shape)
                total += self.norms[i].flops(shape)
        return total


class LasDecoder(Layer):
    """LSTMs that write a text and attend to the memory before each token (Chan et al. 2016).

    Departs from the paper as Lingvo does: the attention is additive, the context of a position goes
    to the head and to the LSTMs above the first one, and to the first one at the next position.

    Caches:
        context: float32 [M], the last average of the memory.
        memory_seen: float32 [S], 1 where the memory is no padding; set with the memory.
    """

    vocab_size: int  # V
    dim: int  # width of the embedding
    memory_dim: int = 2048  # M, width of the memory
    hidden_dim: int = 1024  # H, width of each LSTM
    num_layers: int = 2  # number of LSTMs
    network: Recurrent = NETWORK  # each LSTM
    # what the first LSTM's output does to attend to the memory
    attention: AdditiveAttention = AdditiveAttention.params(hidden_dim=128, normalized=False)
    embedding: Embedding = Embedding  # of the tokens
    head: SoftmaxHead = SoftmaxHead.params(use_bias=True)  # the logits

    def check(self) -> None:
        ranges.check_positive(self.p, "memory_dim", "hidden_dim", "num_layers")

    def setup(self) -> None:
        p = self.p
        self.embedding = p.embedding.build(vocab_size=p.vocab_size, dim=p.dim)
        widths = [p.dim, *[p.hidden_dim] * (p.num_layers - 1)]
        self.networks = [
            p.network.build(dim=width + p.memory_dim, hidden_dim=p.hidden_dim) for width in widths
        ]
        self.attention = p.attention.build(dim=p.hidden_dim, memory_dim=p.memory_dim)
        self.head = p.head.build(dim=p.hidden_dim + p.memory_dim, vocab_size=p.vocab_size)
        self.cache("context", [p.memory_dim], axes=("embed",), dtype="float32")
        self.cache("memory_seen", [0], axes=(None,), dtype="float32")

    def __call__(self, tokens: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns the logits of the next token, float32 [B, T, V], for tokens int32 [B, T].

        Of `inputs` it reads `memory`, [B, S, M], `memory_segments`, `segments` and `position_ids`:
        a document begins where these are 0. Raises ValueError without a memory.
        """
        if inputs.memory is None:
            raise ValueError(f"{self.path or type(self).__name__} needs the input `memory`")
        memory = tf.cast(inputs.memory, self.p.dtype)
        key = self.attention.project_memory(memory)
        batch = tf.shape(tokens)[0]
        zeros = {
            name: tf.ensure_shape(tf.zeros([batch, size]), [tokens.shape[0], size])
            for name, size in self._state_sizes().items()
        }
        return self._write(tokens, zeros, (memory, key), inputs)[0]

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns the logits after new tokens, float32 [B, C, V], for tokens x, int32 [B, C].

        `inputs` have `memory` and `memory_segments` in the first step.
        """
        inputs = inputs._replace(memory_segments=tf.cast(self._see(inputs), tf.int32))
        memory, key = self.attention.recall(inputs)
        state = {"context": self.context}
        for i, network in enumerate(self.networks):
            state |= {f"{name}_{i}": getattr(network, name) for name in network.state_names}
        inputs = inputs._replace(segments=None)
        is_first = inputs.memory is not None
        logits, state, coverage = self._write(x, state, (memory, key), inputs)
        self.new_cache("context", state["context"])
        for i, network in enumerate(self.networks):
            for name in network.state_names:
                network.new_cache(name, state[f"{name}_{i}"])
        self.attention.add_coverage(coverage, is_first=is_first)
        return logits

    def next_logits(
        self, tokens: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS
    ) -> tf.Tensor:
        """Returns the logits of `step` after the last token, float32 [B, V], for decoding."""
        return self.step(tokens, index, inputs=inputs)[:, -1]

    def flops(self, shape: Sequence[int], *, memory_length: int | None = None) -> int:
        """Returns the operations for tokens of shape [B, T] and a memory of S positions (None: T).

        `memory_length` is S.
        """
        batch, length = shape[:2]
        total = sum(network.flops((batch, length, network.p.dim)) for network in self.networks)
        size = (batch, length, self.p.hidden_dim)
        total += self.attention.flops(size, memory_length=memory_length)
        return total + self.head.flops((batch, length, self.head.p.dim))

    def _see(self, inputs: CallInputs) -> tf.Tensor:
        """Returns 1 where the memory of a step is no padding, float32 [B, S], and caches it."""
        if inputs.memory is None:
            return self.memory_seen
        seen = tf.ones_like(inputs.memory[:, :, 0], tf.float32)
        if inputs.memory_segments is not None:
            seen = tf.cast(inputs.memory_segments > 0, tf.float32)
        self.new_cache("memory_seen", seen)
        return seen

    def _state_sizes(self) -> dict[str, int]:
        """Returns the names of what passes from token to token, and their widths."""
        sizes = {"context": self.p.memory_dim}
        for i, network in enumerate(self.networks):
            sizes |= dict.fromkeys((f"{name}_{i}" for name in network.state_names), 0)
        return {name: size or self.p.hidden_dim for name, size in sizes.items()}

    def _write(
        self,
        tokens: tf.Tensor,
        state: Mapping[str, tf.Tensor],
        memory: tuple[tf.Tensor, tf.Tensor],
        inputs: CallInputs,
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor], tf.Tensor]:
        """Returns logits [B, T, V], the last state, and the sums of weights, float32 [B, S].

        `memory` has the memory and its term in the attention.
        """
        xs = {"x": tf.transpose(self.embedding(tokens), [1, 0, 2])}
        mask = visible_memory(inputs)
        if mask is not None and inputs.segments is not None:
            xs["mask"] = tf.transpose(mask, [1, 0, 2])
        if inputs.position_ids is not None:
            xs["begins"] = tf.equal(tf.transpose(inputs.position_ids)[:, :, None], 0)

        call = context.current()

        def body(i: tf.Tensor, carry: Any, x: dict[str, tf.Tensor]) -> tuple[Any, Any]:
            state, coverage = carry
            if "begins" in x:
                state = {name: tf.where(x["begins"], 0.0, v) for name, v in state.items()}
            sees = x["mask"][:, None] if "mask" in x else mask
            inner = call.derive()  # statistics of `Quantized` leave the loop as its outputs
            with context.enter_call(inner):
                state, weights = self._advance(state, x["x"], memory, sees)
            last = state[f"hidden_{len(self.networks) - 1}"]
            y = tf.cast(tf.concat([last, state["context"]], axis=-1), self.p.dtype)
            return (state, coverage + weights), (y, inner.sides.batch_statistics)

        coverage = tf.zeros_like(memory[0][:, :, 0], tf.float32)
        carry = (dict(state), coverage)
        (state, coverage), (outputs, statistics) = scan(body, carry, xs, size_of(tokens, 1))
        statistics = tf.nest.map_structure(lambda x: tf.reduce_sum(x, axis=0), statistics)
        call.sides.add({"batch_statistics": statistics})
        outputs = annotate(tf.transpose(outputs, [1, 0, 2]), "batch", "length", "embed")
        return self.head(outputs, self.embedding.vectors()), dict(state), coverage

    def _advance(
        self,
        state: Mapping[str, tf.Tensor],
        x: tf.Tensor,
        memory: tuple[tf.Tensor, tf.Tensor],
        mask: tf.Tensor | None,
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Returns the state after one token's embedding x [B, D], and the weights [B, S]."""
        new, weights = dict(state), tf.zeros([])
        for i, network in enumerate(self.networks):
            joined = tf.concat([tf.cast(x, tf.float32), new["context"]], axis=-1)
            own = {name: state[f"{name}_{i}"] for name in network.state_names}
            own = network.advance(own, network.input_gates(joined))
            new |= {f"{name}_{i}": value for name, value in own.items()}
            x = own["hidden"]
            if i == 0:
                weights = self.attention.attend(x[:, None], memory[1], mask)
                average = self.attention.average(weights, memory[0])
                new["context"] = tf.cast(average[:, 0], tf.float32)
        return new, weights[:, 0]
