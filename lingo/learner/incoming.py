"""Input shapes of a task's layers, found without a batch: recorded while the task counts FLOPs."""

from __future__ import annotations

from collections.abc import Iterable

from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.layers.flops import FlopsCall, record_flops
from lingo.layers.layer import Layer
from lingo.learner.task import Task


def first_calls(task: Task, specs: Specs, layers: Iterable[Layer]) -> dict[Layer, FlopsCall]:
    """Returns the input shape and the FLOPs of the first call of some layers in a forward pass.

    Args:
        task: the task that calls the layers.
        specs: name -> (shape, dtype) of a batch.
        layers: layers of the task.

    Raises:
        ParamError: if the task's `batch_flops` does not count one of the layers.
    """
    with record_flops() as calls:
        task.batch_flops(specs)
    for layer in layers:
        if layer not in calls:
            raise ParamError(
                f"{layer.path}: {type(task).__name__} does not count the operations of a batch"
                " (`batch_flops`), so nobody knows which shape comes to the pipeline"
            )
    return {layer: calls[layer] for layer in layers}
