"""Position encodings, in attention or added to the embeddings.

`Rotary`, `RelativeBias` and `Alibi` are values of `Attention.positions` and act on queries, keys
and logits. `LearnedPositions` and `SinusoidPositions` belong to the model, which adds their vectors
to the embeddings. All take position ids within a document, so that two documents packed into one
example are computed as if each were alone.

Axes: B batch, T query positions, S key positions, D model width, N heads, H head width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.initial import FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.residual import Residual, ResidualCall
from lingo.layers.sequence.rotary_scaling import RotaryScaling, rotary_frequencies
from lingo.ops.lookup import lookup


class AttentionPositions(Layer, interface=True):
    """A position encoding in attention: rotates queries and keys, or adds a bias to the logits.

    A subclass defines `rotate` or `bias`; by default both have no effect. A subclass whose bias
    depends on the queries sets `reads_queries` and defines `split_queries`, `query_bias`,
    `query_features` and `key_features` instead of `bias`.
    """

    reads_queries: ClassVar[bool] = False
    """Whether the bias depends on the queries; then `query_bias` replaces `bias`."""

    def rotate(self, heads: Sequence[tf.Tensor], position_ids: tf.Tensor) -> list[tf.Tensor]:
        """Returns queries and keys rotated by angles that depend on their positions.

        `heads` are queries and keys, [B, T, heads, H] each, any float type. `position_ids` are
        int32 [B or 1, T].
        """
        return list(heads)

    def bias(self, query_positions: tf.Tensor, key_positions: tf.Tensor, table: Any = None) -> Any:
        """Returns the bias that is added to the logits, float32 [B or 1, N, T, S]; None: no bias.

        Args:
            query_positions: int32 [B or 1, T], position ids.
            key_positions: int32 [B or 1, S], position ids.
            table: float32 [num_buckets, N], the table of `RelativeBias(shared=True)`, which the
                model passes to all layers that share it.
        """
        return None

    def split_queries(self, query: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the queries that meet keys, and the queries that `query_bias` reads.

        `query` and both results are [B, T, N, H], any float type.
        """
        raise NotImplementedError(f"{type(self).__name__} has no split_queries")

    def query_bias(
        self, query: tf.Tensor, query_positions: tf.Tensor, key_positions: tf.Tensor
    ) -> tf.Tensor:
        """Returns the bias that is added to the logits, float32 [B, N, T, S].

        `query`, [B, N, T, H] of the layer's dtype, is the second result of `split_queries`, times
        the scale of the logits. Positions are as for `bias`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no query_bias")

    def query_features(self, query: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Returns features of queries, [B, N, T, F]; their products with keys' are `query_bias`.

        Arguments are as for `query_bias`. Attention by blocks of logits needs this form.
        """
        raise NotImplementedError(f"{type(self).__name__} has no query_features")

    def key_features(self, positions: tf.Tensor) -> tf.Tensor:
        """Returns features of keys at `positions`, [B or 1, 1, S, F]; int32 [B or 1, S]."""
        raise NotImplementedError(f"{type(self).__name__} has no key_features")

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []


class Rotary(AttentionPositions):
    """Rotates feature pairs by angles proportional to the position (Su et al. 2021, sec. 3.2.2).

    The logit of a rotated query and a rotated key depends on their positions only through the
    difference. Departs from the paper: feature i is paired with feature i + H/2 instead of its
    neighbour; this only reorders the features.
    """

    head_dim: int  # H, even; inherited from the attention
    # the slowest pair makes a full turn in about 2 pi * max_wavelength positions (RoPE's theta)
    max_wavelength: float = 10_000.0
    fraction: float = 1.0  # share of the pairs that rotate; other pairs ignore the position
    # change of the frequencies, for texts longer than in an earlier training; None: unchanged
    scaling: RotaryScaling | None = None

    def check(self) -> None:
        p = self.p
        if p.head_dim % 2:
            raise ParamError(
                f"head_dim={p.head_dim} is odd; rotary positions turn pairs of features"
            )
        ranges.check_positive(p, "max_wavelength")
        if not 0 < p.fraction <= 1 or round(p.fraction * p.head_dim / 2) < 1:
            raise ParamError(
                f"fraction={p.fraction} of the {p.head_dim // 2} pairs of a head is less than one"
                " pair, or more than all"
            )

    def setup(self) -> None:
        self.scaling = self.p.scaling and self.p.scaling.build()

    def rotate(self, heads: Sequence[tf.Tensor], position_ids: tf.Tensor) -> list[tf.Tensor]:
        half = self.p.head_dim // 2
        angles = tf.cast(position_ids, tf.float32)[:, :, None, None] * self._frequencies()
        cos, sin = tf.cos(angles), tf.sin(angles)
        if self.scaling is not None:
            magnitudes = self._per_pair(self.scaling.magnitude(), 1.0)
            cos, sin = cos * magnitudes, sin * magnitudes
        cos, sin = tf.concat([cos, cos], axis=-1), tf.concat([-sin, sin], axis=-1)

        def rotate_pairs(x: tf.Tensor) -> tf.Tensor:
            y = tf.cast(x, tf.float32)
            # not axis=-1, for which vectorized_map rolls the wrong axis
            return tf.cast(y * cos + tf.roll(y, half, axis=3) * sin, x.dtype)

        return [rotate_pairs(x) for x in heads]

    def _frequencies(self) -> np.ndarray:
        """Returns for each feature pair its angle per position in radians, float32 [H/2]."""
        compute = rotary_frequencies if self.scaling is None else self.scaling.frequencies
        return self._per_pair(compute(self.p.max_wavelength, self._num_rotated), 0.0)

    def _per_pair(self, rotated: Any, other: float) -> np.ndarray:
        """Returns a number per pair, float32 [H/2].

        Pairs that rotate, which come first, have the numbers `rotated`; other pairs have `other`.
        """
        numbers = np.full(self.p.head_dim // 2, other)
        numbers[: self._num_rotated] = rotated
        return numbers.astype(np.float32)

    @property
    def _num_rotated(self) -> int:
        return round(self.p.fraction * (self.p.head_dim // 2))


class RelativeBias(AttentionPositions):
    """Adds a trained number per head and bucket of distances (Raffel et al. 2020, sec. 2.1).

    The buckets are T5's. In each direction, half of the buckets have one distance each, and the
    sizes of the other buckets grow geometrically up to `max_distance`. The last bucket also has all
    larger distances.

    Weights:
        table: [num_buckets, N], of initial variance 1/N, as in T5; not with `shared`.
    """

    num_heads: int  # N; inherited from the attention
    num_buckets: int = 32  # number of buckets, in both directions together
    max_distance: int = 128  # this distance and larger ones are in the last bucket
    # whether half of the buckets are for later keys; inherited from the attention
    bidirectional: bool = False
    shared: bool = False  # whether the layers of a stack read one table, which the model declares
    init: Initializer = FanIn  # of the table

    def check(self) -> None:
        p, directions = self.p, 2 if self.p.bidirectional else 1
        half = p.num_buckets // directions // 2
        if p.num_buckets % directions or half < 1 or p.max_distance <= half:
            raise ParamError(
                f"num_buckets={p.num_buckets} needs to be at least {2 * directions}"
                f"{' and even' if p.bidirectional else ''}, max_distance={p.max_distance} more"
                f" than {half}, the number of distances with a bucket each"
            )

    def setup(self) -> None:
        self.init = self.p.init.build()
        if not self.p.shared:
            self.table = self.declare_table(self, "table")

    def declare_table(self, owner: Layer, name: str) -> Any:
        """Declares the table, float32 [num_buckets, N], as the weight `name` of `owner`.

        The owner is this layer, or the model if layers share the table.
        """
        num_heads = self.p.num_heads
        return owner.weight(
            name,
            [self.p.num_buckets, num_heads],
            axes=(None, "heads"),
            init=self.init,
            fan_in=num_heads,
            dtype="float32",
        )

    def bias(
        self, query_positions: tf.Tensor, key_positions: tf.Tensor, table: Any = None
    ) -> tf.Tensor:
        if not self.p.shared:
            table = self.table
        elif table is None:
            raise ValueError(
                f"{self.path or 'positions'}: RelativeBias(shared=True) needs the table of its"
                " model as the input `position_table`: declare it in the model by `shared_table`"
            )
        farthest = self.p.max_distance
        nearest = -farthest if self.p.bidirectional else 0
        # heads come first, as a TPU pads the last axis of a tensor to 128 elements
        by_head, buckets = tf.transpose(table), self._buckets()
        queries, keys = map(consecutive, (query_positions, key_positions))
        if queries is not None and keys is not None:
            distances = np.arange(queries[-1] - keys[0], queries[0] - keys[-1] - 1, -1)
            buckets = buckets[np.clip(distances, nearest, farthest) - nearest]
            return diagonals(tf.gather(by_head, buckets, axis=1), len(queries), len(keys))[None]
        distance = query_positions[:, :, None] - key_positions[:, None, :]
        distance = tf.clip_by_value(distance, nearest, farthest) - nearest
        by_distance = tf.gather(by_head, buckets, axis=1)
        return tf.transpose(tf.gather(by_distance, distance, axis=1), [1, 0, 2, 3])

    def _buckets(self) -> np.ndarray:
        """Returns the bucket of each distance, int32 [number of distances], in ascending order.

        Distances are from 0 to `max_distance`, with `bidirectional` from -`max_distance`.
        """
        if not self.p.bidirectional:
            return distance_buckets(self.p.num_buckets, self.p.max_distance)
        half = self.p.num_buckets // 2
        past = distance_buckets(half, self.p.max_distance)
        return np.concatenate([half + past[:0:-1], past])


def consecutive(positions: Any) -> np.ndarray | None:
    """Returns positions as int32 [T] if they are constants and consecutive; else None.

    They must be the same for all examples, [1, T].
    """
    values = tf.get_static_value(positions)
    if values is None or len(values) > 1 or (np.diff(values) != 1).any():
        return None
    return values[0]


def diagonals(values: tf.Tensor, num_rows: int, num_columns: int) -> tf.Tensor:
    """Returns N matrices; all elements of a diagonal have the same value.

    No element is looked up, so that the gradient needs no scatter, which is slow on a TPU.

    Args:
        values: [N, rows + columns - 1], any type; the lowest diagonal's value comes first.
        num_rows: number of rows of each matrix.
        num_columns: number of columns of each matrix.

    Returns:
        [N, rows, columns], the type of `values`.

    >>> diagonals(tf.constant([[1, 2, 3, 4]]), 2, 3)[0].numpy()
    array([[2, 3, 4],
           [1, 2, 3]], dtype=int32)
    """
    number, size = values.shape[0], num_rows + num_columns - 1
    # rows of `size` elements, cut from copies of `size` + 1, shift by one from row to row
    copies = tf.tile(tf.pad(values, [(0, 0), (0, 1)]), [1, num_rows])
    rows = tf.reshape(copies[:, : num_rows * size], [number, num_rows, size])
    return rows[:, :, num_rows - 1 :]


def shared_table(model: Layer, name: str, stack: Layer) -> Any:
    """Declares, as a weight of the model, the table that the relative biases of a stack share.

    T5 has one table for all layers of the encoder, and one for all layers of the decoder (Raffel et
    al. 2020, sec. 2.1). `stack` is built. The model calls this in its `setup` and assigns the
    result to its attribute `name`. In a call, it passes this attribute, float32 [num_buckets, N],
    to the stack as the input `position_table`. The result is None if no bias of the stack has
    `shared=True`. Raises ParamError if biases that share the table have different params.
    """
    biases = sharing_biases(stack)
    for bias in biases[1:]:
        for field in ("num_heads", "num_buckets", "max_distance", "bidirectional"):
            expected, value = getattr(biases[0].p, field), getattr(bias.p, field)
            if value != expected:
                raise ParamError(
                    f"{bias.path} shares a table with {biases[0].path}, but has"
                    f" {field}={value} instead of {expected}; take shared=False in one of the two"
                )
    return biases[0].declare_table(model, name) if biases else None


def sharing_biases(layer: Layer) -> list[RelativeBias]:
    """Returns the `RelativeBias(shared=True)` layers among a built layer and the layers inside."""
    return [b for b in layer.tree() if isinstance(b, RelativeBias) and b.p.shared]


def distance_buckets(num_buckets: int, max_distance: int) -> np.ndarray:
    """Returns T5's bucket of each distance 0, 1, ... in one direction, int32 [max_distance + 1].

    With half = num_buckets // 2, a distance n < half has bucket n. A distance n >= half has bucket
    half + floor(log(n / half) / log(max_distance / half) * (num_buckets - half)), but at most the
    last bucket.
    """
    half = num_buckets // 2
    distance = np.arange(max_distance + 1)
    growth = np.log(np.maximum(distance, half) / half) / math.log(max_distance / half)
    # rounding must not move the first distance of a bucket into the bucket before
    far = half + np.floor(growth * (num_buckets - half) + 1e-9).astype(np.int32)
    return np.where(distance < half, distance, np.minimum(far, num_buckets - 1)).astype(np.int32)


class Alibi(AttentionPositions):
    """Subtracts the distance times the head's slope from each logit (Press et al. 2022, sec. 3).

    Head n of N, n = 1, 2, ..., has the slope 2^(-8 n / N). Departs from the paper: this formula
    holds for every N, not only for powers of two, and distances to later keys count like distances
    to earlier keys.
    """

    num_heads: int  # N; inherited from the attention

    def bias(
        self, query_positions: tf.Tensor, key_positions: tf.Tensor, table: Any = None
    ) -> tf.Tensor:
        num_heads = self.p.num_heads
        slopes = 2.0 ** (-8.0 * np.arange(1, num_heads + 1) / num_heads)
        distance = tf.abs(query_positions[:, :, None] - key_positions[:, None, :])
        return tf.cast(distance, tf.float32)[:, None] * -slopes.astype(np.float32)[:, None, None]


class LearnedPositions(Layer):
    """A trained vector for each position, added to the embeddings (Gehring et al. 2017, sec. 3.1).

    Weights:
        table: [max_length, D], of initial variance 1/D.
    """

    max_length: int  # number of positions in the table; longer inputs are an error
    dim: int  # D, width of the vectors
    init: Initializer = FanIn  # of the table

    positionwise = True

    def setup(self) -> None:
        p = self.p
        shape, axes = [p.max_length, p.dim], (None, "embed")
        self.table = self.weight("table", shape, axes=axes, init=p.init.build(), fan_in=p.dim)

    def __call__(self, position_ids: tf.Tensor) -> tf.Tensor:
        """Returns the vectors of positions, [B, T, D]; ids are int32 [B, T], below `max_length`.

        Raises ValueError if T is known and more than `max_length`.
        """
        length = position_ids.shape[1]
        if length is not None and length > self.p.max_length:
            raise ValueError(f"{self.path}: {length} positions, but max_length={self.p.max_length}")
        return lookup(self.table, position_ids)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []


class SinusoidPositions(Layer):
    """Sines and cosines of the position, added to the embeddings (Vaswani et al. 2017, sec. 3.5).

    The vectors are computed, not stored, so there is no largest length. Departs from the paper: all
    sines come first, then all cosines; this only reorders the features.
    """

    dim: int  # D, width of the vectors, even
    # the slowest wave has a period of about 2 pi * max_wavelength positions
    max_wavelength: float = 10_000.0
    # amplitude of each wave; give 1 / sqrt(D) if the model multiplies the sum of embeddings and
    # positions by sqrt(D)
    amplitude: float = 1.0

    positionwise = True

    def check(self) -> None:
        if self.p.dim % 2:
            raise ParamError(f"dim={self.p.dim} is odd; each wave has a sine and a cosine")
        ranges.check_positive(self.p, "max_wavelength", "amplitude")

    def __call__(self, position_ids: tf.Tensor) -> tf.Tensor:
        """Returns the vectors of positions, [B, T, D], in the layer's dtype; ids are int32 [B, T].

        With an amplitude of 1, the squared length of a vector is D/2.
        """
        half = self.p.dim // 2
        frequencies = self.p.max_wavelength ** (-np.arange(half) / half)
        angles = tf.cast(position_ids, tf.float32)[:, :, None] * frequencies.astype(np.float32)
        waves = tf.concat([tf.sin(angles), tf.cos(angles)], axis=-1)
        return tf.cast(waves * self.p.amplitude, self.p.dtype)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []
