"""Splits a batch into the micro-batches of a pipeline and merges them again.

Axes: B batch, M micro-batches, N micro-batches or stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.context import annotate
from lingo.layers.layer import Layer
from lingo.ops.shape import sizes_of, swap_leading_axes


def examples_together(layers: Iterable[Layer], shape: Sequence[int | None]) -> int:
    """Returns how many neighbouring examples must stay in one micro-batch.

    This is the least common multiple over the layers and all layers inside them, for inputs of the
    shape `shape`.
    """
    return math.lcm(
        *(
            inner.batch_requirements(shape).examples_together
            for layer in layers
            for inner in layer.tree()
        )
    )


def micro_batch_shape(pipeline: Layer, shape: Any) -> Any:
    """Returns the shape of one micro-batch, [B / M, ...], for a pipeline's input [B, ...].

    If the input is several tensors, `shape` and the result are tuples of shapes. Raises ParamError
    if micro-batches would be unequal, or would split examples that layers compute as one group.
    """
    batch, num = first_shape(shape)[0], pipeline.p.num_micro_batches
    together = examples_together([pipeline], first_shape(shape))
    if batch is not None and batch % (num * together) == 0:
        return with_rows(shape, batch // num)
    groups = (
        f" of whole groups of {together} neighbouring rows, which layers inside compute as one (a"
        " MoE by its group_size, a BatchNorm by its statistics_over)"
    )
    raise ParamError(
        f"{pipeline.path or type(pipeline).__name__}:"
        f" {'an unknown number of' if batch is None else batch} rows cannot be cut into"
        f" num_micro_batches={num} equal parts{groups if together > 1 else ''}: a batch, or the"
        f" part of it on a replica or in an accumulation step, has to be a multiple of"
        f" {num * together}"
    )


def first_shape(shape: Any) -> Any:
    """Returns the first shape in nested tuples of shapes; a single shape is returned as it is."""
    return first_shape(shape[0]) if isinstance(shape[0], Sequence) else shape


def with_rows(shape: Any, num: int) -> Any:
    """Returns a shape, or nested tuples of shapes, with `num` as the batch size."""
    if isinstance(shape[0], Sequence):
        return tuple(with_rows(part, num) for part in shape)
    return (num, *shape[1:])


def split_microbatches(value: tf.Tensor, num: int, together: int) -> tf.Tensor:
    """Splits a batch, [B, ...] of any type, into M = `num` micro-batches, [M, B / M, ...].

    Groups of `together` neighbouring examples go to the micro-batches in turn. A mesh gives each
    device a run of neighbouring examples, so every device has examples of each micro-batch.
    """
    batch, *rest = sizes_of(value)
    parts = tf.reshape(value, [batch // num // together, num, together, *rest])
    return tf.reshape(swap_leading_axes(parts), [num, batch // num, *rest])


def merge_microbatches(value: tf.Tensor, together: int) -> tf.Tensor:
    """Merges micro-batches [M, B / M, ...] into a batch [B, ...]; undoes `split_microbatches`."""
    num, size, *rest = sizes_of(value)
    parts = tf.reshape(value, [num, size // together, together, *rest])
    return tf.reshape(swap_leading_axes(parts), [num * size, *rest])


def with_sharding(value: tf.Tensor, axis: str | None) -> tf.Tensor:
    """Returns a tensor [N, B / M, ...] with its sharding.

    `axis` is the logical axis of the first dim; None: this dim is not sharded.
    """
    own = len(value.shape) - 2
    axes = ("length", "embed")[:own] if own <= 2 else [None] * own
    return annotate(value, axis, "batch", *axes)
