"""Layers that multiply matrices, but do not count their FLOPs: those of Keras, and the user's."""

from __future__ import annotations

from lingo.contract import Experiment
from lingo.layers.layer import Layer
from lingo.layers.wrap.reweighted import is_matrix

SHOWN = 3
_OWN = "lingo.layers."  # all of these that multiply count; the others read tables


def missing_flops(experiment: Experiment) -> list[str]:
    """Returns layers that have matrices and no `flops`, as "model/net (Keras)"."""
    layers = [layer for layer in experiment.task.tree() if _has_no_flops(layer)]
    return [f"{layer.path or 'the task'} ({type(layer).__name__})" for layer in layers]


def no_flops_message(experiment: Experiment) -> str:
    """Returns why an experiment whose task counts nothing at all cannot be planned."""
    kind = type(experiment.task).__name__
    names = ", ".join(missing_flops(experiment)[:SHOWN]) or "the layers of its model"
    return (
        f"task: {kind} counts no FLOPs, so there is nothing to plan. Define `batch_flops(specs)` of"
        f" {kind} if it has none, and `flops(shape)` of {names}; layers of Keras cannot count: take"
        " those of lingo.layers in their place"
    )


def _has_no_flops(layer: Layer) -> bool:
    if type(layer).flops is not Layer.flops:
        return False
    if type(layer)._late:  # its weights are those of a model of Keras
        return True
    weights = [spec for spec in layer.declarations() if spec.decay is None]
    return any(map(is_matrix, weights)) and not type(layer).__module__.startswith(_OWN)
