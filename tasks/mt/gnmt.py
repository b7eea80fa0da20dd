"""GNMT: LSTMs that read a source and write its translation, with attention (Wu et al. 2016).

    encoder     a layer in both directions, then layers in one direction; from the 3rd on: x + f(x)
    decoder     one layer, whose output attends to the memory; then layers that read x and this
                context; from the 3rd layer on: x + f(x, context)

Like MLPerf's benchmark and the `gnmt_v2` of TensorFlow's NMT, it departs from the paper: the first
layer of the decoder attends, and the context of a position goes to all layers above it at the same
position. So a layer is computed for all positions of a target before the next layer. The two
classes are for the fields `encoder` and `decoder` of `EncoderDecoder`.

Axes: B batch, S source positions, T target positions, C new positions of a decoding step, D width
of layers, M width of the memory, A width of the attention.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import Layer, Lstm, path
from lingo.layers.context import annotate
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.initial import FAN_IN, ZEROS, FanIn, Initializer
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.product import Product
from lingo.layers.residual import SEQUENCE_AXES, Residual, ResidualCall, batch_residual
from lingo.layers.sequence.dot_product import within_documents
from lingo.layers.sequence.recurrent import Recurrent
from lingo.ops import random

NETWORK = Lstm.params(forget_bias=0.0)
_HIDDEN = -1e9  # logit of a masked position; finite, so that padding yields no NaN


class AdditiveAttention(Layer):
    """Averages a memory by weights that a small network computes (Bahdanau et al. 2015, A.1.2).

        weights = softmax over the memory of: g v / |v| . tanh(x w_query + memory w_key + b)

    The length g of the vector v is a separate weight, as in weight normalization (Salimans and
    Kingma 2016); TensorFlow's NMT calls this normed_bahdanau.

    Weights:
        w_query: [D, A].
        w_key: [M, A].
        v: [A], a direction.
        g: [1], the length of v, initially 1 / sqrt(A).
        b: [A], initially zeros.

    Caches, set by the step that gets the memory:
        memory: [S, M]; memory_key: [S, A].
        coverage: float32 [S], the sum of weights so far.
    """

    dim: int  # D, width of the input
    memory_dim: int | None = None  # M, width of the memory and of the result; None: dim
    hidden_dim: int | None = None  # A; None: dim
    init: Initializer = FanIn  # of the matrices

    products = (Product("w_query"), Product("w_key"))

    def check(self) -> None:
        ranges.check_positive(self.p, "memory_dim", "hidden_dim")

    def setup(self) -> None:
        p, init, width = self.p, self.p.init.build(), self._hidden_dim
        self.w_query = self.weight("w_query", [p.dim, width], axes=("embed", "mlp"), init=init)
        self.w_key = self.weight(
            "w_key", [self.context_dim, width], axes=("embed", "mlp"), init=init
        )
        self.v = self.weight("v", [width], axes=("mlp",), init=FAN_IN, fan_in=width)
        root = _InverseRoot()
        self.g = self.weight("g", [1], axes=(None,), init=root, fan_in=width, dtype="float32")
        self.b = self.weight("b", [width], axes=("mlp",), init=ZEROS)
        self.cache("memory", [0, self.context_dim], axes=(None, "embed"))
        self.cache("memory_key", [0, width], axes=(None, "mlp"))
        self.cache("coverage", [0], axes=(None,), dtype="float32")

    @property
    def context_dim(self) -> int:
        """M, the width of the memory and of the result."""
        return self.p.dim if self.p.memory_dim is None else self.p.memory_dim

    @property
    def _hidden_dim(self) -> int:
        return self.p.dim if self.p.hidden_dim is None else self.p.hidden_dim

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns the context of each position, [B, T, M], in the layer's dtype.

        `x` is [B, T, D], any float type. `inputs` have `memory`, [B, S, M], `memory_segments` and
        `segments`: a document sees only its own memory. Raises ValueError without a memory.
        """
        if inputs.memory is None:
            raise ValueError(f"{self.path or type(self).__name__} needs the input `memory`")
        memory = tf.cast(inputs.memory, self.p.dtype)
        mask = within_documents(None, inputs.segments, inputs.memory_segments)
        if inputs.segments is None and inputs.memory_segments is not None:
            mask = (inputs.memory_segments > 0)[:, None]
        weights = self._attend(x, self._project_memory(memory), mask)
        return self._average(weights, memory)

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns the context of new positions, [B, C, M], for x [B, C, D].

        `inputs` have `memory` in the first step, and `memory_segments` in every step.
        """
        if inputs.memory is None:
            memory, key, coverage = self.memory, self.memory_key, self.coverage
        else:
            memory = tf.cast(inputs.memory, self.p.dtype)
            key, coverage = self._project_memory(memory), 0.0
            self.new_cache("memory", memory)
            self.new_cache("memory_key", key)
        segments = inputs.memory_segments
        weights = self._attend(x, key, None if segments is None else (segments > 0)[:, None])
        self.new_cache("coverage", coverage + tf.reduce_sum(weights, axis=1))
        return self._average(weights, memory)

    def flops(self, shape: Sequence[int], *, memory_length: int | None = None) -> int:
        """Returns the FLOPs of a call on x [B, T, D] with a memory of `memory_length` (None: T)."""
        batch, length, dim = shape
        num_keys, width = length if memory_length is None else memory_length, self._hidden_dim
        projections = length * dim * width + num_keys * self.context_dim * width
        return 2 * batch * (projections + length * num_keys * (width + self.context_dim))

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        batch, length, _ = call.shape
        num_keys = call.memory_length or length
        memory = Residual(1, (batch, num_keys, self.context_dim), ("batch", None, None))
        size = (batch, length, num_keys)
        activated = Residual(1, (*size, self._hidden_dim), (*SEQUENCE_AXES, None, "mlp"))
        weights = Residual(1, size, (*SEQUENCE_AXES, None), dtype="float32")
        rounded = weights._replace(dtype="", is_elementwise=True)
        return [batch_residual(1, call.shape, "input"), memory, activated, weights, rounded]

    def _project_memory(self, memory: tf.Tensor) -> tf.Tensor:
        """Returns the memory's term inside the tanh, [B, S, A], for a memory [B, S, M]."""
        return tf.einsum("bsm,ma->bsa", *self.operands("w_key", input=memory))

    def _attend(self, x: tf.Tensor, key: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        """Returns the weight of each position of the memory, float32 [B, T, S]; they add up to 1.

        `key` is [B, S, A]; `mask`, bool [B, T or 1, S], is True for visible positions; None: all.
        """
        x = tf.cast(x, self.p.dtype)
        query = tf.einsum("btd,da->bta", *self.operands("w_query", input=x)) + self.b
        query = annotate(query, "batch", "length", "mlp")
        activated = tf.tanh(query[:, :, None, :] + key[:, None, :, :])
        v = tf.cast(self.v, tf.float32)
        v *= self.g * tf.math.rsqrt(tf.reduce_sum(tf.square(v)))
        logits = tf.einsum("btsa,a->bts", activated, tf.cast(v, self.p.dtype))
        logits = tf.cast(logits, tf.float32)
        if mask is not None:
            logits = tf.where(mask, logits, _HIDDEN)
        return tf.nn.softmax(logits)

    def _average(self, weights: tf.Tensor, memory: tf.Tensor) -> tf.Tensor:
        context = tf.einsum("bts,bsm->btm", tf.cast(weights, self.p.dtype), memory)
        return annotate(context, "batch", "length", "embed")


class _InverseRoot:
    """The initial value 1 / sqrt(fan-in) of each element."""

    def key(self, root: random.Key, name: str) -> random.Key:
        return path.key(root, name)

    def draw(
        self, key: random.Key, shape: Sequence[int], *, fan_in: int, index: Sequence[slice] = ()
    ) -> np.ndarray:
        return np.full(shape, fan_in**-0.5, np.float32)[tuple(index)]


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
