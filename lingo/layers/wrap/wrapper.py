"""The base class of layers that wrap another layer and change how its methods are computed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from lingo.config.base.types import Wrapped
from lingo.config.lazy import tf
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.residual import Residual, ResidualCall

_OF_SHAPES = ("flops", "output_shape")
"""Endings of the names of methods that compute with shapes. A wrapper does not change them."""


class Wrapper(Layer, interface=True):
    """Base class of layers that stand in for the layer inside, with its paths and methods.

    Subclasses define `call_wrapped`.
    """

    layer: Wrapped  # the layer inside

    positionwise = True  # layers inside have their own

    def setup(self) -> None:
        self.layer = self.p.layer.build()

    def call_wrapped(self, method: str, *args: Any, **inputs: Any) -> Any:
        """Calls the method named `method` of the layer inside, in the wrapper's own way."""
        raise NotImplementedError(f"{type(self).__name__} has no call_wrapped")

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Calls the layer inside; inputs and results have the same shapes as that layer's."""
        return self.call_wrapped("__call__", *args, **inputs)

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        return self.call_wrapped("step", x, index, inputs=inputs)

    def result_scale(self, product: str) -> tf.Tensor | None:
        return self.layer.result_scale(product)

    def flops(self, shape: Sequence[int], *, memory_length: int | None = None) -> int:
        return self.layer.flops(shape, memory_length=memory_length)

    def __getattr__(self, name: str) -> Any:
        inside = self.__dict__.get("layer")
        if inside is None or name.startswith("_"):
            return super().__getattr__(name)
        if not hasattr(wrapped_class(inside), name):
            child = vars(_innermost(inside)).get(name)  # a layer in it, such as `embedding`
            return child if isinstance(child, Layer) else super().__getattr__(name)
        if name.endswith(_OF_SHAPES) or not callable(getattr(wrapped_class(inside), name)):
            return getattr(inside, name)
        return functools.partial(self.call_wrapped, name)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []


def wrapped_class(layer: Layer) -> type[Layer]:
    """Returns the class of a layer; for a wrapper, the class of the innermost layer inside."""
    return type(_innermost(layer))


def _innermost(layer: Layer) -> Layer:
    while isinstance(layer, Wrapper):
        layer = layer.layer
    return layer
