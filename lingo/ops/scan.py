"""Loops inside a program, with one copy of the body in the graph for any number of iterations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lingo.config.lazy import tf


def scan(
    body: Callable[[tf.Tensor, Any, Any], tuple[Any, Any]], carry: Any, xs: Any, num: Any
) -> tuple[Any, Any]:
    """Calls a body on each slice of the inputs in turn and passes a carry along, as `jax.lax.scan`.

    Slices are read through a TensorArray: with indexing, the time of the gradient would be
    quadratic in the number of iterations.

    Args:
        body: (int32 scalar iteration, carry, slice of xs) -> (carry, y); structures of tensors of
            fixed shapes. It is traced twice, or once if it is a `tf.function`; but XLA cannot
            differentiate a loop around a `tf.function`.
        carry: structure of tensors of any shape, before the first iteration.
        xs: structure of [num, ...] tensors, any type.
        num: number of iterations, an int or an int32 scalar tensor.

    Returns:
        The carry after the last iteration, and the y of all iterations, [num, ...] tensors.

    >>> last, sums = scan(lambda i, c, x: (c + x, c), 0, tf.constant([1, 2, 3]), 3)
    >>> int(last), sums.numpy()
    (6, array([0, 1, 3], dtype=int32))
    """
    if tf.executing_eagerly():  # tf.while_loop in a graph, not eagerly
        return tf.function(lambda c, x: scan(body, c, x, num), autograph=False)(carry, xs)
    carry = tf.nest.map_structure(tf.convert_to_tensor, carry)
    first = tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape[1:], v.dtype), xs)
    _, specs = output_specs(body, tf.constant(0), carry, first)
    xs = tf.nest.map_structure(lambda v: _array(v.dtype, num, v.shape[1:]).unstack(v), xs)
    ys = tf.nest.map_structure(lambda s: _array(s.dtype, num, s.shape), specs)

    def iterate(i: tf.Tensor, carry: Any, ys: Any) -> tuple[Any, Any, Any]:
        carry, y = body(i, carry, tf.nest.map_structure(lambda a: a.read(i), xs))
        return i + 1, carry, tf.nest.map_structure(lambda a, v: a.write(i, v), ys, y)

    start = (tf.constant(0), carry, ys)
    _, carry, ys = tf.while_loop(
        lambda i, *_: i < num,
        iterate,
        start,
        parallel_iterations=1,  # by default the inner values of ten iterations would be in memory
        maximum_iterations=num,
    )
    return carry, tf.nest.map_structure(lambda a: a.stack(), ys)


def _array(dtype: tf.DType, num: Any, shape: tf.TensorShape) -> tf.TensorArray:
    return tf.TensorArray(dtype, num, element_shape=shape, clear_after_read=False)


def accumulate(part: Callable[[Any], Any], inputs: Any, num: int) -> Any:
    """Returns the sum of a function's outputs over slices, one slice's outputs in memory at a time.

    It is for summing gradients over micro-batches, and is not meant to be differentiated.

    Args:
        part: slice of the inputs -> structure of tensors of any shape.
        inputs: structure of [num, ...] tensors, any type.
        num: number of slices.

    >>> float(accumulate(tf.square, tf.constant([1.0, 2.0, 3.0]), 3))
    14.0
    """
    first = tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape[1:], v.dtype), inputs)
    traced = tf.function(part, autograph=False)
    specs = output_specs(traced, first)
    zeros = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)

    def add(i: tf.Tensor, sums: Any, input: Any) -> tuple[Any, Any]:
        return tf.nest.map_structure(tf.add, sums, traced(input)), ()

    return scan(add, zeros, inputs, num)[0]


def output_specs(function: Any, *args: Any) -> Any:
    """Returns a function's outputs as symbolic tensors, with `shape` and `dtype`, uncomputed.

    Arguments may be of anything with `shape` and `dtype`; a `tf.function` keeps the trace.
    """
    specs = tf.nest.map_structure(lambda a: tf.TensorSpec(a.shape, a.dtype), args)
    if not hasattr(function, "get_concrete_function"):
        function = tf.function(function, autograph=False)
    return function.get_concrete_function(*specs).structured_outputs
