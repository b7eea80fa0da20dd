"""Computes wrapped weights once, for a decoding loop that reads them often and needs no gradients.

for each wrapper that computes weights, from the outside in:   # Lora: w + a b
    weights[its matrices] = the computed weights of the layer inside
weights = cast to the dtype of the layers
"""

from __future__ import annotations

import dataclasses

from lingo.config.lazy import tf
from lingo.layers import context
from lingo.layers.context import Call
from lingo.layers.layer import Layer
from lingo.layers.wrap.reweighted import Reweighted


def fold_weights(layer: Layer, call: Call) -> Call:
    """Returns a call context in which a layer gives the same results from precomputed weights.

    Args:
        layer: the layer, whose whole tree is included; stacked weights are computed at once.
        call: a context outside of any scan.
    """
    weights = dict(call.weights)
    for part in layer.tree():  # a wrapper comes before what it wraps, as it does in a call
        if isinstance(part, Reweighted):
            with context.enter_call(call.derive(weights=weights)):
                weights |= part.matrix_values()
    weights |= {where: tf.cast(weights[where], s.dtype) for where, s in layer.weights().items()}
    return dataclasses.replace(call, weights=weights, weights_ready=True)
