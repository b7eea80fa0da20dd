"""How a pipeline is split: what each stage computes, holds and passes on, and when.

Nothing runs: layers count their FLOPs and declare their weights, and a schedule gives the times.
K stages, M micro-batches, R repeats.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.inspection import weight_table
from lingo.inspection.pipeline_workload import PipelineWorkload
from lingo.layers import path
from lingo.layers.layer import Dtype
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.learner.state import FLOAT_BYTES
from lingo.learner.task import Task
from lingo.mesh.pipeline.schedule import Schedule, circular, one_forward_one_backward
from lingo.runtimes.layout import Layout
from lingo.runtimes.local import Local

_ONE_REPLICA = (
    "; only their devices tell how many share a batch (--devices=2 makes two): micro-batches are"
    " shown as those of one replica that has all of it"
)

_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


class Stage(NamedTuple):
    """A stage of a pipeline."""

    layers: tuple[range, ...]  # layers of each repeat; a range is empty if there are too few layers
    flops: int  # forward FLOPs of the layers of all repeats, for one micro-batch
    weight_bytes: int  # bytes of the weights of all repeats, in float32
    input_bytes: int  # bytes of the stage's input for one micro-batch, in one repeat
    output_bytes: int  # bytes of the stage's output, likewise
    # The largest number of inputs that the schedule keeps at once, one per micro-batch and repeat.
    live: int
    # The ids of the devices that have this stage; () if every device has all stages.
    devices: tuple[int, ...]


class Alternative(NamedTuple):
    """Another schedule for the same number of stages and micro-batches."""

    schedule: Schedule
    needs: str  # what would have to change to use it


class Report(NamedTuple):
    """How a pipeline is split."""

    path: str
    shape: Any  # shape of its input for one micro-batch
    share: float  # its share of the FLOPs of the task's forward pass, 0..1
    where: str  # a description of the devices that hold it
    # Whether only the inputs of stages are kept for gradients, and the rest is recomputed.
    recomputes: bool
    # How many inputs of each stage the program keeps: in a loop, one for each iteration.
    num_inputs_kept: int
    stages: tuple[Stage, ...]
    # Its schedule, as if stages were equal. The unit of time is the mean forward step of a stage; a
    # backward step takes 2, and 1 more for each recomputation.
    schedule: Schedule
    bubble_fraction: float  # share of time in which stages are idle, by their FLOPs
    alternatives: tuple[Alternative, ...]

    @property
    def balance(self) -> float:
        """FLOPs of the largest stage relative to the mean; 1 if none multiplies anything."""
        flops = [stage.flops for stage in self.stages]
        return max(flops) * len(flops) / sum(flops) if any(flops) else 1.0

    @property
    def is_even(self) -> bool:
        """Whether the bubble is that of equal stages."""
        return self.bubble_fraction == self.schedule.bubble_fraction


def report(workload: PipelineWorkload, experiment: Experiment) -> Report:
    """Returns how a pipeline of an experiment is split.

    Raises ParamError if its stages are not on equal parts of the mesh.
    """
    schedule = workload.schedule
    where, devices = _placement(workload, experiment)
    if workload.num_replicas is None:
        where += _ONE_REPLICA
    num = schedule.num_micro_batches * schedule.num_repeats
    return Report(
        path=workload.name,
        shape=workload.shape,
        share=workload.share,
        where=where,
        recomputes=workload.recomputes,
        num_inputs_kept=num if workload.is_chain else num + schedule.num_stages - 1,
        stages=tuple(
            _stages(workload, schedule, devices, _weight_bytes(workload, experiment.task))
        ),
        schedule=schedule,
        bubble_fraction=workload.bubble_fraction,
        alternatives=tuple(_alternatives(workload)),
    )


def _stages(
    workload: PipelineWorkload,
    schedule: Schedule,
    devices: Sequence[tuple[int, ...]],
    weight_bytes: Counter[int],
) -> Iterator[Stage]:
    flops, live = workload.layer.layer_flops(workload.shape), schedule.live_activations()
    sizes = [_num_bytes(shape, workload.layer.p.dtype) for shape in workload.shapes]
    for i, layers in enumerate(zip(*workload.stage_layers, strict=True)):
        numbers, end = [j for part in layers for j in part], layers[0].stop
        yield Stage(
            layers=layers,
            flops=sum(flops[j] for j in numbers),
            weight_bytes=sum(weight_bytes[j] for j in numbers),
            input_bytes=sizes[min(layers[0].start, end)],
            output_bytes=sizes[end],
            live=live[i],
            devices=devices[i],
        )


def _num_bytes(shape: Any, dtype: Dtype) -> int:
    if isinstance(shape[0], Sequence):
        return sum(_num_bytes(one, dtype) for one in shape)
    return math.prod(shape) * _BYTES[dtype]


def _weight_bytes(workload: PipelineWorkload, task: Task) -> Counter[int]:
    """Returns the bytes of the weights of each layer, by its index."""
    prefix, sizes = path.join(workload.name, "layers/"), Counter[int]()
    for row in weight_table.rows(task):
        if row.path.startswith(prefix):
            number = row.path.removeprefix(prefix).partition("/")[0]
            sizes[int(number)] += FLOAT_BYTES * row.parameters
    return sizes


def _alternatives(workload: PipelineWorkload) -> Iterator[Alternative]:
    layer, p, backward = workload.layer, workload.layer.p, workload.backward_units
    yield Alternative(
        one_forward_one_backward(p.num_stages, p.num_micro_batches, backward),
        "a program of its own for each stage: not built",
    )
    if isinstance(layer, PipelinedChain) or len(workload.stage_layers) > 1:
        return
    has_layers = layer.p.num_layers // len(layer.pattern) >= 2 * p.num_stages
    if has_layers and 1 < p.num_stages <= p.num_micro_batches:
        clock = circular(p.num_stages, p.num_micro_batches, 2, backward)
        yield Alternative(clock, "circular_repeats=2")


# ---- where ---------------------------------------------------------------------------------------


def _placement(
    workload: PipelineWorkload, experiment: Experiment
) -> tuple[str, list[tuple[int, ...]]]:
    """Returns where the stages are, and the device ids of each, () if all have all."""
    mesh, num = experiment.runtime, workload.layer.p.num_stages
    layout, who = mesh.layout(experiment.learner), _replicas(workload.num_replicas)
    if layout is not None and layout.mesh.num_devices > 1:
        who = f"each of {layout.mesh.num_devices} devices ({layout.mesh})"
    if workload.is_chain:
        devices = mesh.p.stage_devices if isinstance(mesh, Local) else 1
        if devices == 1:
            return f"{who} computes its stages one after the other, none of them idle", [()] * num
        where = f"each of {devices} devices has its stages and their weights, the first all others"
        return where, [(i % devices,) for i in range(num)]
    parts = [] if layout is None else _mesh_parts(layout)
    if len(parts) < 2:
        return f"{who} computes all stages side by side, idle ones in vain", [()] * num
    if num % len(parts):
        raise ParamError(
            f"{workload.layer.path}: num_stages={num} do not divide into {len(parts)} equal parts"
            " of the mesh: its axis stage has to divide them"
        )
    where = f"{who} has the weights of the stages that it computes, of no others"
    return where, [parts[i * len(parts) // num] for i in range(num)]


def _replicas(num_replicas: int | None) -> str:
    """Returns the name of what computes the pipeline if there is no layout."""
    if num_replicas == 1:
        return "one device"
    return "each replica" if num_replicas is None else f"each of {num_replicas} replicas"


def _mesh_parts(layout: Layout) -> list[tuple[int, ...]]:
    """Returns the device ids of each slice of the mesh along the axes of stages."""
    mesh = layout.mesh
    axes = [axis for axis in layout.rules.weights["stage"] if mesh.size([axis]) > 1]
    ids = np.moveaxis(mesh.ids(), [mesh.axes.index(axis) for axis in axes], range(len(axes)))
    return [tuple(sorted(part.tolist())) for part in ids.reshape(mesh.size(axes), -1)]
