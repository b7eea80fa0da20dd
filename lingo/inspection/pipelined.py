"""Which layers of an experiment are pipelines, and what comes to them.

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


class Pipelined(NamedTuple):
    """A pipeline of an experiment.

    Attributes:
        layer: itself.
        shape: of its input for one micro-batch; tuples of shapes for several tensors.
        share: of the FLOPs of a forward pass of the task, 0..1.
        compiled: whether XLA compiles it.
        num_replicas: how many share the batch; None if nobody knows, and `shape` is that of one.
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
    def blocks(self) -> list[list[range]]:
        """For each round, and each stage in it, which layers stand there."""
        return self.layer.blocks(self.shape)

    @property
    def shapes(self) -> list[Any]:
        """What each layer takes for one micro-batch, and behind these what the last returns."""
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
    def num_forward(self) -> int:
        """How often the gradient takes a forward step once more: under XLA turns do so, too."""
        return self.recomputes + (isinstance(self.layer, Pipeline) and self.compiled)

    @property
    def backward_units(self) -> int:
        """How many times as long a backward step takes as a forward step."""
        return 2 + self.num_forward


def pipelined(experiment: Experiment, *, started: bool = False) -> list[Pipelined]:
    """Returns the pipelines of an experiment.

    Args:
        experiment: whose layers they are.
        started: whether its devices are there to be asked how many they are.

    Raises:
        ParamError: if nobody knows which shape comes to one, or its micro-batches are unequal.
    """
    task = experiment.task
    if not (layers := pipelines(task)):
        return []
    specs = experiment.train_input.specs()
    answers, total = incoming(task, specs, layers), task.batch_flops(specs)
    num_replicas = experiment.mesh.num_replicas(started=started)
    found: list[Pipelined] = []
    for layer in layers:
        shape, flops = answers[layer]
        share = flops / total if total else 0.0
        shape = _micro_batch(shape, layer, experiment, num_replicas or 1)
        found.append(Pipelined(layer, shape, share, experiment.mesh.compiles, num_replicas))
    return found


def _micro_batch(
    shape: Any, layer: Pipeline | PipelinedChain, experiment: Experiment, num_replicas: int
) -> Any:
    """Returns the shape that one micro-batch has of the shape of a batch, as it is trained with."""
    rows = -(-first_shape(shape)[0] // num_replicas)
    rows = experiment.mesh.filled_up(rows, experiment.learner)
    return micro_batch_shape(layer, with_rows(shape, rows // experiment.p.accumulation_steps))
