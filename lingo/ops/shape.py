"""Sizes and axes of tensors: sizes are ints where a trace knows them, else int32 scalars."""

from __future__ import annotations

from typing import Any

from lingo.config.lazy import tf


def size_of(x: tf.Tensor, axis: int) -> Any:
    """Returns the size of an axis: an int if it is known, else an int32 scalar."""
    known = x.shape[axis]
    return tf.shape(x)[axis] if known is None else known


def sizes_of(x: tf.Tensor) -> list[Any]:
    """Returns the sizes of all axes, each as `size_of` does."""
    dynamic: Any = None if x.shape.is_fully_defined() else tf.shape(x)
    return [dynamic[i] if known is None else known for i, known in enumerate(x.shape)]


def swap_leading_axes(x: tf.Tensor) -> tf.Tensor:
    """Returns a tensor with its first two axes exchanged."""
    return tf.transpose(x, [1, 0, *range(2, len(x.shape))])


def expand_like(x: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns a tensor with axes of size 1 added behind, to as many as another tensor has."""
    return tf.reshape(x, [*x.shape, *[1] * (len(other.shape) - len(x.shape))])
