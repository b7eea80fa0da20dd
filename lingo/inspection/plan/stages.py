"""Plans of a `PipelinedChain`: the bytes and seconds of each stage of unlike layers.

    lingo plan --exp=image.amoebanet.amoebanet_d --hardware=tpu_v3 \\
        --set='Chain=PipelinedChain(num_stages=8, num_micro_batches=32)' \\
        --set='runtime=Local(stage_devices=8)'

Each stage has a device. It keeps the inputs of all micro-batches, computes its forward pass again
before it computes gradients, and adds up the gradients of micro-batches (Huang et al. 2019, sec.
2.3). Arithmetic, memory and network are as in the other plans (`estimate.py`).
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from lingo.config.count_text import count_text
from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.inspection.memory import size
from lingo.inspection.pipeline import PipelineReport, find_pipelines
from lingo.inspection.pipeline import Stage as StageSize
from lingo.inspection.pipeline_table import compact
from lingo.inspection.plan import memory, workload
from lingo.inspection.plan.exchange import unit_part
from lingo.inspection.plan.hardware import Hardware
from lingo.inspection.plan.network import Network
from lingo.inspection.plan.table import IS_PREDICTION, duration
from lingo.inspection.weight_table import Columns, align_columns
from lingo.layers.flops import (
    BATCH,
    Record,
    list_shapes,
    number_tensor,
    record_flops,
    tensor_number,
)
from lingo.layers.layer import Layer
from lingo.layers.stacks.micro_batches import first_shape
from lingo.learner.state import FLOAT_BYTES, Learner
from lingo.mesh.pipeline import Schedule
from lingo.mesh.rules import RECIPES
from lingo.mesh.topology import topology
from lingo.runtimes.local import Local

_STATE = ("weights", "slots", "gradients", "statistics")
_RULES = RECIPES["1d"]


class Stage(NamedTuple):
    """The predicted memory and time of a stage, which has a device."""

    size: StageSize  # its layers, FLOPs and tensors
    bytes: dict[str, float]  # kind, such as "weights" -> bytes on the device
    forward_seconds: float  # of a micro-batch, until its result is on the next device
    backward_seconds: float  # the same of the backward pass, recomputation included
    update_seconds: float  # of the optimizer, after the last micro-batch

    @property
    def state_bytes(self) -> float:
        return sum(self.bytes[kind] for kind in _STATE)

    @property
    def total_bytes(self) -> float:
        return sum(self.bytes.values())


class StagePlan(NamedTuple):
    """The predicted memory and time of a step in stages."""

    hardware: Hardware
    batch_size: int
    flops: int  # of a forward pass of a batch
    peak: float  # FLOPs per second of a device, in the dtype of the computation
    shape: Any  # of a micro-batch
    stages: list[Stage]
    schedule: Schedule  # in seconds

    @property
    def step_seconds(self) -> float:
        return self.schedule.makespan + max(stage.update_seconds for stage in self.stages)

    @property
    def utilization(self) -> float:
        """The model's FLOPs over those that the devices could do in the step's time."""
        return 3 * self.flops / (len(self.stages) * self.peak * self.step_seconds)

    @property
    def largest(self) -> Stage:
        """The stage that needs the most bytes."""
        return max(self.stages, key=lambda stage: stage.total_bytes)

    @property
    def fits(self) -> bool:
        return self.largest.total_bytes <= self.hardware.memory_bytes


def find_chain(experiment: Experiment) -> PipelineReport | None:
    """Returns the pipeline of unlike layers of an experiment; None if it has no such pipeline.

    Raises ParamError if the experiment has several, or not one device for each stage.
    """
    chains = [one for one in find_pipelines(experiment) if one.is_chain]
    if not chains:
        return None
    if len(chains) > 1:
        raise ParamError(f"plans are for one PipelinedChain, and there are {len(chains)}")
    (chain,) = chains
    runtime, num_stages = experiment.runtime, chain.layer.p.num_stages
    if not isinstance(runtime, Local) or runtime.p.stage_devices != num_stages:
        given = getattr(runtime.p, "stage_devices", None)
        raise ParamError(
            f"a chain of {num_stages} stages is predicted with a device for each stage, and"
            f" runtime={type(runtime).__name__}"
            + ("" if given is None else f" has stage_devices={given}")
            + f": --set='runtime=Local(stage_devices={num_stages})'"
        )
    return chain


def plan_stages(experiment: Experiment, chain: PipelineReport, hardware: Hardware) -> StagePlan:
    """Predicts bytes and seconds of each stage; raises ParamError if no network has the devices."""
    network = Network(hardware, topology({"stage": len(chain.stages)}))
    whole, calls = workload.workload(experiment), _record_calls(experiment)
    layers, num_micro_batches = [*chain.layer.inner_layers()], chain.layer.p.num_micro_batches
    stages: list[Stage] = []
    for one in chain.stages:
        mine = [layers[i] for part in one.layers for i in part]
        inputs = list_shapes(calls[mine[0]].shape)
        kept = {number for shape in inputs if (number := tensor_number(shape)) is not None}
        walk = workload.LayerWalk(calls, [], kept)
        for layer in mine:
            walk.add(layer, workload.LayerContext())
        load = whole._replace(units=walk.units, residuals=walk.residuals, order=walk.order())
        state = _state_bytes(experiment.learner, mine)
        boundaries = {"boundaries": float(num_micro_batches * one.input_bytes)}
        rest = _working_bytes(load, state, hardware, num_micro_batches)
        forward = _forward_seconds(load, hardware, num_micro_batches)
        sent, received = (
            network.seconds("permute", num_bytes, ["stage"])
            for num_bytes in (one.output_bytes, one.input_bytes)
        )
        is_first, is_last = not stages, one is chain.stages[-1]
        moved = 2 * (state["weights"] + state["slots"]) + state["gradients"]
        stages.append(
            Stage(
                one,
                {**state, **boundaries, **rest},
                forward_seconds=forward + (0.0 if is_last else sent),
                backward_seconds=chain.backward_units * forward + (0.0 if is_first else received),
                update_seconds=moved / hardware.memory_bandwidth,
            )
        )
    schedule = chain.schedule.with_durations(
        [[stage.forward_seconds for stage in stages]],
        [[stage.backward_seconds for stage in stages]],
    )
    return StagePlan(
        hardware,
        whole.batch_size,
        whole.flops,
        hardware.rate(whole.dtype),
        chain.shape,
        stages,
        schedule,
    )


def _record_calls(experiment: Experiment) -> Record:
    """Returns the calls of an experiment's layers for a batch."""
    specs = experiment.train_input.specs().items()
    with record_flops() as calls:
        experiment.task.batch_flops({k: (number_tensor(v[0], BATCH), v[1]) for k, v in specs})
    return calls


def _state_bytes(learner: Learner, layers: Sequence[Layer]) -> dict[str, float]:
    """Returns the bytes of some layers' weights, slots, gradients and statistics."""
    prefixes = tuple(f"{layer.path}/" for layer in layers)
    own = [where for where in learner.weights() if where.startswith(prefixes)]
    weights = sum(math.prod(learner.weights()[where].shape) for where in own)
    slots = learner.slots()
    shapes = [slot.shape for where in own for slot in slots.get(where, {}).values()]
    states = [s.shape for where, s in learner.states().items() if where.startswith(prefixes)]
    numbers = (weights, sum(map(math.prod, shapes)), weights, sum(map(math.prod, states)))
    return {kind: float(FLOAT_BYTES * n) for kind, n in zip(_STATE, numbers, strict=True)}


def _working_bytes(
    load: workload.Workload, state: dict[str, float], hardware: Hardware, num_micro_batches: int
) -> dict[str, float]:
    """Returns the bytes that the gradient of a micro-batch needs, by kind."""
    residuals = memory.residual_bytes(
        load,
        topology({}),
        _RULES,
        parts=num_micro_batches,
        micro_batches=1,
        is_tpu=hardware.is_tpu,
    )
    return memory.working_bytes(
        residuals,
        memory.Loop(0.0, 0.0, 0.0, 1.0, is_recomputed=False),
        gradients=state["gradients"],
        new_state=state["weights"] + state["slots"],
        gathered=0.0,
        is_accumulated=True,
    )


def _forward_seconds(load: workload.Workload, hardware: Hardware, num_micro_batches: int) -> float:
    """Returns the seconds of a forward pass of a micro-batch, on one device."""
    seconds = 0.0
    for unit, number in load.units.items():
        part = unit_part(
            unit,
            topology({}),
            _RULES,
            share=1 / num_micro_batches,
            tile=hardware.matrix_tile,
            is_tpu=hardware.is_tpu,
        )
        seconds += number * max(
            part.padded_flops / hardware.rate(unit.dtype),
            part.moved_bytes / hardware.memory_bandwidth,
        )
    return seconds


# ---- report --------------------------------------------------------------------------------------


def text(plan: StagePlan, name: str) -> str:
    """Returns a plan as text: a table of stages, then what the whole step needs."""
    stages, hardware, largest = plan.stages, plan.hardware, plan.largest
    title = (
        f"{name}: {count_text(plan.batch_size, 'example')} a step, {3 * plan.flops:.4g} FLOPs,"
        f" in {len(stages)} stages on {len(stages)} x {hardware.name} of"
        f" {size(hardware.memory_bytes)}"
    )
    weights = sum(stage.bytes["weights"] for stage in stages)
    advice = "it fits" if plan.fits else "it does not fit: take more stages or micro-batches"
    lines = [
        f"{size(weights)} of weights; the largest stage needs {size(largest.total_bytes)}, and"
        f" {hardware.name} has {size(hardware.memory_bytes)}: {advice}",
        f"bubble {plan.schedule.bubble_fraction:.1%}, step {duration(plan.step_seconds)},"
        f" utilization {plan.utilization:.1%}",
    ]
    shape = list(first_shape(plan.shape))
    note = textwrap.fill(
        f"{plan.schedule.num_micro_batches} micro-batches of {shape}. {IS_PREDICTION} Seconds are"
        " of a micro-batch, with sending; a backward pass computes the forward pass again.",
        100,
    )
    end = "".join(f"{line}\n" for line in lines)
    return "\n".join([f"{title}\n{note}\n", align_columns(_columns(stages)), end])


def _columns(stages: Sequence[Stage]) -> Columns:
    words = {
        "stage": [str(i) for i in range(len(stages))],
        "layers": [", ".join(map(compact, stage.size.layers)) for stage in stages],
    }
    sizes = {
        "weights": [stage.bytes["weights"] for stage in stages],
        "state": [stage.state_bytes for stage in stages],
        "inputs": [stage.bytes["boundaries"] for stage in stages],
        "in all": [stage.total_bytes for stage in stages],
    }
    numbers = {"FLOPs": [f"{stage.size.flops:.3g}" for stage in stages]}
    numbers |= {name: [*map(size, values)] for name, values in sizes.items()}
    numbers["forward"] = [duration(stage.forward_seconds) for stage in stages]
    numbers["backward"] = [duration(stage.backward_seconds) for stage in stages]
    return Columns(words, numbers)


def json_text(plan: StagePlan, name: str) -> str:
    """Returns a plan as one line of JSON, with all digits."""
    values = {
        "experiment": name,
        "is_prediction": True,
        "hardware": plan.hardware.name,
        "memory_bytes": plan.hardware.memory_bytes,
        "batch_size": plan.batch_size,
        "model_flops": 3 * plan.flops,
        "num_micro_batches": plan.schedule.num_micro_batches,
        "fits": plan.fits,
        "step_seconds": plan.step_seconds,
        "bubble": plan.schedule.bubble_fraction,
        "utilization": plan.utilization,
        "stages": [
            {
                "layers": [list(part) for part in stage.size.layers],
                "flops": stage.size.flops,
                "bytes": stage.bytes,
                "forward_seconds": stage.forward_seconds,
                "backward_seconds": stage.backward_seconds,
                "update_seconds": stage.update_seconds,
            }
            for stage in plan.stages
        ],
    }
    return f"{json.dumps(values)}\n"
