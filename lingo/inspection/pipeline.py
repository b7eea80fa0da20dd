"""How a pipeline was split: what each stage has to compute, to hold and to hand on, and when.

Nothing runs: layers say what they compute and declare what they weigh, and the clock is that of a
schedule. K stages, M micro-batches, R rounds.
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
from lingo.inspection.bubble import bubble_fraction
from lingo.inspection.pipelined import Pipelined
from lingo.layers import path
from lingo.layers.layer import Dtype
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.learner.state import FLOAT_BYTES
from lingo.learner.task import Task
from lingo.mesh.pipeline.schedule import (
    Schedule,
    circular,
    fill_drain,
    one_forward_one_backward,
)
from lingo.runtimes.layout import Layout
from lingo.runtimes.local import Local

_ONE_REPLICA = (
    "; how many share a batch only their devices say (--devices=2 makes two), and micro-batches are"
    " shown as those of one replica that has all of it"
)

_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


class Stage(NamedTuple):
    """A stage.

    Attributes:
        layers: which it has in each round; a range may be empty where there are too few.
        flops: of these in all rounds, forward, for one micro-batch.
        weight_bytes: of these in all rounds, float32.
        input_bytes: of what it takes for one micro-batch, in one round.
        output_bytes: of what it hands on, likewise.
        live: how many inputs the schedule has it keep at once, at most: a micro-batch has one in
            each round.
        devices: numbers of those in the mesh that have this stage and not all; () if none has.
    """

    layers: tuple[range, ...]
    flops: int
    weight_bytes: int
    input_bytes: int
    output_bytes: int
    live: int
    devices: tuple[int, ...]


class Other(NamedTuple):
    """A schedule that a pipeline does not have, for as many stages and micro-batches.

    Attributes:
        schedule: when it would do what.
        needs: what it would take to have it.
    """

    schedule: Schedule
    needs: str


class Report(NamedTuple):
    """What there is to say of a pipeline.

    Attributes:
        path: of the layer.
        shape: of its input for one micro-batch.
        share: of the FLOPs of a forward pass of the task that are in it, 0..1.
        where: which devices hold it, in words.
        recomputes: whether gradients keep the inputs of stages alone, and compute the rest again.
        num_kept: how many inputs of each stage the program keeps: a loop has one of each turn.
        stages: K of them.
        schedule: its clock, as if stages were equal. A unit of time is the mean forward step of a
            block; a backward step takes 2, and 1 more each time that it computes forward again.
        bubble_fraction: for which share of their time stages are idle, by their FLOPs.
        others: what else there is.
    """

    path: str
    shape: Any
    share: float
    where: str
    recomputes: bool
    num_kept: int
    stages: tuple[Stage, ...]
    schedule: Schedule
    bubble_fraction: float
    others: tuple[Other, ...]

    @property
    def balance(self) -> float:
        """FLOPs of the largest stage relative to the mean; 1 if none multiplies anything."""
        flops = [stage.flops for stage in self.stages]
        return max(flops) * len(flops) / sum(flops) if any(flops) else 1.0

    @property
    def is_even(self) -> bool:
        """Whether the clock of equal stages has the bubble that there is."""
        return self.bubble_fraction == self.schedule.bubble_fraction


def report(one: Pipelined, experiment: Experiment) -> Report:
    """Returns what there is to say of a pipeline of an experiment.

    Raises:
        ParamError: if its stages do not stand on equal parts of the mesh.
    """
    schedule = _schedule(one)
    where, devices = _placed(one, experiment)
    if one.num_replicas is None:
        where += _ONE_REPLICA
    num = schedule.num_micro_batches * schedule.num_rounds
    return Report(
        one.name,
        one.shape,
        one.share,
        where,
        one.recomputes,
        num if isinstance(one.layer, PipelinedChain) else num + schedule.num_stages - 1,
        tuple(_stages(one, schedule, devices, _weight_bytes(one, experiment.task))),
        schedule,
        bubble_fraction(one, schedule),
        tuple(_others(one)),
    )


def _stages(
    one: Pipelined,
    schedule: Schedule,
    devices: Sequence[tuple[int, ...]],
    weight_bytes: Counter[int],
) -> Iterator[Stage]:
    flops, live = one.layer.layer_flops(one.shape), schedule.live_activations()
    sizes = [_num_bytes(shape, one.layer.p.dtype) for shape in one.shapes]
    for i, layers in enumerate(zip(*one.blocks, strict=True)):
        mine, end = [j for part in layers for j in part], layers[0].stop
        yield Stage(
            layers,
            sum(flops[j] for j in mine),
            sum(weight_bytes[j] for j in mine),
            sizes[min(layers[0].start, end)],
            sizes[end],
            live[i],
            devices[i],
        )


def _num_bytes(shape: Any, dtype: Dtype) -> int:
    if isinstance(shape[0], Sequence):
        return sum(_num_bytes(one, dtype) for one in shape)
    return math.prod(shape) * _BYTES[dtype]


def _weight_bytes(one: Pipelined, task: Task) -> Counter[int]:
    """Returns the bytes of the weights of each layer, by its number."""
    prefix, found = path.join(one.name, "layers/"), Counter[int]()
    for row in weight_table.rows(task):
        if row.path.startswith(prefix):
            number = row.path.removeprefix(prefix).partition("/")[0]
            found[int(number)] += FLOAT_BYTES * row.parameters
    return found


# ---- when ----------------------------------------------------------------------------------------


def _schedule(one: Pipelined) -> Schedule:
    p, num_rounds, backward = one.layer.p, len(one.blocks), one.backward_units
    if num_rounds > 1:
        return circular(p.num_stages, p.num_micro_batches, num_rounds, backward=backward)
    return fill_drain(p.num_stages, p.num_micro_batches, backward=backward)


def _others(one: Pipelined) -> Iterator[Other]:
    p, layer, backward = one.layer.p, one.layer, one.backward_units
    sizes = (p.num_stages, p.num_micro_batches)
    yield Other(
        one_forward_one_backward(*sizes, backward=backward),
        "a program of its own for each stage: not built",
    )
    if isinstance(layer, PipelinedChain) or len(one.blocks) > 1:
        return
    has_layers = p.num_layers // len(layer.pattern) >= 2 * p.num_stages
    if has_layers and 1 < p.num_stages <= p.num_micro_batches:
        yield Other(circular(*sizes, 2, backward=backward), "circular_repeats=2")


# ---- where ---------------------------------------------------------------------------------------


def _placed(one: Pipelined, experiment: Experiment) -> tuple[str, list[tuple[int, ...]]]:
    """Returns which devices hold the stages: in words, and those that do not hold all."""
    mesh, layer, num = experiment.mesh, one.layer, one.layer.p.num_stages
    layout, who = mesh.layout(experiment.learner), _who(one.num_replicas)
    if layout is not None and layout.mesh.num_devices > 1:
        who = f"each of {layout.mesh.num_devices} devices ({layout.mesh})"
    if isinstance(layer, PipelinedChain):
        devices = mesh.p.stage_devices if isinstance(mesh, Local) else 1
        if devices == 1:
            return f"{who} computes its stages one after the other, none of them idle", [()] * num
        where = f"each of {devices} devices has its stages and their weights, the first all others"
        return where, [(i % devices,) for i in range(num)]
    parts = [] if layout is None else _parts(layout)
    if len(parts) < 2:
        return f"{who} computes all stages side by side, idle ones in vain", [()] * num
    if num % len(parts):
        raise ParamError(
            f"{layer.path}: num_stages={num} do not stand on {len(parts)} equal parts of the mesh:"
            " its axis stage has to divide them"
        )
    where = f"{who} has the weights of the stages that it computes, of no others"
    return where, [parts[i * len(parts) // num] for i in range(num)]


def _who(num_replicas: int | None) -> str:
    """Returns who computes, where no layout says it."""
    if num_replicas == 1:
        return "one device"
    return "each replica" if num_replicas is None else f"each of {num_replicas} replicas"


def _parts(layout: Layout) -> list[tuple[int, ...]]:
    """Returns the numbers of the devices in each part that a mesh is cut into along stages."""
    mesh = layout.mesh
    axes = [axis for axis in layout.rules.weights["stage"] if mesh.size([axis]) > 1]
    ids = np.moveaxis(mesh.ids(), [mesh.axes.index(axis) for axis in axes], range(len(axes)))
    return [tuple(sorted(part.tolist())) for part in ids.reshape(mesh.size(axes), -1)]
