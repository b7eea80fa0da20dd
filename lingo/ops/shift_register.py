"""A pipeline as a shift register: all stages compute at once, each on its current micro-batch.

tick t:  every micro-batch moves to the next stage, and the next one enters the first stage
         y[k] = stage k of x[k]          # all k in parallel
         what leaves the last stage is done, or waits to enter the first stage again

Micro-batch m enters its repeat r at tick r * M + m, and reaches the next stage one tick later. The
program has one copy of the computation for any number of micro-batches. If a mesh splits the axis
of stages, a shift is a transfer to the next device (Xu et al. 2021, sec. 3.3).

Axes: K stages, M micro-batches, R repeats, N = M * R + K - 1 ticks, B examples of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lingo.config.lazy import tf
from lingo.ops.scan import scan
from lingo.ops.shape import expand_like

Stages = Callable[[Any, Any, Any], tuple[Any, Any]]
"""(int32 [K] microbatch indices, [K, B, ...] x, [K, B, ...] per-example inputs) -> (y, of the shape
and type of x; other tensors).

Index r * M + m is micro-batch m of repeat r. An index below 0, or of M * R or more, is not a
micro-batch, and its result is ignored."""


def shift_register(
    stages: Stages,
    x: tf.Tensor,
    per_example_inputs: Any,
    *,
    num_stages: int,
    num_repeats: int,
    with_sharding: Callable[[Any, str | None], Any],
) -> tuple[tf.Tensor, Any]:
    """Passes micro-batches through the stages of a pipeline.

    Args:
        stages: computes one tick of all stages.
        x: [M, B, ...], any float type, the input of the first stage; M >= K if R > 1.
        per_example_inputs: structure of [M, B, ...] tensors; each moves through the stages
            unchanged, with its micro-batch.
        num_stages: K.
        num_repeats: R, how often a micro-batch passes all stages.
        with_sharding: sets the sharding of tensors by the logical name of their first axis: "stage"
            for [K, B, ...], None for any other number of micro-batches.

    Returns:
        The output of the last stage in the last repeat, [M, B, ...] of the type of `x`; and the
        other tensors of all ticks, [N, ...].

    >>> def stages(index, x, inputs):  # each of two stages adds one
    ...     return x + 1.0, ()
    >>> x = tf.constant([[1.0], [2.0], [3.0]])  # three micro-batches of one example
    >>> shift_register(
    ...     stages, x, (), num_stages=2, num_repeats=1, with_sharding=lambda x, axis: x
    ... )[0].numpy().ravel()
    array([3., 4., 5.], dtype=float32)
    """
    num_micro_batches: Any = x.shape[0]
    num_ticks = num_micro_batches * num_repeats + num_stages - 1
    inputs = (x, per_example_inputs)
    entering = tf.nest.map_structure(lambda v: _repeat_microbatches(v, num_ticks), inputs)
    entering = with_sharding(entering, None)
    # stages that no micro-batch has reached compute, too: on real examples, which give no nan
    register = tf.nest.map_structure(lambda v: tf.repeat(v[:1], num_stages, axis=0), inputs)
    register = with_sharding(register, "stage")
    # outputs of the last stage wait here for their next repeat
    waiting = x[num_stages - 1 :] if num_repeats > 1 else ()

    def tick(t: tf.Tensor, carry: Any, entering: Any) -> tuple[Any, Any]:
        register, waiting = carry
        if num_repeats > 1:
            x = tf.where(t < num_micro_batches, entering[0], waiting[0])
            entering = x, entering[1]
        x, per_example = with_sharding(tf.nest.map_structure(_shift, register, entering), "stage")
        y, others = stages(t - tf.range(num_stages), x, per_example)
        y = with_sharding(y, "stage")
        last = with_sharding(y[-1:], None)
        if num_repeats > 1:
            waiting = tf.concat([waiting[1:], last], axis=0)
        return ((y, per_example), waiting), (last[0], others)

    _, (outputs, others) = scan(tick, (register, waiting), entering, num_ticks)
    return outputs[num_ticks - num_micro_batches :], others


def _shift(register: tf.Tensor, entering: tf.Tensor) -> tf.Tensor:
    """Returns a register, [K, ...], shifted by one stage, with `entering`, [1, ...], in front.

    Of the equivalent formulations, a partitioner turns only this one into a transfer to the next
    device.
    """
    moved = tf.pad(register, [[1, 0], *[[0, 0]] * (len(register.shape) - 1)])[:-1]
    is_first = tf.equal(tf.range(moved.shape[0]), 0)
    return tf.where(expand_like(is_first, moved), entering, moved)


def _repeat_microbatches(value: tf.Tensor, num_ticks: int) -> tf.Tensor:
    """Repeats micro-batches, [M, ...], in order until there are as many as ticks: [N, ...]."""
    num: Any = value.shape[0]
    return tf.concat([value] * (num_ticks // num) + [value[: num_ticks % num]], axis=0)
