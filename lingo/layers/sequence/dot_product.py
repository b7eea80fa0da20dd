"""The base class of self-attention and cross-attention.

It projects inputs to heads, attends, and projects back. `Attention` attends to its own input, and
`CrossAttention` to a memory. `--set=DotProductAttention.x=v` sets the field x of both classes.

Axes: B batch, T query positions, S key positions, D model width, N heads, K heads of keys and
values, H head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context, path
from lingo.layers.context import annotate
from lingo.layers.dropout import check_rate, dropout, partial_dropout
from lingo.layers.initial import ZEROS, FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.norm import Norm
from lingo.layers.product import Product
from lingo.layers.residual import SEQUENCE_AXES, Residual, ResidualCall
from lingo.ops.attention import attend
from lingo.ops.blockwise_attention import Logits, attend_blockwise
from lingo.ops.dropout import DropoutForm
from lingo.ops.quantization import quantize_channels

ATTENTION_PRODUCTS = (
    Product("logits", ("query", "key"), has_weight=False),
    Product("averages", ("value", "softmax"), has_weight=False),
)
"""The products of activations with each other. `attend` rounds the attention weights, which are a
softmax, if a wrapper quantizes them. `attend_blockwise` computes with sums of exponentials instead,
and does not round."""

# In files of 8 bits a hidden logit is this much lower, which makes its weight 1e-7 of an equal
# logit's. A larger term would leave fewer of the 255 levels to the visible logits.
_HIDING_TERM = -16.0

_MAX_WHOLE_LENGTH = 2048  # by default, more logits than its square are computed block by block


class DotProductAttention(Layer, interface=True):
    """Projects to heads, attends in each, projects back (Vaswani et al. 2017, sec. 3.2.2).

    With K < N, N / K heads of queries share each head of keys and values (Ainslie et al. 2023);
    `num_kv_heads=1` is multi-query attention (Shazeer 2019). Departs from Vaswani et al.: there are
    no biases by default.

    With `cache_dtype="int8"`, caches take (H + 4) / 4H of their size in float32, about a quarter.
    The key or value of a head at a position is then rounded to 255 levels from -m to m, where m is
    its largest absolute feature.

    Weights:
        w_query: [D, N, H].
        w_key, w_value: [D, K, H].
        w_output: [N, H, D].
        b_query: [N, H], b_key, b_value: [K, H], b_output: [D]; biases, as `use_bias` says.
        feature_scale: [H], with `scale_features`; initially zeros. Queries are multiplied by
            softplus(feature_scale) / ln 2.
    """

    dim: int  # width of the input and of the output
    num_heads: int  # N
    num_kv_heads: int | None = None  # K, a divisor of N; None: N
    head_dim: int | None = None  # H; None: dim / num_heads
    use_bias: bool = False  # whether each projection has a bias
    # whether the output projection has a bias; None: as `use_bias` says
    use_output_bias: bool | None = None
    # norm over the features of each head, one for queries and one for keys (Henry et al. 2020)
    qk_norm: Norm | None = None
    query_scale: float | None = None  # factor of the logits; None: 1 / sqrt(H)
    scale_features: bool = False  # whether a trained scale multiplies the features of queries
    logit_cap: float | None = None  # C: a logit s becomes C tanh(s / C); None: no cap
    dropout_rate: float = 0.0  # dropout rate of the attention weights
    dropout_form: DropoutForm = "element"  # "feature": all queries of a head drop the same keys
    # whether logits are computed block by block, to save memory; None: if there are more than
    # 2048 x 2048 per head
    blockwise: bool | None = None
    cache_dtype: Literal["int8"] | None = None  # dtype of cached keys and values; None: `dtype`
    init: Initializer = FanIn  # of the four projections; biases start at zero

    products = (
        *(Product(f"w_{name}") for name in ("query", "key", "value", "output")),
        *ATTENTION_PRODUCTS,
    )

    def check(self) -> None:
        p = self.p
        check_rate("dropout_rate", p.dropout_rate)
        ranges.check_positive(p, "num_heads", "num_kv_heads", "head_dim")
        ranges.check_positive(p, "query_scale", "logit_cap")
        if p.head_dim is None and p.dim % p.num_heads:
            raise ParamError(
                f"dim={p.dim} is not a multiple of num_heads={p.num_heads}; set head_dim"
            )
        if p.num_heads % self._num_kv_heads:
            raise ParamError(
                f"num_heads={p.num_heads} is not a multiple of num_kv_heads={p.num_kv_heads}:"
                " each head of keys needs the same number of heads of queries"
            )

    def setup(self) -> None:
        p, init, head_dim = self.p, self.p.init.build(), self._head_dim
        input_dims = {"query": p.dim, "key": self._source_dim, "value": self._source_dim}
        for name, dim in input_dims.items():
            num, axis = self._num_heads(name)
            axes = ("embed", axis, "head_dim")
            self.weight(f"w_{name}", [dim, num, head_dim], axes=axes, init=init)
            if p.use_bias:
                self.weight(f"b_{name}", [num, head_dim], axes=axes[1:], init=ZEROS)
        shape, axes = [p.num_heads, head_dim, p.dim], ("heads", "head_dim", "embed")
        fan_in = p.num_heads * head_dim
        self.w_output = self.weight("w_output", shape, axes=axes, init=init, fan_in=fan_in)
        if self._has_output_bias:
            self.b_output = self.weight("b_output", [p.dim], axes=("embed",), init=ZEROS)
        if p.scale_features:
            self.feature_scale = self.weight(
                "feature_scale", [head_dim], axes=("head_dim",), init=ZEROS, dtype="float32"
            )
        self.query_norm = p.qk_norm and p.qk_norm.build(dim=head_dim)
        self.key_norm = p.qk_norm and p.qk_norm.build(dim=head_dim)

    @property
    def _head_dim(self) -> int:
        return self.p.dim // self.p.num_heads if self.p.head_dim is None else self.p.head_dim

    @property
    def _has_output_bias(self) -> bool:
        return self.p.use_bias if self.p.use_output_bias is None else self.p.use_output_bias

    @property
    def _num_kv_heads(self) -> int:
        return self.p.num_heads if self.p.num_kv_heads is None else self.p.num_kv_heads

    @property
    def _source_dim(self) -> int:
        return self.p.dim

    def _num_heads(self, name: str) -> tuple[int, str]:
        """Returns the number of heads of "query", "key" or "value", and their logical axis."""
        if name == "query" or self._num_kv_heads == self.p.num_heads:
            return self.p.num_heads, "heads"
        return self._num_kv_heads, "kv_heads"

    def _heads(self, name: str, x: tf.Tensor) -> tf.Tensor:
        """Projects x [B, T, D] to queries [B, T, N, H], or to keys or values [B, T, K, H]."""
        # not "btd,dnh->bnth", whose gradient transposes twice
        x = tf.cast(x, self.p.dtype)
        y = tf.einsum("btd,dnh->btnh", *self.operands(f"w_{name}", input=x))
        if self.p.use_bias:
            y += getattr(self, f"b_{name}")
        return annotate(y, "batch", "length", self._num_heads(name)[1], "head_dim")

    def _declare_cache(self, name: str, length: int | None) -> None:
        """Declares a cache of keys or values, [K, S, H], and if it is int8 a cache of its scales.

        `length` is S; None: the number of positions that decoding has room for.
        """
        dtype = self.p.cache_dtype
        self._declare_heads(name, length, self._head_dim, "head_dim", dtype)
        if dtype is not None:
            self._declare_heads(f"{name}_scale", length, 1, None, "float32")

    def _declare_heads(
        self, name: str, length: int | None, width: int, width_axis: str | None, dtype: Any
    ) -> None:
        num, axis = self._num_heads("key")
        if length is None:
            shape, axes = [num, width], (axis, width_axis)
            self.cache(name, shape, axes=axes, per_position=True, position_axis=1, dtype=dtype)
        else:
            shape, axes = [num, length, width], (axis, None, width_axis)
            self.cache(name, shape, axes=axes, dtype=dtype)

    def _to_cache(self, name: str, heads: tf.Tensor) -> dict[str, tf.Tensor]:
        """Converts keys or values, [B, K, positions, H], for the caches: cache name -> tensor.

        With `cache_dtype`, a second entry has a scale for each head and position, float32
        [B, K, positions, 1].
        """
        if self.p.cache_dtype is None:
            return {name: heads}
        levels, scale = quantize_channels(heads, [3])
        return {name: tf.cast(levels, tf.int8), f"{name}_scale": scale}

    def _from_cache(self, name: str, parts: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns keys or values, [B, K, positions, H], from entries as `_to_cache` returns them.

        They are rounded if the caches are int8.
        """
        if self.p.cache_dtype is None:
            return parts[name]
        values = tf.cast(parts[name], tf.float32) * parts[f"{name}_scale"]
        return tf.cast(values, self.p.dtype)

    def _scale_query(self, query: tf.Tensor) -> tf.Tensor:
        number = self._head_dim**-0.5 if self.p.query_scale is None else self.p.query_scale
        # A vector with the same number for each feature. TensorFlow would fuse a scalar with the
        # product and the mask into a oneDNN operation that takes 300 times as long.
        scale: Any = np.full(self._head_dim, number, np.float32)
        if self.p.scale_features:
            scale = scale * tf.nn.softplus(self.feature_scale) / math.log(2.0)
        return query * tf.cast(scale, query.dtype)

    def _attend(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        *,
        mask: tf.Tensor | None,
        bias: tf.Tensor | None = None,
        num_blocks: int = 1,
    ) -> tf.Tensor:
        """Returns the attention's averages of values, [B * num_blocks, T, N, H].

        Arguments are as for `attend`, but `mask` is [B or 1, T, S]. `num_blocks` is the number of
        blocks that each example is cut into.
        """
        averages = attend(
            self._scale_query(query),
            key,
            value,
            mask=None if mask is None else mask[:, None],
            bias=bias,
            logit_cap=self.p.logit_cap,
            hiding_term=_HIDING_TERM if context.current().constant_ranges else None,
            dropout=partial(self._dropout, num_blocks) if self.p.dropout_rate else None,
            round_weights=weight_rounding(self),
        )
        return swap_heads(averages)

    def is_blockwise(self, num_queries: int | None, num_keys: int | None) -> bool:
        """Returns whether logits are computed block by block; never if a length is not static."""
        if num_queries is None or num_keys is None or self.p.blockwise is False:
            return False
        return self.p.blockwise or num_queries * num_keys > _MAX_WHOLE_LENGTH**2

    def _attend_blockwise(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        *,
        logits: Logits,
        features: tuple[tf.Tensor, tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """Returns the attention's averages of values, [B, T, N, H], computed block by block.

        Arguments are as for `attend_blockwise`. `features` are further features of queries,
        [B, N, T, F], which are scaled already, and of keys, [B, K, S, F].
        """
        query = self._scale_query(query)
        if features is not None:
            query, key = (tf.concat(p, -1) for p in zip((query, key), features, strict=True))
        key, value = (
            annotate(x, "batch", self._num_heads("key")[1], None, None) for x in (key, value)
        )
        averages = attend_blockwise(
            annotate(query, "batch", "heads", None, None),
            key,
            value,
            logits=logits._replace(logit_cap=self.p.logit_cap),
            dropout=partial_dropout(self, rate=self.p.dropout_rate, form=self.p.dropout_form),
            compiled=context.current().compiled,
        )
        return swap_heads(annotate(averages, "batch", "heads", None, None))

    def _dropout(self, num_blocks: int, weights: tf.Tensor) -> tf.Tensor:
        """Drops attention weights [B * num_blocks, N, T, S].

        Random numbers depend on the example, so the blocks of an example are put together first.
        """
        rate, form = self.p.dropout_rate, self.p.dropout_form
        if num_blocks == 1:
            return dropout(self, weights, rate=rate, form=form)
        examples = tf.reshape(weights, [-1, num_blocks, *weights.shape[1:]])
        examples = dropout(self, examples, rate=rate, form=form)
        return tf.reshape(examples, tf.shape(weights))

    def _output(self, averages: tf.Tensor) -> tf.Tensor:
        """Projects the averages of the heads, [B, T, N, H], to [B, T, D]."""
        averages = annotate(averages, "batch", "length", "heads", "head_dim")
        out = tf.einsum("btnh,nhd->btd", *self.operands("w_output", input=averages))
        if self._has_output_bias:
            out += self.b_output
        return annotate(out, "batch", "length", "embed")

    def _flops(self, *, queries: int, keys: int, pairs: int) -> int:
        """Returns the operations for given numbers of queries, of keys, and of computed logits.

        `pairs` is the number of query-key pairs that a logit is computed for, per head.
        """
        p = self.p
        features = 2 * queries * p.dim * p.num_heads
        features += 2 * keys * self._source_dim * self._num_kv_heads
        return 2 * self._head_dim * (features + 2 * pairs * p.num_heads)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        """Returns the tensors kept for the gradient.

        They are the scaled queries, the averages of values in two layouts, the keys, the values and
        the attention weights. Every device has the keys and values of all positions.
        """
        if len(call.shape) != 3:
            return super().residuals(call)
        batch, length, _ = call.shape
        num_keys = call.memory_length or length
        ends = ("embed", "head_dim")
        query, key = [s for s in self.declarations() if s.axes[::2] == ends][:2]
        keys = (batch, num_keys, *key.shape[1:])
        queries = Residual(1, (batch, length, *query.shape[1:]), (*SEQUENCE_AXES, "heads", None))
        values = Residual(1, keys, ("batch", None, key.axes[1], None))
        is_float = self._changes_queries_in_float32
        residuals = [
            queries._replace(is_read_in_float32=is_float),
            queries,
            queries._replace(is_elementwise=True),
            values._replace(is_read_in_float32=is_float),
            values,
        ]
        if self.p.qk_norm is not None:  # a norm keeps its input and its normalized input
            normed = Residual(2, keys, (*SEQUENCE_AXES, key.axes[1], None), is_elementwise=True)
            residuals += [queries._replace(copies=2, is_elementwise=True), normed]
        if not self.is_blockwise(length, num_keys):
            weights = (batch, query.shape[1], length, num_keys)
            names = ("batch", "heads", "length", None)
            kept = Residual(1, weights, names, is_squeezed=True, is_read_in_float32=True)
            residuals.append(kept)
            # the gradient of the softmax reads the weights before dropout, and the gradient of the
            # product reads them after dropout
            if self.p.dropout_rate > 0:
                residuals.append(kept._replace(is_elementwise=True))
        return residuals

    @property
    def _changes_queries_in_float32(self) -> bool:
        """Whether queries and keys are cast to float32 before the product that computes logits.

        A norm or a rotation does so.
        """
        return self.p.qk_norm is not None


def weight_rounding(layer: Layer) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """Returns a function that rounds attention weights as a wrapper such as `Quantized` says.

    It is an argument of `attend`. None: no wrapper changes the attention weights.
    """
    if path.join(layer.path, "averages") not in context.current().operands:
        return None
    return lambda weights: layer.operands("averages", softmax=weights)[0]


def swap_heads(x: tf.Tensor) -> tf.Tensor:
    """Transposes positions and heads: [B, T, N, H] to [B, N, T, H], or back, any type."""
    return tf.transpose(x, [0, 2, 1, 3])


def within_documents(
    mask: tf.Tensor | None, query_segments: tf.Tensor | None, key_segments: tf.Tensor | None
) -> tf.Tensor | None:
    """Returns a mask that also hides the keys of other documents.

    Padding sees padding, so that every query has a key.

    Args:
        mask: bool [B or 1, T, S], true where a query sees a key. None, also as a result: all
            queries see all keys.
        query_segments: int32 [B, T], the document id of each query; None: one document.
        key_segments: int32 [B, S], the document id of each key; None: one document.
    """
    if query_segments is None or key_segments is None:
        return mask
    same = tf.equal(query_segments[:, :, None], key_segments[:, None, :])
    return same if mask is None else mask & same
