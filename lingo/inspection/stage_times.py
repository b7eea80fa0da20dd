"""A pipeline in seconds: a simulation from what its layers take alone, one at a time.

A layer computes a micro-batch forward, and forward and backward, on this machine's first device.
The seconds of a stage are the sum of its layers; the rest is `lingo.mesh.pipeline.simulation`.
"""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.inspection import weight_table
from lingo.inspection.memory import memory_bytes
from lingo.inspection.pipelined import Pipelined
from lingo.inspection.weight_table import Columns
from lingo.layers import context, path
from lingo.layers.layer import Layer, Spec
from lingo.layers.sequence.cross_attention import CrossAttention
from lingo.layers.sequence.positions import sharing_biases
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.learner.state import FLOAT_BYTES
from lingo.mesh.pipeline.schedule import Schedule
from lingo.mesh.pipeline.simulation import Timeline, simulate
from lingo.ops import random

LEFT_OUT = (
    "sending from stage to stage, all that is outside of the pipeline, and what stages on one"
    " machine take from each other"
)

_MEASURED_SECONDS = 0.25  # of each function
_LEAST = 3  # calls


class Seconds(NamedTuple):
    """What a layer takes for a micro-batch, or a stage in a round.

    Attributes:
        forward: without a gradient.
        backward: the gradient, with what is computed again for it.
    """

    forward: float
    backward: float


class Simulation(NamedTuple):
    """A simulated step.

    Attributes:
        seconds: measured, of each round and each stage in it.
        alone_seconds: of all layers for all micro-batches, one after the other.
        times: of each layer, forward and backward, as `PipelinedChain.times` takes them; [] of a
            pipeline whose stages are not cut by them.
        timeline: simulated; what fills up a block is work in it.
    """

    seconds: list[list[Seconds]]
    alone_seconds: float
    times: list[float]
    timeline: Timeline

    @property
    def speedup(self) -> float:
        """How many times as long it takes one after the other as in stages."""
        return self.alone_seconds / self.timeline.makespan_seconds


def simulation(one: Pipelined, schedule: Schedule) -> Simulation:
    """Measures the layers of a pipeline, and simulates a step.

    Raises:
        ParamError: if a layer has no room in memory, or computes from more than is known here.
    """
    layers = _layers(one)
    measured = {layer: _measured(layer, shape, one) for layer, shape in dict(layers).items()}
    each = [measured[layer] for layer, _ in layers]
    blocks = one.blocks
    is_chain = isinstance(one.layer, PipelinedChain)
    if not is_chain:  # what fills up a block takes the time of layers, too
        blocks = [[blocks[0][0]] * len(of_round) for of_round in blocks]
    seconds = [[_sum([each[j] for j in block]) for block in of_round] for of_round in blocks]
    forward = [[stage.forward for stage in of_round] for of_round in seconds]
    backward = [[stage.backward for stage in of_round] for of_round in seconds]
    alone = schedule.num_micro_batches * sum(_sum(each))
    times = [float(f"{sum(taken):.4g}") for taken in each] if is_chain else []
    return Simulation(seconds, alone, times, simulate(schedule, forward, backward))


def text(found: Simulation) -> str:
    """Returns a simulation for people."""
    num, timeline = len(found.seconds[0]), found.timeline
    stages = [_sum([of_round[i] for of_round in found.seconds]) for i in range(num)]
    table = Columns(
        {"stage": list(map(str, range(num)))},
        {
            "forward": [_ms(stage.forward) for stage in stages],
            "backward": [_ms(stage.backward) for stage in stages],
            "busy": [_ms(busy) for busy in timeline.busy_seconds],
        },
    )
    title = (
        f"SIMULATION of a step on {num} devices, from what single layers take here for a"
        f" micro-batch. It leaves out {LEFT_OUT}."
    )
    return (
        f"{textwrap.fill(title, 100)}\n\n{weight_table.aligned(table)}\n"
        f"makespan {_ms(timeline.makespan_seconds)}, bubble fraction"
        f" {timeline.bubble_fraction:.4f}; layers one after the other {_ms(found.alone_seconds)},"
        f" {found.speedup:.3g} times as long\n{_setting(found)}"
    )


def _setting(found: Simulation) -> str:
    """Returns what cuts the stages by these seconds, for a command line; one line, to be copied."""
    if not found.times:
        return ""
    return f"stages of equal seconds: --set='PipelinedChain.times={found.times}'\n"


def as_json(found: Simulation) -> dict[str, Any]:
    """Returns a simulation as JSON values."""
    timeline = found.timeline
    return {
        "is_simulation": True,
        "left_out": LEFT_OUT,
        "forward_seconds": [[stage.forward for stage in row] for row in found.seconds],
        "backward_seconds": [[stage.backward for stage in row] for row in found.seconds],
        "alone_seconds": found.alone_seconds,
        "times": found.times,
        "makespan_seconds": timeline.makespan_seconds,
        "busy_seconds": list(timeline.busy_seconds),
        "bubble_fraction": timeline.bubble_fraction,
        "speedup": found.speedup,
    }


def _sum(times: Sequence[Seconds]) -> Seconds:
    return Seconds(sum(t.forward for t in times), sum(t.backward for t in times))


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"


# ---- measuring -----------------------------------------------------------------------------------


def _layers(one: Pipelined) -> list[tuple[Layer, Any]]:
    """Returns each layer and the shape that it takes; alike ones are one object."""
    shapes = one.shapes[:-1]
    if not isinstance(one.layer, Pipeline):
        return list(zip(one.layer.layers, shapes, strict=True))
    (pattern, *_) = one.layer.rounds
    return [(pattern[i % len(pattern)], shape) for i, shape in enumerate(shapes)]


def _measured(layer: Layer, shape: Any, one: Pipelined) -> Seconds:
    specs = layer.weights().values()
    size = sum(FLOAT_BYTES * math.prod(_one_shape(spec, layer)) for spec in specs)
    if 2 * size > memory_bytes():  # gradients are as large
        raise ParamError(f"{layer.path}: its {size:,} bytes of weights have no room here")
    draw = np.random.default_rng(0)
    state = {where: np.ones(_one_shape(s, layer), "float32") for where, s in layer.states().items()}
    weights = {
        spec.path: tf.constant(
            draw.normal(0, spec.fan_in**-0.5, _one_shape(spec, layer)), tf.float32
        )
        for spec in specs
    }
    x = _drawn(shape, draw, one.layer.p.dtype)
    inputs = _inputs(layer, shape, draw)
    call = {
        "state": tf.nest.map_structure(tf.constant, state),
        "training": True,
        "key": random.root_key(0),
        "rows": tf.range(tf.nest.flatten(x)[0].shape[0]),
        "indices": _indices(layer.path),
        "compiled": one.compiled,
    }

    def forward(weights: Any, x: Any) -> Any:
        y, _ = context.apply(layer, weights, x, call=call, **inputs)
        return y

    def both(weights: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((weights, x))
            y = forward(weights, x)
        zero = tf.UnconnectedGradients.ZERO
        return tape.gradient(y, [weights, x], unconnected_gradients=zero)

    try:
        times = [_fastest(f, weights, x, compiled=one.compiled) for f in (forward, both)]
    except (ValueError, TypeError) as error:  # it wants inputs that this does not know
        raise ParamError(f"{layer.path} cannot be computed alone: {error}") from error
    once = min(times)  # the gradient alone may need no result
    return Seconds(times[0], times[1] - once + one.num_forward * once)


def _fastest(function: Callable[..., Any], *args: Any, compiled: bool) -> float:
    """Returns the seconds of the fastest call of several: others may be using the machine."""
    compute = tf.function(function, autograph=False, jit_compile=compiled)

    def seconds() -> float:
        start = time.perf_counter()
        for value in tf.nest.flatten(compute(*args)):
            tf.reshape(value, [-1])[:1].numpy()  # waits for the device
        return time.perf_counter() - start

    seconds()  # the first also traces
    deadline, found = time.perf_counter() + _MEASURED_SECONDS, [seconds()]
    while len(found) < _LEAST or time.perf_counter() < deadline:
        found.append(seconds())
    return min(found)


def _one_shape(spec: Spec, layer: Layer) -> tuple[int, ...]:
    """Returns the shape of a tensor of one copy of a layer, which may stack others inside."""
    return spec.program_shape[len(path.stack_shape(layer.path)) :]


def _indices(where: str) -> dict[str, int]:
    """Returns the first index of each slice in a path."""
    found, prefix = {}, ""
    for part in where.split("/"):
        prefix = path.join(prefix, part)
        if (indices := path.index_range(part)) is not None:
            found[prefix] = indices.start
    return found


def _drawn(shape: Any, draw: np.random.Generator, dtype: str) -> Any:
    if isinstance(shape[0], Sequence):
        return tuple(_drawn(one, draw, dtype) for one in shape)
    return tf.constant(draw.normal(size=shape), dtype)


def _inputs(layer: Layer, shape: Any, draw: np.random.Generator) -> dict[str, Any]:
    """Returns what a layer of a Transformer takes beside x; a memory is as long as x."""
    found: dict[str, Any] = {}
    tree = list(layer.tree())
    if memories := [x for x in tree if isinstance(x, CrossAttention)]:
        width = memories[0].p.memory_dim or memories[0].p.dim
        found["memory"] = _drawn([*shape[:-1], width], draw, layer.p.dtype)
    if any(x.reads_tokens for x in tree):
        found["tokens"] = tf.zeros(shape[:-1], tf.int32)
    if biases := sharing_biases(layer):
        found["position_table"] = tf.zeros([biases[0].p.num_buckets, biases[0].p.num_heads])
    return found
