"""GNMT: LSTMs that read a source and write its translation, with attention (Wu et al. 2016).

    encoder     a layer in both directions, then layers in one direction; from the 3rd on: x + f(x)
    decoder     one layer, whose output attends to the memory; then layers that read x and this
                context; from the 3rd layer on: x + f(x, context)

Like MLPerf's benchmark and the `gnmt_v2` of TensorFlow's NMT, it departs from the paper: the first
layer of the decoder attends, and the context of a position goes to all layers above it at the same
position. So a layer is computed for all positions of a target before the next layer. The two
classes are for the fields `encoder` and `decoder` of `EncoderDecoder`.

Axes: B batch, S source positions, T target positions, C new positions of a decoding step, D width
of layers, M width of the memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import AdditiveAttention, Layer, Lstm
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.sequence.recurrent import Recurrent

NETWORK = Lstm.params(forget_bias=0.0)


class RecurrentEncoder(Layer):
    """Recurrent layers in sequence; the first reads in both directions, with two networks.

    From the third layer on, a layer adds its output to its input. Each layer's input has dropout;
    the model applies it to the first layer's input.
    """

    dim: int  # D, width of the input and of each network
    num_layers: int = 4  # including the layer in both directions
    network: Recurrent = NETWORK  # of each layer
    dropout_rate: float = 0.0  # of the inputs of the second and later layers

    def check(self) -> None:
        _check_layers(self)

    def setup(self) -> None:
        dim, network = self.p.dim, self.p.network
        self.forward = network.build(dim=dim, hidden_dim=dim)
        self.backward = network.build(dim=dim, hidden_dim=dim, is_reversed=True)
        widths = [2 * dim] + [dim] * (self.p.num_layers - 2)
        self.layers = [network.build(dim=width, hidden_dim=dim) for width in widths]

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns [B, S, D], in the layer's dtype, for x [B, S, D], any float type.

        Of `inputs` it reads `position_ids`: a document in a packed row is read as if it were alone.
        """
        inputs = CallInputs(position_ids=inputs.position_ids)
        both = [network(x, inputs=inputs) for network in (self.forward, self.backward)]
        x = tf.concat(both, axis=-1)
        for i, network in enumerate(self.layers):
            read = dropout(self, x, rate=self.p.dropout_rate, name=f"dropout_{i}")
            written = network(read, inputs=inputs)
            x = x + written if i else written
        return x

    def flops(self, shape: Sequence[int], *, memory_length: int | None = None) -> int:
        front = tuple(shape[:-1])
        total = self.forward.flops(tuple(shape)) + self.backward.flops(tuple(shape))
        return total + sum(network.flops((*front, network.p.dim)) for network in self.layers)


class AttentionDecoder(Layer):
    """Recurrent layers in sequence; the first one's output attends to the memory.

    Every later layer reads the output of the layer before it and this attended context.

    From the third layer on, a layer adds its output to its input. Each layer's input has dropout;
    the model applies it to the first layer's input.
    """

    dim: int  # D, width of the input, of each network, and of the memory
    num_layers: int = 4  # including the layer that attends
    network: Recurrent = NETWORK  # of each layer
    attention: AdditiveAttention = AdditiveAttention  # of the first layer's output
    dropout_rate: float = 0.0  # of the inputs of the second and later layers, context included

    def check(self) -> None:
        _check_layers(self)

    def setup(self) -> None:
        dim, network = self.p.dim, self.p.network
        self.first = network.build(dim=dim, hidden_dim=dim)
        self.attention = self.p.attention.build(dim=dim)
        width = dim + self.attention.context_dim
        num = self.p.num_layers - 1
        self.layers = [network.build(dim=width, hidden_dim=dim) for _ in range(num)]

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns [B, T, D], in the layer's dtype, for x [B, T, D], any float type.

        Of `inputs` it reads `position_ids`, `segments`, `memory`, [B, S, M], and `memory_segments`.
        """
        return self._run(x, inputs)

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        return self._run(x, inputs, index)

    def flops(self, shape: Sequence[int], *, memory_length: int | None = None) -> int:
        front = tuple(shape[:-1])
        total = self.first.flops(tuple(shape))
        total += self.attention.flops((*front, self.p.dim), memory_length=memory_length)
        return total + sum(network.flops((*front, network.p.dim)) for network in self.layers)

    def _run(self, x: tf.Tensor, inputs: CallInputs, index: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the output for x [B, T, D]; with an `index`, it calls the layers' `step`."""
        documents = CallInputs(position_ids=inputs.position_ids)
        sources = CallInputs(
            memory=inputs.memory,
            memory_segments=inputs.memory_segments,
            segments=inputs.segments if index is None else None,
        )

        def compute(layer: Layer, x: tf.Tensor, inputs: CallInputs) -> tf.Tensor:
            return layer(x, inputs=inputs) if index is None else layer.step(x, index, inputs=inputs)

        x = compute(self.first, x, documents)
        context = compute(self.attention, x, sources)
        for i, network in enumerate(self.layers):
            read = tf.concat([x, context], axis=-1)
            read = dropout(self, read, rate=self.p.dropout_rate, name=f"dropout_{i}")
            written = compute(network, read, documents)
            x = x + written if i else written
        return x


def _check_layers(layer: Layer) -> None:
    check_rate("dropout_rate", layer.p.dropout_rate)
    if (num := layer.p.num_layers) < 2:
        raise ParamError(f"num_layers={num}: there are at least 2 layers")
