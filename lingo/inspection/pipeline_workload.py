"""What an experiment gives its pipelines to compute: shapes, FLOPs, and the share of it in vain.

Shapes are those that layers are asked for when the task counts the operations of a batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lingo.contract import Experiment
from lingo.layers import path
from lingo.layers.stacks.chain import Chain
from lingo.layers.stacks.micro_batches import first_shape, micro_batch_shape, with_rows
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.learner.filling import pipelines
from lingo.learner.incoming import incoming
from lingo.mesh.pipeline.schedule import Schedule, circular, fill_drain


class PipelineWorkload(NamedTuple):
    """A pipeline of an experiment, and what it computes.

    Attributes:
        layer: the pipeline.
        shape: of its input for one micro-batch; tuples of shapes for several tensors.
        share: of the FLOPs of a forward pass of the task, 0..1.
        compiled: whether XLA compiles it.
        num_replicas: how many share the batch; None if unknown, and `shape` is that of one.
    """

    layer: Pipeline | PipelinedChain
    shape: Any
    share: float
    compiled: bool
    num_replicas: int | None

    @property
    def name(self) -> str:
        """The path of the layer; if a program stacks several, of the first."""
        return path.names(self.layer.path)[0]

    @property
    def is_chain(self) -> bool:
        """Whether stages have unlike layers, each its own."""
        return isinstance(self.layer, PipelinedChain)

    @property
    def stage_layers(self) -> list[list[range]]:
        """The layers of each stage in each repeat, [R][K]."""
        return self.layer.blocks(self.shape)

    @property
    def computed_layers(self) -> list[list[range]]:
        """The layers whose time each stage takes in each repeat, [R][K].

        A `Pipeline` computes all stages as full ones, and throws away what fills up the others. A
        stage of a `PipelinedChain` takes the time of its own layers.
        """
        layers = self.stage_layers
        return layers if self.is_chain else [[layers[0][0]] * len(repeat) for repeat in layers]

    @property
    def shapes(self) -> list[Any]:
        """The input of each layer for one micro-batch, and last the output of the last layer."""
        if not isinstance(self.layer, Chain):
            return [self.shape] * (self.layer.p.num_layers + 1)
        shapes = [self.shape]
        for layer in self.layer.layers:
            shapes.append(layer.output_shape(shapes[-1]))
        return shapes

    @property
    def recomputes(self) -> bool:
        """Whether the gradient of a stage is computed from its input alone."""
        return isinstance(self.layer, PipelinedChain) or self.layer.p.remat

    @property
    def num_recomputed(self) -> int:
        """How often the gradient computes a forward step again; under XLA loops add one."""
        return self.recomputes + (self.compiled and not self.is_chain)

    @property
    def backward_units(self) -> int:
        """How many times as long a backward step takes as a forward step."""
        return 2 + self.num_recomputed

    @property
    def schedule(self) -> Schedule:
        """The clock, as if stages were equal. A unit of time is a forward step."""
        p, num_repeats, backward = self.layer.p, len(self.stage_layers), self.backward_units
        if num_repeats > 1:
            return circular(p.num_stages, p.num_micro_batches, num_repeats, backward)
        return fill_drain(p.num_stages, p.num_micro_batches, backward)

    @property
    def bubble_fraction(self) -> float:
        """The idle share of the time of all stages, if a FLOP takes as long everywhere.

        Where stages are equal, or nothing multiplies anything, it is that of the schedule. Else
        what is computed to fill up a stage counts as idle: 6 layers in 4 stages take the time of 8.
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
    """Returns the pipelines of an experiment.

    Args:
        experiment: whose layers they are.
        started: whether its devices have been made, and can be counted.

    Raises:
        ParamError: if the input of one is unknown, or its micro-batches are unequal.
    """
    task = experiment.task
    if not (layers := pipelines(task)):
        return []
    specs = experiment.train_input.specs()
    answers, total = incoming(task, specs, layers), task.batch_flops(specs)
    num_replicas = experiment.mesh.num_replicas(started=started)
    workloads: list[PipelineWorkload] = []
    for layer in layers:
        shape, flops = answers[layer]
        share = flops / total if total else 0.0
        shape = _micro_batch(shape, layer, experiment, num_replicas or 1)
        workloads.append(
            PipelineWorkload(layer, shape, share, experiment.mesh.compiles, num_replicas)
        )
    return workloads


def _micro_batch(
    shape: Any, layer: Pipeline | PipelinedChain, experiment: Experiment, num_replicas: int
) -> Any:
    """Returns the shape of one micro-batch in training, for the shape of a whole batch."""
    rows = -(-first_shape(shape)[0] // num_replicas)
    rows = experiment.mesh.filled_up(rows, experiment.learner)
    return micro_batch_shape(layer, with_rows(shape, rows // experiment.p.accumulation_steps))
