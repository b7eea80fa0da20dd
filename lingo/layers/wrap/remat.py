"""Rematerialization: gradients recompute the activations inside a layer instead of storing them.

`in_chunks` also computes the positions of a sequence chunk by chunk, so that only one chunk's
activations are in memory.

Axes: B batch, T positions, C positions of a chunk, N chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lingo.config.lazy import tf
from lingo.layers import context
from lingo.layers.layer import Layer
from lingo.layers.wrap.wrapper import Wrapper
from lingo.ops.scan import scan
from lingo.ops.scope import gradient_scope, on_device
from lingo.ops.shape import size_of, swap_leading_axes


class Remat(Wrapper):
    """Stores only the inputs of a layer for the gradient (Chen et al. 2016; GPipe, sec. 2.3).

    This costs one more forward pass of the layer. Results, gradients, paths and random numbers do
    not change. Under XLA it saves memory only inside a scan, such as `Repeat`: elsewhere, XLA may
    merge the second pass with the first.
    """

    def call_wrapped(self, method: str, *args: Any, **inputs: Any) -> Any:
        call = context.current()
        if call.caches or call.decode_length is not None:  # decoding needs no gradient
            return getattr(self.layer, method)(*args, **inputs)

        def body(args: Any, inputs: Any, tensors: Any) -> Any:
            inner = call.derive(**tensors)
            with context.enter_call(inner):
                y = getattr(self.layer, method)(*args, **inputs)
            return y, inner.sides.additive_fields() | inner.sides.per_layer_fields()

        y, sides = recompute(body, list(args), inputs, call.of([self.layer]))
        call.sides.add(sides)
        return y


def recompute(body: Callable[..., Any], *args: Any, device: str | None = None) -> Any:
    """Calls a function; its gradient recomputes intermediate values instead of storing them.

    All differentiable tensors must be in `args`: gradients do not flow into captured tensors. The
    second forward pass waits for the incoming gradients, so that graph optimizations cannot merge
    it with the first pass.

    Args:
        body: a function of `args`; its results are float tensors of any shapes, in any structure.
        *args: tensors of any shape and type, or structures of tensors and None.
        device: device of the function and its gradient; None: TensorFlow chooses.
    """
    flat = tf.nest.flatten(args)
    tensors = [a for a in flat if a is not None]
    structure: list[Any] = []

    def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
        rest = iter(tensors)
        filled = [None if a is None else next(rest) for a in flat]
        results = body(*tf.nest.pack_sequence_as(args, filled))
        structure[:] = [results]
        return tf.nest.flatten(results)

    @tf.custom_gradient
    def forward(*tensors: tf.Tensor) -> Any:
        scope = gradient_scope()

        def backward(*gradients: tf.Tensor) -> Any:
            with on_device(device), tf.name_scope(scope):
                with tf.control_dependencies(gradients):
                    copies = [tf.identity(t) for t in tensors]
                with tf.GradientTape() as tape:
                    tape.watch([c for c in copies if c.dtype.is_floating])
                    results = run(*copies)
                return tape.gradient(results, copies, output_gradients=list(gradients))

        return run(*tensors), backward

    with on_device(device):
        results = forward(*tensors)
    return tf.nest.pack_sequence_as(structure[0], results)


def in_chunks(
    function: Callable[..., Any], *inputs: tf.Tensor, layers: Sequence[Layer], size: int | None
) -> Any:
    """Returns `function(*inputs)`, tensors [B, T, ...], computed chunk by chunk.

    The forward and backward passes keep the intermediate values of only one chunk in memory. This
    costs a second forward pass.

    Args:
        function: maps [B, C, ...] tensors to a structure of [B, C, ...] float tensors. The function
            must draw no random numbers, and the layers in it must have no side outputs.
        *inputs: [B, T, ...] tensors, any type.
        layers: the layers whose weights the function reads; other weights get no gradient.
        size: C; zeros pad the last chunk. None: all positions at once.
    """
    if size is None:
        return function(*inputs)
    call = context.current()
    length = size_of(inputs[0], 1)
    num_chunks = -(-length // size)

    def compute(chunk: Sequence[tf.Tensor], tensors: Any) -> Any:
        with context.enter_call(call.derive(**tensors)):
            return function(*chunk)

    def body(i: tf.Tensor, carry: Any, chunk: Sequence[tf.Tensor]) -> tuple[Any, Any]:
        return carry, recompute(compute, chunk, call.of(layers))

    chunks = [_split(x, num_chunks, size) for x in inputs]
    _, outputs = scan(body, (), chunks, num_chunks)
    return tf.nest.map_structure(lambda y: _join_chunks(y)[:, :length], outputs)


def _split(x: tf.Tensor, num_chunks: Any, size: int) -> tf.Tensor:
    """Cuts a tensor [B, T, ...] into chunks [N, B, C, ...]; zeros pad the last chunk."""
    batch, length = size_of(x, 0), size_of(x, 1)
    num_padding = num_chunks * size - length
    x = tf.pad(x, [[0, 0], [0, num_padding]] + [[0, 0]] * (len(x.shape) - 2))
    return swap_leading_axes(tf.reshape(x, [batch, num_chunks, size, *x.shape[2:]]))


def _join_chunks(y: tf.Tensor) -> tf.Tensor:
    """Joins chunks [N, B, C, ...] to a tensor [B, N * C, ...]."""
    y = swap_leading_axes(y)
    return tf.reshape(y, [size_of(y, 0), size_of(y, 1) * size_of(y, 2), *y.shape[3:]])
