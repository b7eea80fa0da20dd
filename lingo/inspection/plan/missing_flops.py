"""Layers that multiply matrices, but do not count their FLOPs: those of Keras, and the user's."""

from __future__ import annotations

from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.layers.layer import Layer
from lingo.layers.wrap.reweighted import is_matrix

SHOWN = 3
_OWN = "lingo.layers."  # all of these that multiply count; the others read tables


def missing_flops(experiment: Experiment) -> list[str]:
    """Returns layers that have matrices and no `flops`, as "model/net (Keras)".

    Raises ParamError if the task counts nothing at all.
    """
    layers = [layer for layer in experiment.task.tree() if _has_no_flops(layer)]
    found = [f"{layer.path or 'the task'} ({type(layer).__name__})" for layer in layers]
    if not experiment.task.batch_flops(experiment.train_input.specs()):
        kind = type(experiment.task).__name__
        names = ", ".join(found[:SHOWN]) or "the layers of its model"
        raise ParamError(
            f"task: {kind} counts no FLOPs, so there is nothing to plan. Define"
            f" `batch_flops(specs)` of {kind} if it has none, and `flops(shape)` of {names}; layers"
            " of Keras cannot count: take those of lingo.layers in their place"
        )
    return found


def _has_no_flops(layer: Layer) -> bool:
    if type(layer).flops is not Layer.flops:
        return False
    if type(layer)._late:  # its weights are those of a model of Keras
        return True
    weights = [spec for spec in layer.declarations() if spec.decay is None]
    return any(map(is_matrix, weights)) and not type(layer).__module__.startswith(_OWN)
