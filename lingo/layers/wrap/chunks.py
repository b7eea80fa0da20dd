"""Position-wise functions, computed chunk by chunk to save memory.

for chunk in positions:             # one tf.while_loop
    y[chunk] = function(x[chunk])   # recomputed for the gradient, chunk by chunk

Axes: B batch, T positions, C positions of a chunk, N chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lingo.config.lazy import tf
from lingo.layers import context
from lingo.layers.layer import Layer
from lingo.layers.wrap.remat import recompute
from lingo.ops.scan import scan
from lingo.ops.shape import size_of, swap_leading_axes


def in_chunks(
    function: Callable[..., Any], *inputs: tf.Tensor, layers: Sequence[Layer], size: int | None
) -> Any:
    """Returns `function(*inputs)`, tensors [B, T, ...], computed chunk by chunk.

    Forward and backward passes keep the intermediate values of one chunk in memory, at the cost of
    a second forward pass.

    Args:
        function: maps [B, C, ...] tensors to a structure of [B, C, ...] float tensors. It must draw
            no random numbers and have no side outputs.
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
    """Returns the chunks [N, B, C, ...] of a tensor [B, T, ...], padded with zeros."""
    batch, length = size_of(x, 0), size_of(x, 1)
    num_padding = num_chunks * size - length
    x = tf.pad(x, [[0, 0], [0, num_padding]] + [[0, 0]] * (len(x.shape) - 2))
    return swap_leading_axes(tf.reshape(x, [batch, num_chunks, size, *x.shape[2:]]))


def _join_chunks(y: tf.Tensor) -> tf.Tensor:
    """Returns the tensor [B, N * C, ...] of chunks [N, B, C, ...]."""
    y = swap_leading_axes(y)
    return tf.reshape(y, [size_of(y, 0), size_of(y, 1) * size_of(y, 2), *y.shape[3:]])
