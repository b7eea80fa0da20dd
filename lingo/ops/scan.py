"""Loops inside a program, with one copy of the body in the graph for any number of iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

from lingo.config.lazy import tf
from lingo.ops.scope import gradient_scope
from lingo.ops.shape import sizes_of


def scan(
    body: Callable[[tf.Tensor, Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any,
    num: Any,
    *,
    is_reversed: bool = False,
    outputs: Any = None,
) -> tuple[Any, Any]:
    """Calls a body on each slice of the inputs in turn and passes a carry along, as `jax.lax.scan`.

    Slices are read through a TensorArray: with indexing, the time of the gradient would be
    quadratic in the number of iterations.

    Args:
        body: (int32 scalar index, carry, slice of xs) -> (carry, y); structures of tensors of
            fixed shapes. The body is traced twice, and once more for each enclosing loop. It is
            traced only once if it is a `tf.function` or `outputs` is given. But XLA cannot
            differentiate a loop around a `tf.function`.
        carry: structure of tensors of any shape, before the first iteration.
        xs: structure of [num, ...] tensors, any type, or `unstack(xs, num)`.
        num: number of iterations, an int or an int32 scalar tensor.
        is_reversed: whether the first iteration has the last index, num - 1.
        outputs: specs of y: a structure like y, of values with `shape` and `dtype`. None: the body
            is traced to find them.

    Returns:
        The carry after the last iteration, and the stacked y of all indices, [num, ...] tensors.

    >>> last, sums = scan(lambda i, c, x: (c + x, c), 0, tf.constant([1, 2, 3]), 3)
    >>> int(last), sums.numpy()
    (6, array([0, 1, 3], dtype=int32))
    """
    if tf.executing_eagerly():  # runs tf.while_loop in a graph

        def loop(carry: Any, xs: Any) -> tuple[Any, Any]:
            return scan(body, carry, xs, num, is_reversed=is_reversed, outputs=outputs)

        return tf.function(loop, autograph=False)(carry, xs)
    carry = tf.nest.map_structure(tf.convert_to_tensor, carry)
    if is_for_shapes():
        carry, y = body(tf.constant(0), carry, tf.nest.map_structure(_first_slice, xs))
        return tf.nest.map_structure(tf.convert_to_tensor, carry), repeat_result(y, num)
    arrays = unstack(xs, num)
    if outputs is None:
        first = tf.nest.map_structure(_slice_spec, arrays)
        _, outputs = output_specs(body, tf.constant(0), carry, first)
    ys = tf.nest.map_structure(lambda s: _array(s.dtype, num, s.shape), outputs)

    def iterate(i: tf.Tensor, carry: Any, ys: Any) -> tuple[Any, Any, Any]:
        at = num - 1 - i if is_reversed else i
        carry, y = body(at, carry, tf.nest.map_structure(lambda a: a.read(at), arrays))
        return i + 1, carry, tf.nest.map_structure(lambda a, v: a.write(at, v), ys, y)

    start = (tf.constant(0), carry, ys)
    _, carry, ys = tf.while_loop(
        lambda i, *_: i < num,
        iterate,
        start,
        parallel_iterations=1,  # by default the inner values of ten iterations would be in memory
        maximum_iterations=num,
    )
    return carry, tf.nest.map_structure(lambda a: a.stack(), ys)


def unstack(xs: Any, num: Any) -> Any:
    """Converts a structure of [num, ...] tensors to arrays, from which `scan` reads slices.

    >>> arrays = unstack(tf.constant([1, 2, 3]), 3)
    >>> int(arrays.read(1))
    2
    """

    def array(value: tf.Tensor | tf.TensorArray) -> tf.TensorArray:
        if isinstance(value, tf.TensorArray):
            return value
        return _array(value.dtype, num, value.shape[1:]).unstack(value)

    return tf.nest.map_structure(array, xs)


def scan_recomputed(
    body: Callable[[tf.Tensor, Any, Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any,
    constants: Any,
    num: Any,
    *,
    arrays: Any = None,
) -> tuple[Any, Any]:
    """Computes `scan` with a gradient that calls the body again (Huang et al. 2019, sec. 2.3).

    The gradient keeps the carry of each iteration, and one copy of `xs` and `constants`. The
    gradient of `scan` would keep everything that an iteration computes or reads. This function
    corresponds to `jax.lax.scan(jax.checkpoint(body), ...)`. It calls the body once more per
    iteration.

    Args:
        body: (int32 scalar index, carry, slice of xs, constants) -> (carry, y), as in `scan`.
            Gradients flow to its arguments only, not to tensors that it captures, and it has to
            compute the same in each call: random numbers must be functions of its arguments.
        carry: structure of tensors of any shape and type, before the first iteration.
        xs: structure of [num, ...] tensors, any type.
        constants: structure of tensors of any shape and type, the same for all iterations. Their
            gradients are sums over iterations.
        num: number of iterations, an int or an int32 scalar tensor.
        arrays: `unstack(xs, num)`, called outside of an enclosing loop that does not change `xs`.
            When TensorFlow compiles, it tries to compute the tensors that a loop reads, which takes
            a byte for each element of large tensors. It does not try this with arrays.

    Returns:
        The carry after the last iteration, and the stacked y of all iterations, [num, ...] tensors.

    >>> w, xs = tf.constant(3.0), tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(w)
    ...     last, _ = scan_recomputed(lambda i, c, x, w: (w * c + x, ()), 0.0, xs, w, 2)
    >>> float(last), float(tape.gradient(last, w))  # w * 1.0 + 2.0
    (5.0, 1.0)
    """
    tensors = tf.nest.map_structure(tf.convert_to_tensor, (carry, xs, constants))
    structure: list[Any] = []

    @tf.custom_gradient
    def forward(*flat: tf.Tensor) -> Any:
        carry, xs, constants = tf.nest.pack_sequence_as(tensors, flat)
        scope = gradient_scope()

        def keep_carry(i: tf.Tensor, carry: Any, x: Any) -> tuple[Any, Any]:
            after, y = body(i, carry, x, constants)
            return after, (y, carry)

        slices = xs if arrays is None else arrays
        last, (ys, carries) = scan(keep_carry, carry, slices, num)
        results = tf.nest.flatten((last, ys))
        structure[:] = [(last, ys)]

        def backward(*gradients: Any) -> list[Any]:
            # gradients of integers may be None
            pairs = zip(gradients, results, strict=True)
            of_floats = [gradient for gradient, result in pairs if result.dtype.is_floating]
            with tf.name_scope(scope):
                computed = _scan_backward(body, (carries, slices, constants), of_floats, num)
            return [next(computed) if v.dtype.is_floating else None for v in flat]

        return results, backward

    results = forward(*tf.nest.flatten(tensors))
    return tf.nest.pack_sequence_as(structure[0], results)


def _scan_backward(
    body: Callable[[tf.Tensor, Any, Any, Any], tuple[Any, Any]],
    inputs: tuple[Any, Any, Any],
    gradients: Sequence[tf.Tensor],
    num: Any,
) -> Iterator[tf.Tensor]:
    """Returns the gradients of the float tensors of carry, xs and constants, in order.

    `inputs` are the carries of all iterations, [num, ...], xs and constants. `gradients` are the
    gradients of the last carry's float tensors, and then of the ys', [num, ...].
    """
    carries, xs, constants = inputs
    num_carry = len(_floats(carries))

    def differentiate(i: tf.Tensor, sums: Any, slices: Any) -> tuple[Any, Any]:
        dcarry, dconstants = sums
        carry, x, dy = slices
        # copies, to be watched inside the loop
        args = tf.nest.map_structure(tf.identity, (carry, x, constants))
        of_carry, of_x, of_constants = map(_floats, args)
        with tf.GradientTape() as tape:
            tape.watch([of_carry, of_x, of_constants])
            results = _floats(body(i, *args))
        dcarry, dx, of_iteration = tf.nest.map_structure(
            tf.convert_to_tensor,  # the gradient of a gather is not dense
            tape.gradient(
                results,
                [of_carry, of_x, of_constants],
                output_gradients=[*dcarry, *dy],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            ),
        )
        return (dcarry, tf.nest.map_structure(tf.add, dconstants, of_iteration)), dx

    zeros = [tf.zeros_like(v) for v in _floats(constants)]
    start, dys = (gradients[:num_carry], zeros), gradients[num_carry:]
    slices = tf.nest.map_structure(_slice_spec, xs)
    (dcarry, dconstants), dxs = scan(
        differentiate, start, (carries, xs, dys), num, is_reversed=True, outputs=_floats(slices)
    )
    return iter([*dcarry, *dxs, *dconstants])


def _floats(values: Any) -> list[tf.Tensor]:
    return [value for value in tf.nest.flatten(values) if value.dtype.is_floating]


def _slice_spec(x: tf.Tensor | tf.TensorArray) -> tf.TensorSpec:
    shape = x.element_shape if isinstance(x, tf.TensorArray) else x.shape[1:]
    return tf.TensorSpec(shape, x.dtype)


def _first_slice(x: tf.Tensor | tf.TensorArray) -> tf.Tensor:
    if isinstance(x, tf.TensorArray):
        return x.read(0)
    return tf.zeros(x.shape[1:], x.dtype) if x.shape[0] == 0 else x[0]


def _array(dtype: tf.DType, num: Any, shape: tf.TensorShape) -> tf.TensorArray:
    return tf.TensorArray(dtype, num, element_shape=shape, clear_after_read=False)


def accumulate(part: Callable[[Any], Any], inputs: Any, num: int) -> Any:
    """Sums a function's outputs over slices, with one slice's outputs in memory at a time.

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
    """Traces a function and returns its outputs as symbolic tensors, with `shape` and `dtype`.

    Arguments are structures of anything with `shape` and `dtype`. If the function is a
    `tf.function`, it keeps the trace.
    """
    specs = tf.nest.map_structure(lambda a: tf.TensorSpec(a.shape, a.dtype), args)
    if not hasattr(function, "get_concrete_function"):
        function = tf.function(partial(_call_for_shapes, function), autograph=False)
    return function.get_concrete_function(*specs).structured_outputs


def is_for_shapes() -> bool:
    """Returns whether the current graph only serves to find shapes, and is never run.

    Loops and vectorized calls then call their body directly, once; otherwise each enclosing loop
    would double the number of traces. The result is False inside a `tf.function`, which keeps its
    trace.

    >>> found = [is_for_shapes()]
    >>> _ = output_specs(lambda x: found.append(is_for_shapes()), tf.constant(0.0))
    >>> found
    [False, True]
    """
    graph = _graph_for_shapes.get()
    return graph is not None and graph is tf.compat.v1.get_default_graph()


def repeat_result(y: Any, num: Any) -> Any:
    """Stacks `num` copies of each tensor of a structure, as a loop stacks results: [num, ...].

    >>> repeat_result(tf.constant([1, 2]), 3).numpy().tolist()
    [[1, 2], [1, 2], [1, 2]]
    """
    tensors = tf.nest.map_structure(tf.convert_to_tensor, y)
    return tf.nest.map_structure(lambda v: tf.broadcast_to(v, [num, *sizes_of(v)]), tensors)


_graph_for_shapes: ContextVar[Any] = ContextVar("graph_for_shapes", default=None)
"""The graph that only serves to find shapes, or None."""


def _call_for_shapes(function: Callable[..., Any], *args: Any) -> Any:
    token = _graph_for_shapes.set(tf.compat.v1.get_default_graph())
    try:
        return function(*args)
    finally:
        _graph_for_shapes.reset(token)
