"""Sizes and axes of tensors of any type. Sizes are ints if they are static, else int32 scalars."""

from __future__ import annotations

from typing import Any

from lingo.config.lazy import tf


def size_of(x: tf.Tensor, axis: int) -> Any:
    """Returns the size of an axis of a tensor: an int if it is static, else an int32 scalar.

    >>> size_of(tf.zeros([2, 3]), 1)
    3
    """
    known = x.shape[axis]
    return tf.shape(x)[axis] if known is None else known


def sizes_of(x: tf.Tensor) -> list[Any]:
    """Returns the sizes of all axes, each as `size_of` returns it.

    >>> sizes_of(tf.zeros([2, 3]))
    [2, 3]
    """
    dynamic: Any = None if x.shape.is_fully_defined() else tf.shape(x)
    return [dynamic[i] if known is None else known for i, known in enumerate(x.shape)]


def swap_leading_axes(x: tf.Tensor) -> tf.Tensor:
    """Transposes [A, B, ...] to [B, A, ...].

    >>> swap_leading_axes(tf.constant([[1, 2], [3, 4]])).numpy()
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    return tf.transpose(x, [1, 0, *range(2, len(x.shape))])


def expand_like(x: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Appends axes of size 1 to x until it has the rank of `other`: [*x.shape, 1, ...].

    >>> expand_like(tf.zeros([2]), tf.zeros([2, 3, 4])).shape.as_list()
    [2, 1, 1]
    """
    return tf.reshape(x, [*x.shape, *[1] * (len(other.shape) - len(x.shape))])
