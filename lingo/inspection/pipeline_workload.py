"""The workload of an experiment's pipelines: shapes, FLOPs, and the bubble.

Shapes are those with which the task calls its layers when it counts the FLOPs of a batch.
K stages, R repeats.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lingo.contract import Experiment
from lingo.layers import path
from lingo.layers.stacks.chain import Chain
from lingo.layers.stacks.micro_batches import first_shape, micro_batch_shape, with_rows
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.learner.padding import pipelines
from lingo.learner.task import first_calls
from lingo.mesh.pipeline.schedule import Schedule, circular, fill_drain


class PipelineWorkload(NamedTuple):
    """A pipeline of an experiment, and what it computes."""

    layer: Pipeline | PipelinedChain
    shape: Any  # shape of its input for one micro-batch; tuples of shapes for several tensors
    share: float  # its share of the FLOPs of the task's forward pass, 0..1
    compiled: bool  # whether XLA compiles it
    # The number of replicas that share a batch; None if unknown, then `shape` is that of a single
    # replica.
    num_replicas: int | None

    @property
    def name(self) -> str:
        """The path of the layer; of the first one if a program stacks several."""
        return path.names(self.layer.path)[0]

    @property
    def is_chain(self) -> bool:
        """Whether the pipeline is a chain of different layers, not of equal ones."""
        return isinstance(self.layer, PipelinedChain)

    @property
    def stage_layers(self) -> list[list[range]]:
        """The layers of each stage in each repeat, [R][K]."""
        return self.layer.stage_layers(self.shape)

    @property
    def computed_layers(self) -> list[list[range]]:
        """The layers that each stage computes in each repeat, [R][K].

        A `Pipeline` computes all stages as full ones, and discards the results of padding layers.
        A stage of a `PipelinedChain` computes its own layers only.
        """
        layers = self.stage_layers
        return layers if self.is_chain else [[layers[0][0]] * len(repeat) for repeat in layers]

    @property
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
        """Whether only the input of a stage is kept for its gradient."""
        return isinstance(self.layer, PipelinedChain) or self.layer.p.remat

    @property
    def num_recomputed(self) -> int:
        """How often the gradient recomputes a forward step; a loop under XLA adds one."""
        return self.recomputes + (self.compiled and not self.is_chain)

    @property
    def backward_units(self) -> int:
        """The time of a backward step, in forward steps."""
        return 2 + self.num_recomputed

    @property
    def schedule(self) -> Schedule:
        """The schedule, as if stages were equal. The unit of time is a forward step."""
        p, num_repeats, backward = self.layer.p, len(self.stage_layers), self.backward_units
        if num_repeats > 1:
            return circular(p.num_stages, p.num_micro_batches, num_repeats, backward)
        return fill_drain(p.num_stages, p.num_micro_batches, backward)

    @property
    def bubble_fraction(self) -> float:
        """The idle share of the time of all stages, if all FLOPs take the same time.

        If stages are equal or have no FLOPs, it is that of the schedule. Otherwise padding layers
        count as idle time: 6 layers in 4 stages take the time of 8.
        """
        flops, schedule = self.layer.layer_flops(self.shape), self.schedule
        forward = [[sum(flops[i] for i in layers) for layers in r] for r in self.stage_layers]
        if len({stage for repeat in forward for stage in repeat}) == 1:
            return schedule.bubble_fraction
        forward = [[sum(flops[i] for i in layers) for layers in r] for r in self.computed_layers]
        backward = [[self.backward_units * step for step in repeat] for repeat in forward]
        makespan = schedule.with_durations(forward, backward).makespan
        useful = schedule.num_micro_batches * (1 + self.backward_units) * sum(flops)
        return 1 - useful / (schedule.num_stages * makespan)


def find_pipelines(experiment: Experiment, *, started: bool = False) -> list[PipelineWorkload]:
    """Returns the pipelines of an experiment; they count its devices only if these are `started`.

    Raises ParamError if a pipeline's input is unknown, or its micro-batches are unequal.
    """
    task = experiment.task
    if not (layers := pipelines(task)):
        return []
    specs = experiment.train_input.specs()
    answers, total = first_calls(task, specs, layers), task.batch_flops(specs)
    num_replicas = experiment.runtime.num_replicas(devices_ready=started)
    workloads: list[PipelineWorkload] = []
    for layer in layers:
        shape, flops, _ = answers[layer]
        share = flops / total if total else 0.0
        shape = _micro_batch(shape, layer, experiment, num_replicas or 1)
        workloads.append(
            PipelineWorkload(layer, shape, share, experiment.runtime.compiles, num_replicas)
        )
    return workloads


def _micro_batch(
    shape: Any, layer: Pipeline | PipelinedChain, experiment: Experiment, num_replicas: int
) -> Any:
    """Returns the shape of one micro-batch in training, for the shape of a whole batch."""
    rows = -(-first_shape(shape)[0] // num_replicas)
    rows = experiment.runtime.padded_batch_size(rows, experiment.learner)
    return micro_batch_shape(layer, with_rows(shape, rows // experiment.p.accumulation_steps))
