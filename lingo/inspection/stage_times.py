"""Simulates a pipeline's training step from the measured time of each of its layers.

On this machine's first device each layer computes a micro-batch, once only forward, and once
forward and backward. The time of a stage is the sum of its layers' times. From these, the schedule
gives the time of a step.

Axes: K stages, R repeats, B batch, T query positions, D model width, N heads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.inspection.memory import memory_bytes
from lingo.inspection.pipeline import PipelineReport
from lingo.layers import context, path
from lingo.layers.inputs import needs_token_ids
from lingo.layers.layer import Layer
from lingo.layers.sequence.cross_attention import CrossAttention
from lingo.layers.sequence.positions import sharing_biases
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.tree import ParamSpec
from lingo.learner.state import FLOAT_BYTES
from lingo.mesh.pipeline import Schedule
from lingo.ops import random

_MEASURED_SECONDS = 0.25  # how long each function is measured
_MIN_CALLS = 3


class Simulation(NamedTuple):
    """A simulated training step of a pipeline."""

    # Measured seconds of each stage in each repeat, [R][K], for one micro-batch.
    forward: list[list[float]]  # the forward pass
    backward: list[list[float]]  # the gradient, with the forward passes that it recomputes
    sequential_seconds: float  # time of all layers for all micro-batches, one after the other
    # The time of each layer, forward plus backward, as a value for `PipelinedChain.times`; [] for a
    # `Pipeline`, whose stages do not depend on times.
    times: list[float]
    schedule: Schedule  # in seconds; padding layers of a stage count as work

    @property
    def speedup(self) -> float:
        """The time of all layers one after the other, divided by the time of the pipeline."""
        return self.sequential_seconds / self.schedule.makespan


def simulate(report: PipelineReport) -> Simulation:
    """Measures the layers of a pipeline, and simulates a step.

    Raises ParamError if a layer does not fit into memory, or needs inputs that this module cannot
    make.
    """
    layers = _layers(report)
    measured = {layer: _measure(layer, shape, report) for layer, shape in dict(layers).items()}
    each = [measured[layer] for layer, _ in layers]
    forward, backward = (report.stage_sums(values) for values in zip(*each, strict=True))
    return Simulation(
        forward=forward,
        backward=backward,
        sequential_seconds=report.schedule.num_micro_batches * sum(map(sum, each)),
        times=[float(f"{sum(times):.4g}") for times in each] if report.is_chain else [],
        schedule=report.schedule.with_durations(forward, backward),
    )


# ---- measuring -----------------------------------------------------------------------------------


def _layers(report: PipelineReport) -> list[tuple[Layer, Any]]:
    """Returns pairs (layer, shape of its input); equal layers are the same object."""
    shapes = report.shapes[:-1]
    if not isinstance(report.layer, Pipeline):
        return list(zip(report.layer.layers, shapes, strict=True))
    (pattern, *_) = report.layer.repeats
    return [(pattern[i % len(pattern)], shape) for i, shape in enumerate(shapes)]


def _measure(layer: Layer, shape: Any, report: PipelineReport) -> tuple[float, float]:
    """Returns the seconds that a layer takes for a micro-batch: (forward, backward)."""
    specs = layer.weights().values()
    size = sum(FLOAT_BYTES * math.prod(_layer_shape(spec, layer)) for spec in specs)
    if 2 * size > memory_bytes():  # gradients are as large as weights
        raise ParamError(f"{layer.path}: its {size:,} bytes of weights do not fit into memory here")
    draw = np.random.default_rng(0)
    state = {
        where: np.ones(_layer_shape(s, layer), "float32") for where, s in layer.states().items()
    }
    weights = {
        spec.path: tf.constant(
            draw.normal(0, spec.fan_in**-0.5, _layer_shape(spec, layer)), tf.float32
        )
        for spec in specs
    }
    x = _random(shape, draw, report.layer.p.dtype)
    inputs = _inputs(layer, shape, draw)
    call = {
        "state": tf.nest.map_structure(tf.constant, state),
        "training": True,
        "key": random.root_key(0),
        "rows": tf.range(tf.nest.flatten(x)[0].shape[0]),
        "indices": _first_indices(layer.path),
        "compiled": report.is_compiled,
    }

    def forward(weights: Any, x: Any) -> Any:
        y, _ = context.apply(layer, weights, x, call=call, **inputs)
        return y

    def gradients(weights: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((weights, x))
            y = forward(weights, x)
        zero = tf.UnconnectedGradients.ZERO
        return tape.gradient(y, [weights, x], unconnected_gradients=zero)

    try:
        times = [_fastest(f, weights, x, compiled=report.is_compiled) for f in (forward, gradients)]
    except (ValueError, TypeError) as error:  # e.g. the layer needs inputs that `_inputs` lacks
        raise ParamError(f"{layer.path} cannot be computed alone: {error}") from error
    once = min(times)  # the gradient's program may be faster, as it returns no result
    return times[0], times[1] - once + report.num_recomputed * once


def _fastest(function: Callable[..., Any], *args: Any, compiled: bool) -> float:
    """Returns the seconds of the fastest of several calls, since other processes slow some down."""
    compute = tf.function(function, autograph=False, jit_compile=compiled)

    def seconds() -> float:
        start = time.perf_counter()
        for value in tf.nest.flatten(compute(*args)):
            tf.reshape(value, [-1])[:1].numpy()  # waits for the device
        return time.perf_counter() - start

    seconds()  # the first call also traces
    deadline, times = time.perf_counter() + _MEASURED_SECONDS, [seconds()]
    while len(times) < _MIN_CALLS or time.perf_counter() < deadline:
        times.append(seconds())
    return min(times)


def _layer_shape(spec: ParamSpec, layer: Layer) -> tuple[int, ...]:
    """Returns the shape of one layer's weight, without the dims along which layers are stacked."""
    return spec.program_shape[len(path.stack_shape(layer.path)) :]


def _first_indices(where: str) -> dict[str, int]:
    """Returns the first index of each slice in a path: path up to the slice -> first index."""
    parts = where.split("/")
    return {
        "/".join(parts[:end]): copies.start
        for end, part in enumerate(parts, start=1)
        if (copies := path.index_range(part)) is not None
    }


def _random(shape: Any, draw: np.random.Generator, dtype: str) -> Any:
    if isinstance(shape[0], Sequence):
        return tuple(_random(part, draw, dtype) for part in shape)
    return tf.constant(draw.normal(size=shape), dtype)


def _inputs(layer: Layer, shape: Any, draw: np.random.Generator) -> dict[str, Any]:
    """Returns the inputs that a Transformer layer needs in addition to x, [B, T, D].

    They are some of: `memory`, [B, T, width], in the layer's dtype; `token_ids`, int32 [B, T];
    `position_table`, float32 [buckets, N]. Inputs that the layer does not read are left out.
    """
    inputs: dict[str, Any] = {}
    tree = list(layer.tree())
    if memories := [x for x in tree if isinstance(x, CrossAttention)]:
        width = memories[0].p.memory_dim or memories[0].p.dim
        inputs["memory"] = _random([*shape[:-1], width], draw, layer.p.dtype)
    if needs_token_ids(layer):
        inputs["token_ids"] = tf.zeros(shape[:-1], tf.int32)
    if biases := sharing_biases(layer):
        inputs["position_table"] = tf.zeros([biases[0].p.num_buckets, biases[0].p.num_heads])
    return inputs
