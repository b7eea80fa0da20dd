"""A pipeline as a shift register: all stages compute at once, each on the micro-batch it has now.

tick t:  every micro-batch moves one stage on, and number t enters the first
         y[k] = stage k of x[k]          # all k side by side
         what has left the last stage is done, or enters the first again

Micro-batch m of round r enters at tick r * M + m; a tick later it is one stage further. There is
one copy of the computation in the program, whatever the number of micro-batches. If a mesh splits
the axis of stages, moving on is sending to the next device (Xu et al. 2021, sec. 3.3).

Axes: K stages, M micro-batches, R rounds, N = M * R + K - 1 ticks, B rows of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lingo.config.lazy import tf
from lingo.ops.scan import scan
from lingo.ops.shape import expand_like

Stages = Callable[[Any, Any, Any], tuple[Any, Any]]
"""(int32 [K] items, [K, B, ...] x, riders) -> (y, of the shape and type of x; other tensors).

Item r * M + m is micro-batch m of round r; one below 0 or from M * R on is none, whose result
counts for nothing."""


def shift_register(
    stages: Stages,
    x: tf.Tensor,
    riders: Any,
    *,
    num_stages: int,
    num_rounds: int,
    placed: Callable[[Any, str | None], Any],
) -> tuple[tf.Tensor, Any]:
    """Sends micro-batches through stages.

    Args:
        stages: what all stages compute in a tick.
        x: [M, B, ...], what enters the first stage; M >= K if there are several rounds.
        riders: structure of [M, B, ...]; they go along with their micro-batch, as they are.
        num_stages: K.
        num_rounds: R, how often a micro-batch passes all stages.
        placed: puts shardings on tensors, given the logical name of their first axis: "stage" for
            [K, B, ...], None for any other number of micro-batches.

    Returns:
        [M, B, ...] that left the last stage in the last round; and the other tensors of all ticks,
        [N, ...].
    """
    num_micro_batches: Any = x.shape[0]
    num_ticks = num_micro_batches * num_rounds + num_stages - 1
    entering = tf.nest.map_structure(lambda v: _in_turn(v, num_ticks), (x, riders))
    entering = placed(entering, None)
    # what no micro-batch has reached yet computes, too: on true values, which give no nan
    register = tf.nest.map_structure(lambda v: tf.repeat(v[:1], num_stages, axis=0), (x, riders))
    register = placed(register, "stage")
    # what has left the last stage waits here for its next round
    waiting = x[num_stages - 1 :] if num_rounds > 1 else ()

    def tick(t: tf.Tensor, carry: Any, entering: Any) -> tuple[Any, Any]:
        register, waiting = carry
        if num_rounds > 1:
            x = tf.where(t < num_micro_batches, entering[0], waiting[0])
            entering = x, entering[1]
        x, riders = placed(tf.nest.map_structure(_shift, register, entering), "stage")
        y, others = stages(t - tf.range(num_stages), x, riders)
        y = placed(y, "stage")
        last = placed(y[-1:], None)
        if num_rounds > 1:
            waiting = tf.concat([waiting[1:], last], axis=0)
        return ((y, riders), waiting), (last[0], others)

    _, (left, others) = scan(tick, (register, waiting), entering, num_ticks)
    return left[num_ticks - num_micro_batches :], others


def _shift(register: tf.Tensor, entering: tf.Tensor) -> tf.Tensor:
    """Returns a register whose values have moved on by one.

    Of what says the same, a partitioner makes sending to the next device of this alone.
    """
    moved = tf.pad(register, [[1, 0], *[[0, 0]] * (len(register.shape) - 1)])[:-1]
    is_first = tf.equal(tf.range(moved.shape[0]), 0)
    return tf.where(expand_like(is_first, moved), entering, moved)


def _in_turn(value: tf.Tensor, num_ticks: int) -> tf.Tensor:
    """Returns micro-batches again and again, so many in all."""
    num: Any = value.shape[0]
    return tf.concat([value] * (num_ticks // num) + [value[: num_ticks % num]], axis=0)
