"""How a pipeline is split into stages: each stage's layers, FLOPs and bytes, and the schedule.

Nothing is computed: layers count their FLOPs and declare their weights, and a schedule gives the
times. Shapes are recorded when the task calls its layers to count the FLOPs of a batch.

Axes: n layers, K stages, R repeats.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.inspection import weight_table
from lingo.layers import path
from lingo.layers.layer import Dtype
from lingo.layers.stacks.micro_batches import first_shape, micro_batch_shape, with_rows
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.layers.stacks.stack import Chain
from lingo.learner.padding import pipelines
from lingo.learner.state import FLOAT_BYTES
from lingo.learner.task import Task, first_calls
from lingo.mesh.pipeline import Schedule, circular, fill_drain, one_forward_one_backward
from lingo.runtimes.layout import Layout
from lingo.runtimes.local import Local

_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


class Stage(NamedTuple):
    """A stage of a pipeline: the layers that one step of the schedule computes."""

    layers: tuple[range, ...]  # indices of its layers, per repeat; empty if layers are too few
    flops: int  # forward FLOPs of the layers of all repeats, for one micro-batch
    weight_bytes: int  # bytes of the weights of all repeats, in float32
    input_bytes: int  # bytes of the stage's input for one micro-batch, in one repeat
    output_bytes: int  # bytes of the stage's output for one micro-batch, in one repeat
    # The largest number of inputs (one per micro-batch and repeat) that the stage keeps at once.
    live: int
    # The ids of the devices that have this stage; () if every device has all stages.
    devices: tuple[int, ...]


class Alternative(NamedTuple):
    """Another schedule for the same number of stages and micro-batches."""

    schedule: Schedule
    needs: str  # what would have to change to use this schedule, as text


class Location(NamedTuple):
    """The devices that compute the stages of a pipeline."""

    text: str  # a sentence that says which devices compute which stages
    devices: list[tuple[int, ...]]  # [K] device ids of each stage, () if each device has all stages


@dataclass(frozen=True)
class PipelineReport:
    """A pipeline of an experiment, and how it is split into stages."""

    layer: Pipeline | PipelinedChain
    shape: Any  # shape of the pipeline's input for one micro-batch; a tuple of them for several
    share: float  # the pipeline's share of the FLOPs of the task's forward pass, 0..1
    is_compiled: bool  # whether XLA compiles the pipeline
    weight_bytes: Counter[int]  # index of a layer -> bytes of its weights
    location: Location

    @property
    def path(self) -> str:
        """The path of the pipeline; if several pipelines are stacked, the path of the first."""
        return path.names(self.layer.path)[0]

    @property
    def is_chain(self) -> bool:
        """Whether the pipeline is a chain of different layers, not a stack of equal layers."""
        return isinstance(self.layer, PipelinedChain)

    @cached_property
    def stage_layers(self) -> list[list[range]]:
        """The indices of the layers of each stage in each repeat, [R][K]."""
        return self.layer.stage_layers(self.shape)

    @cached_property
    def shapes(self) -> list[Any]:
        """The input shape of each layer for one micro-batch, then the last layer's output shape."""
        if not isinstance(self.layer, Chain):
            return [self.shape] * (self.layer.p.num_layers + 1)
        shapes = [self.shape]
        for layer in self.layer.layers:
            shapes.append(layer.output_shape(shapes[-1]))
        return shapes

    @property
    def recomputes(self) -> bool:
        """Whether the gradient keeps only the inputs of stages, and recomputes other tensors."""
        return isinstance(self.layer, PipelinedChain) or self.layer.p.remat

    @property
    def num_recomputed(self) -> int:
        """How often the gradient recomputes a forward step; a loop compiled by XLA adds 1."""
        return self.recomputes + (self.is_compiled and not self.is_chain)

    @property
    def backward_units(self) -> int:
        """The time of a backward step, in units of a forward step."""
        return 2 + self.num_recomputed

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule if stages were equal; its unit of time is a forward step."""
        p, num_repeats, backward = self.layer.p, len(self.stage_layers), self.backward_units
        if num_repeats > 1:
            return circular(p.num_stages, p.num_micro_batches, num_repeats, backward)
        return fill_drain(p.num_stages, p.num_micro_batches, backward)

    @property
    def num_inputs_kept(self) -> int:
        """How many inputs each stage keeps for the gradient; a loop keeps one per iteration."""
        num = self.schedule.num_micro_batches * self.schedule.num_repeats
        return num if self.is_chain else num + self.schedule.num_stages - 1

    def stage_sums(self, values: Sequence[float]) -> list[list[float]]:
        """Sums values of layers, [n], over the layers that each stage computes: returns [R][K].

        Each stage of a `Pipeline` computes as many layers as a full stage, and discards the results
        of padding layers. A stage of a `PipelinedChain` computes only its own layers.
        """
        stages = self.stage_layers
        if not self.is_chain:
            stages = [[stages[0][0]] * len(repeat) for repeat in stages]
        return [[sum(values[i] for i in layers) for layers in repeat] for repeat in stages]

    @cached_property
    def bubble_fraction(self) -> float:
        """The share of all stages' time in which they are idle, if all FLOPs take the same time.

        If stages are equal or have no FLOPs, this is the schedule's bubble fraction. Otherwise
        padding layers count as idle time: 6 layers in 4 stages take the time of 8 layers.
        """
        flops, schedule = self._layer_flops, self.schedule
        own = {sum(flops[i] for i in layers) for repeat in self.stage_layers for layers in repeat}
        if len(own) == 1:
            return schedule.bubble_fraction
        forward = np.array(self.stage_sums(flops))
        makespan = schedule.with_durations(forward, self.backward_units * forward).makespan
        useful = schedule.num_micro_batches * (1 + self.backward_units) * sum(flops)
        return 1 - useful / (schedule.num_stages * makespan)

    @property
    def is_even(self) -> bool:
        """Whether the bubble fraction is the same as with equal stages."""
        return self.bubble_fraction == self.schedule.bubble_fraction

    @cached_property
    def stages(self) -> list[Stage]:
        """The stages of the pipeline, in order, [K]."""
        flops, live = self._layer_flops, self.schedule.live_activations()
        sizes = [_num_bytes(shape, self.layer.p.dtype) for shape in self.shapes]
        stages: list[Stage] = []
        for i, layers in enumerate(zip(*self.stage_layers, strict=True)):
            numbers, end = [j for part in layers for j in part], layers[0].stop
            stages.append(
                Stage(
                    layers=layers,
                    flops=sum(flops[j] for j in numbers),
                    weight_bytes=sum(self.weight_bytes[j] for j in numbers),
                    input_bytes=sizes[min(layers[0].start, end)],
                    output_bytes=sizes[end],
                    live=live[i],
                    devices=self.location.devices[i],
                )
            )
        return stages

    @cached_property
    def _layer_flops(self) -> list[int]:
        return self.layer.layer_flops(self.shape)

    @property
    def balance(self) -> float:
        """The FLOPs of the largest stage relative to the mean stage; 1 if no stage has FLOPs."""
        flops = [stage.flops for stage in self.stages]
        return max(flops) * len(flops) / sum(flops) if any(flops) else 1.0

    @property
    def alternatives(self) -> list[Alternative]:
        """Other schedules for the same numbers of stages and micro-batches."""
        layer, p, backward = self.layer, self.layer.p, self.backward_units
        schedule = one_forward_one_backward(p.num_stages, p.num_micro_batches, backward)
        others = [Alternative(schedule, "a separate program for each stage, which lingo lacks")]
        if isinstance(layer, Pipeline) and len(self.stage_layers) == 1:
            has_layers = layer.p.num_layers // len(layer.pattern) >= 2 * p.num_stages
            if has_layers and 1 < p.num_stages <= p.num_micro_batches:
                schedule = circular(p.num_stages, p.num_micro_batches, 2, backward)
                others.append(Alternative(schedule, "circular_repeats=2"))
        return others


def _num_bytes(shape: Any, dtype: Dtype) -> int:
    if isinstance(shape[0], Sequence):
        return sum(_num_bytes(part, dtype) for part in shape)
    return math.prod(shape) * _BYTES[dtype]


def find_pipelines(experiment: Experiment, *, started: bool = False) -> list[PipelineReport]:
    """Returns a report on each pipeline of an experiment.

    The runtime's devices are counted only if they are `started`. Raises ParamError if a pipeline's
    input is unknown, a batch cannot be split into equal micro-batches, or the number of stages is
    not a multiple of the mesh's size along the stage axis.
    """
    task, runtime = experiment.task, experiment.runtime
    if not (layers := pipelines(task)):
        return []
    specs = experiment.train_input.specs()
    answers, total = first_calls(task, specs, layers), task.batch_flops(specs)
    num_replicas = runtime.num_replicas(devices_ready=started)
    reports: list[PipelineReport] = []
    for layer in layers:
        shape, flops, _ = answers[layer]
        reports.append(
            PipelineReport(
                layer=layer,
                shape=_micro_batch(shape, layer, experiment, num_replicas or 1),
                share=flops / total if total else 0.0,
                is_compiled=runtime.compiles,
                weight_bytes=_weight_bytes(layer, task),
                location=_locate(layer, experiment, num_replicas),
            )
        )
    return reports


def _micro_batch(
    shape: Any, layer: Pipeline | PipelinedChain, experiment: Experiment, num_replicas: int
) -> Any:
    """Returns the input shape of one micro-batch in training; `shape` is a whole batch's."""
    rows = -(-first_shape(shape)[0] // num_replicas)
    rows = experiment.runtime.padded_batch_size(rows, experiment.learner)
    return micro_batch_shape(layer, with_rows(shape, rows // experiment.p.accumulation_steps))


def _weight_bytes(layer: Pipeline | PipelinedChain, task: Task) -> Counter[int]:
    prefix, sizes = path.join(path.names(layer.path)[0], "layers/"), Counter[int]()
    for row in weight_table.rows(task):
        if row.path.startswith(prefix):
            number = row.path.removeprefix(prefix).partition("/")[0]
            sizes[int(number)] += FLOAT_BYTES * row.parameters
    return sizes


# ---- where ---------------------------------------------------------------------------------------


_ONE_REPLICA = (
    "; the number of replicas depends on the devices (--devices=2 makes two): micro-batches are"
    " shown as if one replica had the whole batch"
)


def _locate(
    layer: Pipeline | PipelinedChain, experiment: Experiment, num_replicas: int | None
) -> Location:
    """Returns the devices that compute a pipeline's stages.

    `num_replicas` is the number of replicas that split a batch; None: not known.
    """
    runtime, num = experiment.runtime, layer.p.num_stages
    layout = runtime.layout(experiment.learner)
    who = {None: "each replica", 1: "one device"}.get(
        num_replicas, f"each of {num_replicas} replicas"
    )
    note = _ONE_REPLICA if num_replicas is None else ""
    if layout is not None and layout.mesh.num_devices > 1:
        who = f"each of {layout.mesh.num_devices} devices ({layout.mesh})"
    if isinstance(layer, PipelinedChain):
        devices = runtime.p.stage_devices if isinstance(runtime, Local) else 1
        if devices == 1:
            text = f"{who} computes its stages one after the other, none of them idle"
            return Location(text + note, [()] * num)
        text = (
            f"each of {devices} devices has its stages and their weights, the first also has all"
            " other layers"
        )
        return Location(text + note, [(i % devices,) for i in range(num)])
    parts = [] if layout is None else _mesh_parts(layout)
    if len(parts) < 2:
        text = f"{who} computes all stages side by side, idle ones in vain"
        return Location(text + note, [()] * num)
    if num % len(parts):
        raise ParamError(
            f"{layer.path}: num_stages={num} is not a multiple of the {len(parts)} parts of the"
            " mesh along its axis stage"
        )
    text = f"{who} has only the weights of the stages that it computes"
    return Location(text + note, [parts[i * len(parts) // num] for i in range(num)])


def _mesh_parts(layout: Layout) -> list[tuple[int, ...]]:
    """Returns the sorted device ids of each slice of the mesh along the axes of stages."""
    mesh = layout.mesh
    axes = [axis for axis in layout.rules.weights["stage"] if mesh.size([axis]) > 1]
    ids = np.moveaxis(mesh.ids(), [mesh.axes.index(axis) for axis in axes], range(len(axes)))
    return [tuple(sorted(part.tolist())) for part in ids.reshape(mesh.size(axes), -1)]
