"""How a Transformer knows the order of its inputs.

`Rotary` and `RelativeBias` stand in `Attention.positions` and act on queries, keys and scores;
`LearnedPositions` stands in the model and is added to the embeddings. All take positions as numbers
within a document, so that two documents packed into one row read as if each stood alone.

Axes: B batch, T query positions, S key positions, D model width, N heads, H head width.
"""

from __future__ import annotations

import math

import numpy as np

from lingo.config.params import ParamError
from lingo.layers.initial import FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.lazy import tf
from lingo.ops.lookup import lookup


class AttentionPositions(Layer, kind=True):
    """What positions do to attention: turn queries and keys, or shift scores. Here, nothing."""

    def rotate(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Returns queries or keys that know their positions.

        Args:
            x: [B, T, N, H], any float type.
            positions: int32 [B, T] or [1, T].

        Returns:
            The shape and type of `x`.
        """
        del positions
        return x

    def bias(self, query_positions: tf.Tensor, key_positions: tf.Tensor) -> tf.Tensor | None:
        """Returns what is added to the scores.

        Args:
            query_positions: int32 [B, T] or [1, T].
            key_positions: int32 [B, S] or [1, S].

        Returns:
            float32 [B, N, T, S] or [1, N, T, S]; None for nothing.
        """
        del query_positions, key_positions


class Rotary(AttentionPositions):
    """Turns pairs of features by angles proportional to the position (Su et al. 2021, sec. 3.2.2).

    The score of a turned query and a turned key depends on the difference of their positions alone.
    Departs from the paper: feature i is paired with i + H/2, not with its neighbour, which only
    renames the features.
    """

    head_dim: int  # H, even; the attention offers it
    max_wavelength: float = 10_000.0  # positions until the slowest pair has turned once, over 2 pi

    def check(self) -> None:
        if self.p.head_dim % 2:
            raise ParamError(
                f"head_dim={self.p.head_dim} is odd; rotary positions turn pairs of features"
            )
        if self.p.max_wavelength <= 0:
            raise ParamError(f"max_wavelength={self.p.max_wavelength} is not positive")

    def rotate(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        half = self.p.head_dim // 2
        frequencies = self.p.max_wavelength ** (-np.arange(half, dtype=np.float64) / half)
        angles = tf.cast(positions, tf.float32)[:, :, None, None] * frequencies.astype(np.float32)
        cos, sin = tf.cos(angles), tf.sin(angles)
        first, second = tf.split(tf.cast(x, tf.float32), 2, axis=-1)
        turned = tf.concat([first * cos - second * sin, second * cos + first * sin], axis=-1)
        return tf.cast(turned, x.dtype)


class RelativeBias(AttentionPositions):
    """Adds a trained number per head and range of distances (Raffel et al. 2020, sec. 2.1).

    The ranges are those of T5 for a model that looks back only: half of the buckets hold one
    distance each, the others grow geometrically up to `max_distance`; the last holds all beyond.

    Weights:
        table: [num_buckets, N], at first of variance 1/N, as in T5.
    """

    num_heads: int  # N; the attention offers it
    num_buckets: int = 32  # number of ranges of distances
    max_distance: int = 128  # where the ranges end
    init: Initializer = FanIn  # of the table

    def check(self) -> None:
        p = self.p
        if p.num_buckets < 2 or p.max_distance <= p.num_buckets // 2:
            raise ParamError(
                f"num_buckets={p.num_buckets} needs to be at least 2 and"
                f" max_distance={p.max_distance} more than half of it"
            )

    def setup(self) -> None:
        self.table = self.weight(
            "table",
            [self.p.num_buckets, self.p.num_heads],
            axes=(None, "heads"),
            init=self.p.init.build(),
            fan_in=self.p.num_heads,
            dtype="float32",
        )

    def bias(self, query_positions: tf.Tensor, key_positions: tf.Tensor) -> tf.Tensor:
        buckets = distance_buckets(self.p.num_buckets, self.p.max_distance)
        by_distance = tf.gather(self.table, buckets)
        distance = query_positions[:, :, None] - key_positions[:, None, :]
        distance = tf.clip_by_value(distance, 0, len(buckets) - 1)
        return tf.transpose(tf.gather(by_distance, distance), [0, 3, 1, 2])


def distance_buckets(num_buckets: int, max_distance: int) -> np.ndarray:
    """Returns T5's bucket of each distance that looks back.

    Distance n below half = num_buckets // 2 has a bucket of its own; n >= half has bucket
    half + floor(log(n / half) / log(max_distance / half) * (num_buckets - half)), at most the last.

    Args:
        num_buckets: how many buckets.
        max_distance: the distance from which on the last bucket holds all.

    Returns:
        int32 [max_distance + 1].
    """
    half = num_buckets // 2
    distance = np.arange(max_distance + 1)
    growth = np.log(np.maximum(distance, half) / half) / math.log(max_distance / half)
    # rounding must not push a distance that begins a bucket into the one before
    far = half + np.floor(growth * (num_buckets - half) + 1e-9).astype(np.int32)
    return np.where(distance < half, distance, np.minimum(far, num_buckets - 1)).astype(np.int32)


class LearnedPositions(Layer):
    """A trained vector for each position, added to the embeddings (Gehring et al. 2017, sec. 3.1).

    Weights:
        table: [max_length, D], at first of variance 1/D.
    """

    max_length: int  # number of positions; longer inputs are refused
    dim: int  # D, width of the vectors
    init: Initializer = FanIn  # of the table

    def setup(self) -> None:
        self.table = self.weight(
            "table",
            [self.p.max_length, self.p.dim],
            axes=(None, "embed"),
            init=self.p.init.build(),
            fan_in=self.p.dim,
        )

    def __call__(self, positions: tf.Tensor) -> tf.Tensor:
        """Looks up vectors.

        Args:
            positions: int32 [B, T], each below `max_length`.

        Returns:
            [B, T, D], in the layer's dtype.

        Raises:
            ValueError: if T is more than `max_length`.
        """
        length = positions.shape[1]
        if length is not None and length > self.p.max_length:
            raise ValueError(f"{self.path}: {length} positions, but max_length={self.p.max_length}")
        return lookup(self.table, positions)
