"""Attention that computes logits block by block: memory grows with the length, not its square.

The softmax over all keys is merged from softmaxes over blocks of keys (Milakov and Gimelshein 2018;
Rabe and Staats 2021), and the gradient computes the logits again (Dao et al. 2022). Blocks that a
band hides are skipped. A mask is added only in blocks where it may hide a key.

Axes: B batch, T query positions, S key positions, N query heads, K key heads, G = N / K, H head
width, Q positions of a block of queries, R positions of a block of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lingo.config.lazy import tf
from lingo.ops.blocks import BlockGrid, add_block, block_array, loop, zero_blocks
from lingo.ops.random import Part
from lingo.ops.shape import size_of


class BlockSize(NamedTuple):
    """The most query positions and key positions that a block of logits may have."""

    queries: int
    keys: int


_SQUARE = BlockSize(512, 512)  # for XLA, and where a band hides some blocks
_ROWS = BlockSize(256, 16384)  # a block usually has all keys, so there is nothing to merge


class Band(NamedTuple):
    """How many positions before and after its own position a query may see; None: all of them."""

    num_before: int | None = None
    num_after: int | None = None


class Logits(NamedTuple):
    """How the products of queries and keys become logits.

    Attributes:
        band: which keys a query sees, by their distance alone. Each query has to see a key.
        mask: (query inputs, key inputs) -> bool [B or 1, Q, R], True where a query sees a key;
            None: no mask.
        bias: (query inputs, key inputs, weights) -> float32 [B or 1, N, Q, R], added to the logits;
            None: no bias.
        weights: structure of float32 tensors: the trainable weights that `bias` uses. They get a
            gradient.
        query_inputs: structure of [B or 1, T] tensors, any type; `mask` and `bias` get one block of
            each.
        key_inputs: like `query_inputs`, for keys: [B or 1, S] tensors.
        logit_cap: C; a logit s becomes C tanh(s / C) before the bias.
    """

    band: Band = Band()
    mask: Callable[[Any, Any], Any] | None = None
    bias: Callable[[Any, Any, Any], Any] | None = None
    weights: Any = ()
    query_inputs: Any = ()
    key_inputs: Any = ()
    logit_cap: float | None = None


_PLAIN = Logits()


def attend_blockwise(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    *,
    logits: Logits = _PLAIN,
    dropout: Callable[[tf.Tensor, Part], tf.Tensor] | None = None,
    block: BlockSize | None = None,
    compiled: bool = False,
) -> tf.Tensor:
    """Computes `lingo.ops.attention.attend` block by block.

    Args:
        query: [B, N, T, H], any float type, already multiplied by the scale; T static.
        key: [B, K, S, H], same type; S static.
        value: [B, K, S, H], same type.
        logits: masks, bias and cap of the logits. Gradients flow into its `weights`, but not into
            other tensors that its functions use.
        dropout: (attention weights of a block, the block's `Part` of [T, S]) -> attention weights
            after dropout, float32 [B, N, Q, R]. It may only multiply each weight by a factor that
            does not depend on the weights.
        block: the size of blocks of logits; None: the fastest size on CPUs.
        compiled: whether XLA compiles the program. With XLA, other block sizes and other forms of
            the products are fastest.

    Returns:
        [B, N, T, H], the type of `value`.

    >>> query, key = tf.ones([1, 1, 3, 2]), tf.ones([1, 1, 3, 2])
    >>> value = tf.constant([[[[1.0], [2.0], [6.0]]]])
    >>> causal = Logits(band=Band(num_after=0))
    >>> attend_blockwise(query, key, value, logits=causal, block=BlockSize(3, 2)).numpy().ravel()
    array([1. , 1.5, 3. ], dtype=float32)
    """
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    weights = [tf.convert_to_tensor(w) for w in tf.nest.flatten(logits.weights)]
    if block is None:
        block = _SQUARE if compiled or logits.band != Band() else _ROWS

    @tf.custom_gradient
    def compute(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, *weights: tf.Tensor) -> Any:
        blocks = _Blocks((query, key, value), logits, dropout, block, compiled)
        result, peaks, totals = blocks.average(weights)

        def backward(gradient: tf.Tensor) -> Any:
            return blocks.gradients(gradient, result, peaks, totals, weights)

        return result, backward

    return compute(query, key, value, *weights)


class _Blocks:
    """One call of `attend_blockwise`, with queries as [B, K, G, T, H]."""

    def __init__(
        self, qkv: Sequence[Any], logits: Logits, dropout: Any, most: BlockSize, compiled: bool
    ) -> None:
        query, key, value = qkv
        self.logits, self.dropout, self.compiled = logits, dropout, compiled
        self.num_heads, self.num_groups = size_of(query, 1), size_of(key, 1)
        self.group_size = self.num_heads // self.num_groups
        self.queries = BlockGrid(query.shape[2], most.queries)
        self.keys = BlockGrid(key.shape[2], most.keys)
        self.query = self._split_heads(query)
        self.key, self.value = self.keys.pad(key, 2), self.keys.pad(value, 2)
        self.query_inputs = tf.nest.map_structure(
            lambda x: self.queries.pad(x, 1), logits.query_inputs
        )
        self.key_inputs = tf.nest.map_structure(lambda x: self.keys.pad(x, 1), logits.key_inputs)

    def average(self, weights: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the attention's result, [B, N, T, H], and each query's peak and total.

        A query's peak is its greatest logit, and its total is the sum of exp(logit - peak). Peaks
        and totals are float32 [B, K, G, T, 1].
        """

        def attend_block(i: Any, outs: Any) -> Any:
            query = self._fold(self.queries.block(self.query, i, 3))

            def add_keys(j: Any, state: Any, *, masked: bool) -> Any:
                key, value = (self.keys.block(x, j, 2) for x in (self.key, self.value))
                product = tf.matmul(query, key, transpose_b=True)
                logits, _ = self._logits(product, i, j, weights, masked)
                share = tf.nn.softmax(logits)  # within the block
                peak, total = self._peaks_and_totals(logits, share)
                if self.dropout is not None:
                    share = share * self._factors(i, j)
                average = tf.cast(tf.matmul(tf.cast(share, value.dtype), value), tf.float32)
                block = peak, total, average * total
                return block if self.keys.count == 1 else _merge(state, block)

            empty = tf.zeros_like(query[:, :, :, :1], tf.float32)
            state = (empty + tf.float32.min, empty, empty * tf.zeros([size_of(self.value, 3)]))
            peak, total, sums = self._over_keys(i, add_keys, state)
            results = (tf.cast(sums / total, self.value.dtype), peak, total)
            return [out.write(i, self._unfold(x)) for out, x in zip(outs, results, strict=True)]

        dtypes = self.value.dtype, tf.float32, tf.float32
        arrays = [block_array(dtype, self.queries.count) for dtype in dtypes]
        outs = loop(0, self.queries.count, attend_block, arrays)
        result, peaks, totals = (self.queries.join(out, 3) for out in outs)
        return self._join_heads(result), peaks, totals

    def gradients(
        self, gradient: tf.Tensor, result: tf.Tensor, peaks: Any, totals: Any, weights: Any
    ) -> list[tf.Tensor]:
        """Returns the gradients of queries, keys, values and weights.

        To subtract a number from each row of a matrix product, one factor gets the negative numbers
        as an additional feature, and the other factor gets ones. The product then subtracts the
        numbers itself, which saves a pass over the block.
        """
        dtype = self.query.dtype
        gradient, result = (tf.cast(x, tf.float32) for x in (gradient, result))
        inner = tf.reduce_sum(gradient * result, axis=-1, keepdims=True)
        gradient, inner = self._split_heads(gradient), self._split_heads(inner)
        totals = self.queries.pad(totals - 1.0, 3) + 1.0  # 1 at padding
        gradient, inner = gradient / totals, inner / totals
        peaks = self.queries.pad(peaks, 3)
        exact = dtype != tf.bfloat16 and dtype != tf.float16
        fold_peak = exact and self.logits.logit_cap is None and self.keys.count > 1
        fold_inner = exact and self.dropout is None
        query = tf.concat([self.query, -tf.cast(peaks, dtype)], -1) if fold_peak else self.query
        key = _append_ones(self.key) if fold_peak else self.key
        upward = tf.cast(gradient, dtype)
        upward_more = tf.concat([upward, -tf.cast(inner, dtype)], -1) if fold_inner else upward
        value = _append_ones(self.value) if fold_inner else self.value
        parts = [query, self.query, upward_more, upward, peaks, inner]

        def differentiate_block(i: Any, state: Any) -> Any:
            query, query_only, upward_more, upward, peak, inner = (
                self._fold(self.queries.block(x, i, 3)) for x in parts
            )

            def add_keys(j: Any, state: Any, *, masked: bool) -> Any:
                d_query, d_keys, d_values, d_weights = state
                keys = [self.keys.block(x, j, 2) for x in (key, self.key, value)]
                product = tf.matmul(query, keys[0], transpose_b=True)
                logits, slope = self._logits(product, i, j, weights, masked)
                if self.keys.count == 1:
                    share = tf.nn.softmax(logits)
                else:
                    share = tf.exp(logits if fold_peak else logits - peak)
                factors = None if self.dropout is None else self._factors(i, j)
                kept = share if factors is None else share * factors
                d_logits = tf.cast(tf.matmul(upward_more, keys[2], transpose_b=True), tf.float32)
                if factors is not None:
                    d_logits *= factors
                d_logits = share * (d_logits if fold_inner else d_logits - inner)
                d_weights = self._add_bias_gradients(d_weights, d_logits, i, j, weights)
                if slope is not None:
                    d_logits *= slope
                kept, d_logits = tf.cast(kept, dtype), tf.cast(d_logits, dtype)
                d_query += tf.cast(tf.matmul(d_logits, keys[1]), tf.float32)
                d_keys = add_block(d_keys, j, self._sum_over_queries(d_logits, query_only))
                d_values = add_block(d_values, j, self._sum_over_queries(kept, upward))
                return d_query, d_keys, d_values, d_weights

            d_queries, *sums = state
            first = (tf.zeros_like(query_only, tf.float32), *sums)
            d_query, *sums = self._over_keys(i, add_keys, first)
            return [d_queries.write(i, self._unfold(tf.cast(d_query, dtype))), *sums]

        sums = [
            zero_blocks(self.keys.count, self.keys.block(x, 0, 2)) for x in (self.key, self.value)
        ]
        d_weights = [tf.zeros_like(w) for w in weights]
        state = [block_array(dtype, self.queries.count), *sums, d_weights]
        state = loop(0, self.queries.count, differentiate_block, state)
        d_query, d_key, d_value, d_weights = state
        d_query = self._join_heads(self.queries.join(d_query, 3))
        d_key, d_value = (tf.cast(self.keys.join(x, 2), dtype) for x in (d_key, d_value))
        return [d_query, d_key, d_value, *d_weights]

    def _add_bias_gradients(self, sums: Any, d_logits: Any, i: Any, j: Any, weights: Any) -> Any:
        """Adds the gradients of the bias's weights, from one block of logit gradients, to sums."""
        if self.logits.bias is None or not weights:
            return sums
        with tf.GradientTape() as tape:
            tape.watch(list(weights))
            bias = self._bias(i, j, weights)
        if bias is None:
            return sums
        d_bias = tf.reshape(d_logits, [-1, self.num_heads, self.queries.size, self.keys.size])
        if bias.shape[0] == 1:
            d_bias = tf.reduce_sum(d_bias, axis=0, keepdims=True)
        gradients = tape.gradient([bias], list(weights), output_gradients=[d_bias])
        return [
            s if g is None else s + tf.convert_to_tensor(g)
            for s, g in zip(sums, gradients, strict=True)
        ]

    # ---- blocks ----------------------------------------------------------------------------------

    def _over_keys(self, i: Any, body: Callable[..., Any], state: Any) -> Any:
        """Calls the body on the blocks of keys that a block of queries may see."""
        (before, after), size, count = self.logits.band, self.keys.size, self.keys.count
        begin = i * self.queries.size
        start, stop = 0, count
        free = self.keys.length // size  # the first block with a key that a query must not see
        if before is not None:
            start = tf.minimum(tf.maximum(0, begin - before) // size, count - 1)
            free = start
        if after is not None:
            stop = tf.minimum(count, (begin + self.queries.size + after + size - 1) // size)
            stop = tf.maximum(stop, start + 1)
            free = tf.maximum(start, tf.minimum(free, (begin + after + 1) // size))
        if isinstance(free, int) and free == count:
            return loop(start, count, lambda j, s: body(j, s, masked=False), state)
        if before is None:
            state = loop(start, free, lambda j, s: body(j, s, masked=False), state)
        return loop(free, stop, lambda j, s: body(j, s, masked=True), state)

    def _logits(
        self, product: tf.Tensor, i: Any, j: Any, weights: Any, masked: bool
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Turns the product of a block's queries and keys into logits.

        Returns the logits, float32 [B, K, G Q, R], and the derivative of the logit cap, in the same
        shape, or None without a cap.
        """
        logits, slope, cap = tf.cast(product, tf.float32), None, self.logits.logit_cap
        if cap is not None:
            tanh = tf.tanh(logits / cap)
            logits, slope = cap * tanh, 1.0 - tf.square(tanh)
        terms = []
        bias = self._bias(i, j, weights)
        if bias is not None:
            terms.append(tf.reshape(bias, [-1, self.num_groups, self.group_size, *bias.shape[2:]]))
        mask = None if self.logits.mask is None else self.logits.mask(*self._inputs(i, j))
        if masked or mask is not None:
            terms.append(self._hide(mask, i, j, masked=masked)[:, None, None])
        if not terms:
            return logits, slope
        shape, static = tf.shape(logits), logits.shape
        split = [self.num_groups, self.group_size, self.queries.size, self.keys.size]
        logits = tf.reshape(logits, [-1, *split])
        for term in terms:
            logits += term
        return tf.ensure_shape(tf.reshape(logits, shape), static), slope

    def _peaks_and_totals(self, logits: tf.Tensor, share: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the greatest logit of each query, and the sum of exp(logit - greatest).

        `share` is the softmax of the logits. Its maximum is 1 / sum, which takes less time than exp
        and a sum. If one block has all keys, neither result is needed, and they are 0 and 1.
        """
        if self.keys.count == 1:
            zeros = tf.zeros_like(share[:, :, :, :1])
            return zeros, zeros + 1.0
        peak = tf.reduce_max(logits, axis=-1, keepdims=True)
        return peak, 1.0 / tf.reduce_max(share, axis=-1, keepdims=True)

    def _sum_over_queries(self, block: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        """Multiplies the transpose of [B, K, G Q, R] by [B, K, G Q, H]."""
        if self.compiled:  # XLA on CPUs transposes x and the result in less time than the block
            return tf.linalg.matrix_transpose(tf.matmul(x, block, transpose_a=True))
        return tf.matmul(block, x, transpose_a=True)

    def _hide(self, mask: Any, i: Any, j: Any, *, masked: bool) -> tf.Tensor:
        """Returns the term, [B or 1, Q, R], that hides padding and keys outside mask or band."""
        sees = tf.ones([1, 1, 1], tf.bool) if mask is None else mask
        if not masked:
            return tf.where(sees, 0.0, tf.float32.min)
        query = tf.range(self.queries.size)[:, None] + i * self.queries.size
        key = tf.range(self.keys.size)[None] + j * self.keys.size
        before, after = self.logits.band
        if before is not None:
            sees &= query - key <= before
        if after is not None:
            sees &= key - query <= after
        terms = tf.where(sees, 0.0, tf.float32.min)  # one term: two would add up to -inf
        return tf.where(key < self.keys.length, terms, -float("inf"))

    def _inputs(self, i: Any, j: Any) -> tuple[Any, Any]:
        return (
            tf.nest.map_structure(lambda x: self.queries.block(x, i, 1), self.query_inputs),
            tf.nest.map_structure(lambda x: self.keys.block(x, j, 1), self.key_inputs),
        )

    def _bias(self, i: Any, j: Any, weights: Any) -> Any:
        if self.logits.bias is None:
            return None
        packed = tf.nest.pack_sequence_as(self.logits.weights, list(weights))
        return self.logits.bias(*self._inputs(i, j), packed)

    def _factors(self, i: Any, j: Any) -> tf.Tensor:
        """Returns the factors by which dropout multiplies a block of weights."""
        q, r = self.queries.size, self.keys.size
        part = Part((i * q, j * r), (self.queries.length, self.keys.length))
        ones = tf.ones([size_of(self.query, 0), self.num_heads, q, r])
        return tf.reshape(self.dropout(ones, part), [-1, self.num_groups, self.group_size * q, r])

    def _split_heads(self, x: tf.Tensor) -> tf.Tensor:
        """Reshapes and pads [B, N, T, ...] to [B, K, G, padded T, ...]."""
        x = tf.reshape(x, [-1, self.num_groups, self.group_size, x.shape[2], x.shape[3]])
        return self.queries.pad(x, 3)

    def _join_heads(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(x, [-1, self.num_heads, x.shape[3], x.shape[4]])

    def _fold(self, x: tf.Tensor) -> tf.Tensor:
        """Reshapes [B, K, G, Q, ...] to [B, K, G Q, ...]."""
        return tf.reshape(x, [-1, self.num_groups, self.group_size * x.shape[3], x.shape[4]])

    def _unfold(self, x: tf.Tensor) -> tf.Tensor:
        shape = [-1, self.num_groups, self.group_size, self.queries.size, x.shape[3]]
        return tf.reshape(x, shape)


def _merge(first: Any, second: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Merges the (greatest logits, sums, weighted sums) of two sets of keys."""
    peak = tf.maximum(first[0], second[0])
    a, b = tf.exp(first[0] - peak), tf.exp(second[0] - peak)
    return peak, first[1] * a + second[1] * b, first[2] * a + second[2] * b


def _append_ones(x: tf.Tensor) -> tf.Tensor:
    return tf.concat([x, tf.ones_like(x[:, :, :, :1])], axis=-1)
