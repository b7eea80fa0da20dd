"""What comes to the layers of a task: shapes, without a batch, from how it counts operations."""

from __future__ import annotations

from collections.abc import Iterable

from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.layers import counted
from lingo.layers.layer import Layer
from lingo.learner.task import Task


def first_calls(task: Task, specs: Specs, layers: Iterable[Layer]) -> dict[Layer, counted.Answer]:
    """Returns the first call of some layers in a forward pass of a task: shape and FLOPs.

    Args:
        task: whose layers they are.
        specs: name -> (shape, dtype) of a batch.
        layers: that are asked for.

    Raises:
        ParamError: if the task does not ask one of them for its operations.
    """
    with counted.record_flops() as answers:
        task.batch_flops(specs)
    for layer in layers:
        if layer not in answers:
            raise ParamError(
                f"{layer.path}: {type(task).__name__} does not count the operations of a batch"
                " (`batch_flops`), so nobody knows which shape comes to the pipeline"
            )
    return {layer: answers[layer][0] for layer in layers}
