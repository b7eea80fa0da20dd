"""Loops inside a program: one copy of the body in the graph, whatever the number of turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lingo.config.lazy import tf


def scan(
    body: Callable[[tf.Tensor, Any, Any], tuple[Any, Any]], carry: Any, inputs: Any, num: Any
) -> tuple[Any, Any]:
    """Calls a body on one slice of the inputs after the other; it hands on a carry.

    Slices are read through a TensorArray: indexing the inputs makes the gradient quadratic in the
    number of turns.

    Args:
        body: (int32 turn, carry, slice of the inputs) -> (carry, outputs); structures of tensors of
            fixed shapes. It is traced twice, a `tf.function` once; but XLA cannot differentiate a
            loop around a `tf.function`.
        carry: before the first turn.
        inputs: structure of [num, ...] tensors.
        num: number of turns, an int or an int32 scalar tensor.

    Returns:
        The carry after the last turn, and the outputs of all turns stacked along a new first axis.
    """
    if tf.executing_eagerly():  # the body is traced either way
        return tf.function(lambda c, x: scan(body, c, x, num), autograph=False)(carry, inputs)
    carry = tf.nest.map_structure(tf.convert_to_tensor, carry)
    first = tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape[1:], v.dtype), inputs)
    _, specs = output_specs(body, tf.constant(0), carry, first)
    arrays = tf.nest.map_structure(lambda v: _array(v.dtype, num, v.shape[1:]).unstack(v), inputs)
    kept = tf.nest.map_structure(lambda s: _array(s.dtype, num, s.shape), specs)

    def turn(i: tf.Tensor, carry: Any, kept: Any) -> tuple[Any, Any, Any]:
        carry, outputs = body(i, carry, tf.nest.map_structure(lambda a: a.read(i), arrays))
        return i + 1, carry, tf.nest.map_structure(lambda a, v: a.write(i, v), kept, outputs)

    start = (tf.constant(0), carry, kept)
    _, carry, kept = tf.while_loop(
        lambda i, *_: i < num,
        turn,
        start,
        parallel_iterations=1,  # else ten turns at a time hold their inner values
        maximum_iterations=num,
    )
    return carry, tf.nest.map_structure(lambda a: a.stack(), kept)


def _array(dtype: tf.DType, num: Any, shape: tf.TensorShape) -> tf.TensorArray:
    return tf.TensorArray(dtype, num, element_shape=shape, clear_after_read=False)


def accumulate(part: Callable[[Any], Any], inputs: Any, num: int) -> Any:
    """Returns the sum of what a body puts out, holding one turn's outputs at a time.

    No gradient goes through it: it is for adding gradients up.

    Args:
        part: slice of the inputs -> structure of tensors.
        inputs: structure of [num, ...] tensors.
        num: number of turns.
    """
    first = tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape[1:], v.dtype), inputs)
    traced = tf.function(part, autograph=False)
    specs = output_specs(traced, first)
    zeros = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)

    def add(i: tf.Tensor, sums: Any, input: Any) -> tuple[Any, Any]:
        del i
        return tf.nest.map_structure(tf.add, sums, traced(input)), ()

    return scan(add, zeros, inputs, num)[0]


def output_specs(function: Any, *args: Any) -> Any:
    """Returns the structure of a function's outputs, without computing them.

    Args:
        function: of tensors and structures of tensors; a `tf.function` keeps the trace.
        *args: tensors, or anything with `shape` and `dtype`.

    Returns:
        The outputs' structure, of symbolic tensors whose shape and dtype can be read.
    """
    specs = tf.nest.map_structure(lambda a: tf.TensorSpec(a.shape, a.dtype), args)
    if not hasattr(function, "get_concrete_function"):
        function = tf.function(function, autograph=False)
    return function.get_concrete_function(*specs).structured_outputs
