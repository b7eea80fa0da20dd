"""Sizes are ints where they can be: shapes stay known, and fewer operations are computed."""

from __future__ import annotations

from typing import Any

from lingo.config.lazy import tf
from lingo.ops.shape import size_of, sizes_of


def test_known_sizes_are_ints_also_zero() -> None:
    x = tf.zeros([0, 3])
    assert sizes_of(x) == [size_of(x, 0), size_of(x, -1)] == [0, 3]
    assert all(type(known) is int for known in sizes_of(x))


def test_unknown_sizes_are_those_of_the_values() -> None:
    seen: list[Any] = []

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 3, None])])
    def found(x: tf.Tensor) -> list[Any]:
        seen.extend(sizes_of(x))
        return [*sizes_of(x), size_of(x, 0), size_of(x, -1)]

    assert [int(n) for n in found(tf.zeros([2, 3, 5]))] == [2, 3, 5, 2, 5]
    assert seen[1] == 3
    assert seen[0].dtype == tf.int32
