"""Prepares weights before layers read them: applies wrappers, rounds, converts to int8.

    fold_weights        for a decoding loop, which reads weights often: wrappers compute them once
    quantize_weights    for programs that do not train: also converts products' weights to int8

Weights are dicts of program path -> tensor, where stacked layers have one tensor. An 8-bit weight
has two entries: its levels are at its path, and its scale is at `path.scale_of(its path)`. Layers
read levels times scale, which exists as a float32 tensor only where it is used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.layers import context, path
from lingo.layers.context import Call
from lingo.layers.layer import Layer
from lingo.layers.quantization.quantized import Quantized, find_products
from lingo.layers.wrap.reweighted import Reweighted
from lingo.ops.quantization import Channels, quantize_channels


def fold_weights(layer: Layer, call: Call) -> Call:
    """Returns a call context with ready weights, so that a loop does not compute them each time.

    Wrappers such as `Lora` and `Quantized` have been applied to the ready weights, outer wrappers
    first, and weights have their layer's dtype. Stacked weights are computed at once. `call` is a
    context outside of any scan; if its weights are ready, the result is `call` itself.
    """
    if call.weights_ready:
        return call
    weights = _reweight(layer, call)
    with context.enter_call(call.derive(weights=weights)):
        for part in layer.tree():
            if isinstance(part, Quantized):
                weights |= part.rounded_weights()
    return dataclasses.replace(call, weights=weights, weights_ready=True)


def quantize_weights(layer: Layer, call: Call) -> dict[str, Any]:
    """Returns weights like `fold_weights`, but the weights of products have 8 bits.

    Each output of a product has a scale. A weight that is not in a `Quantized`, or whose domain has
    no 8-bit levels, is rounded to such levels here, except in routers and softmax layers.

    The result maps program path -> tensor [*stacked axes, *shape]. A product's weight is int8, with
    a second entry for its scale, float32. Other weights have the layer's dtype. Calls with these
    weights must set `weights_ready`. Raises ValueError if `call` already sets `weights_ready`.
    """
    if call.weights_ready:
        raise ValueError("the weights of this call are ready: wrappers would be applied again")
    weights = _reweight(layer, call)
    with context.enter_call(call.derive(weights=weights)):
        channels = dict(_product_channels(layer, weights))
    for where, (levels, scale) in channels.items():
        weights[where] = tf.cast(levels, tf.int8)
        weights[path.scale_of(where)] = scale
    return weights


def dequantize_weights(weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns program path -> float32 array: the values of weights from `quantize_weights`."""
    arrays = {where: np.asarray(value, np.float32) for where, value in weights.items()}
    for where in weights:
        if (scale := path.scale_of(where)) in arrays:
            arrays[where] = arrays[where] * arrays.pop(scale)
    return arrays


def _reweight(layer: Layer, call: Call) -> dict[str, Any]:
    """Returns a call's weights after wrappers such as `Lora`, each in its layer's dtype."""
    weights = dict(call.weights)
    for part in layer.tree():  # a wrapper comes before what it wraps
        if isinstance(part, Reweighted):
            with context.enter_call(call.derive(weights=weights)):
                weights |= part.matrix_values()
    return weights | {w: tf.cast(weights[w], spec.dtype) for w, spec in layer.weights().items()}


def _product_channels(layer: Layer, weights: Mapping[str, Any]) -> Iterator[tuple[str, Channels]]:
    """Yields (program path of a weight, its 8-bit levels and scale) for each product."""
    for product in find_products(layer):
        if product.product.has_weight and not product.product.exact:
            axes = product.stacked_sum_axes(product.path)
            yield product.path, quantize_channels(weights[product.path], axes)
    for part in layer.tree():
        if isinstance(part, Quantized):
            yield from part.weight_channels().items()
