"""Additive attention: a small network compares each position with each position of a memory.

Axes: B batch, T positions, C new positions of a decoding step, S positions of the memory, D width
of the input, M width of the memory, A width of the attention.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers import path
from lingo.layers.context import annotate
from lingo.layers.initial import FAN_IN, ZEROS, FanIn, Initializer
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.product import Product
from lingo.layers.residual import SEQUENCE_AXES, Residual, ResidualCall, batch_residual
from lingo.layers.sequence.dot_product import within_documents
from lingo.ops import random

_HIDDEN = -1e9  # logit of a masked position; finite, so that padding yields no NaN


class AdditiveAttention(Layer):
    """Averages a memory by weights that a small network computes (Bahdanau et al. 2015, A.1.2).

        weights = softmax over the memory of: g v / |v| . tanh(x w_query + memory w_key + b)

    The length g of the vector v is a separate weight, as in weight normalization (Salimans and
    Kingma 2016); TensorFlow's NMT calls this normed_bahdanau. Without `normalized` there are
    neither g nor b, and v has its own length, as in Lingvo's LAS.

    Weights:
        w_query: [D, A].
        w_key: [M, A].
        v: [A], with `normalized` a direction.
        g: [1], the length of v, initially 1 / sqrt(A); with `normalized`.
        b: [A], initially zeros; with `normalized`.

    Caches, set by the step that gets the memory:
        memory: [S, M]; memory_key: [S, A].
        coverage: float32 [S], the sum of weights so far.
    """

    dim: int  # D, width of the input
    memory_dim: int | None = None  # M, width of the memory and of the result; None: dim
    hidden_dim: int | None = None  # A; None: dim
    normalized: bool = True  # whether the length of v is a weight, and the sum has a bias
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
        if p.normalized:
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
        weights = self.attend(x, self.project_memory(memory), visible_memory(inputs))
        return self.average(weights, memory)

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns the context of new positions, [B, C, M], for x [B, C, D].

        `inputs` have `memory` in the first step, and `memory_segments` in every step.
        """
        memory, key = self.recall(inputs)
        weights = self.attend(x, key, visible_memory(inputs._replace(segments=None)))
        self.add_coverage(tf.reduce_sum(weights, axis=1), is_first=inputs.memory is not None)
        return self.average(weights, memory)

    def recall(self, inputs: CallInputs) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the memory [B, S, M] and its term [B, S, A] in a step, and caches new ones.

        `inputs` have `memory` in the first step.
        """
        if inputs.memory is None:
            return self.memory, self.memory_key
        memory = tf.cast(inputs.memory, self.p.dtype)
        key = self.project_memory(memory)
        self.new_cache("memory", memory)
        self.new_cache("memory_key", key)
        return memory, key

    def add_coverage(self, weights: tf.Tensor, *, is_first: bool) -> None:
        """Adds a step's weights, float32 [B, S], to the cache `coverage`."""
        self.new_cache("coverage", weights if is_first else self.coverage + weights)

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

    def project_memory(self, memory: tf.Tensor) -> tf.Tensor:
        """Returns the memory's term inside the tanh, [B, S, A], for a memory [B, S, M]."""
        return tf.einsum("bsm,ma->bsa", *self.operands("w_key", input=memory))

    def attend(self, x: tf.Tensor, key: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        """Returns the weight of each position of the memory, float32 [B, T, S]; they add up to 1.

        `key` is [B, S, A]; `mask`, bool [B, T or 1, S], is True for visible positions; None: all.
        """
        x = tf.cast(x, self.p.dtype)
        query = tf.einsum("btd,da->bta", *self.operands("w_query", input=x))
        if self.p.normalized:
            query += self.b
        query = annotate(query, "batch", "length", "mlp")
        activated = tf.tanh(query[:, :, None, :] + key[:, None, :, :])
        v = tf.cast(self.v, tf.float32)
        if self.p.normalized:
            v *= self.g * tf.math.rsqrt(tf.reduce_sum(tf.square(v)))
        logits = tf.einsum("btsa,a->bts", activated, tf.cast(v, self.p.dtype))
        logits = tf.cast(logits, tf.float32)
        if mask is not None:
            logits = tf.where(mask, logits, _HIDDEN)
        return tf.nn.softmax(logits)

    def average(self, weights: tf.Tensor, memory: tf.Tensor) -> tf.Tensor:
        """Returns the averages of a memory [B, S, M], [B, T, M], for weights [B, T, S]."""
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


def visible_memory(inputs: CallInputs) -> tf.Tensor | None:
    """Returns which positions of the memory are visible, bool [B, T or 1, S]; None: all.

    Without `segments` an example is one document, which sees all of its memory except padding.
    """
    if inputs.segments is None and inputs.memory_segments is not None:
        return (inputs.memory_segments > 0)[:, None]
    return within_documents(None, inputs.segments, inputs.memory_segments)
