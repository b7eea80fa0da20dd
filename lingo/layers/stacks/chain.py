"""A chain of different layers: each takes what the one before returns.

`Stack` repeats one pattern on activations of one shape. Here all layers may differ, and the
activations between them may change shape or be several tensors.

Axes: B batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lingo.config.params import ParamError
from lingo.layers.flops import passes_tensors
from lingo.layers.layer import Layer


class Chain(Layer):
    """Layers one after the other, each with its own computation in the program.

    Besides `flops`, every layer has `output_shape(shape)`, which maps the shape of its input to
    that of its result; tuples of shapes are for several tensors.
    """

    layers: list[Layer]  # in order

    positionwise = True  # layers inside have their own

    def check(self) -> None:
        if not self.p.layers:
            raise ParamError("layers=[] computes nothing: give at least one layer")

    def setup(self) -> None:
        self.layers = [layer.build() for layer in self.p.layers]

    def __call__(self, x: Any) -> Any:
        """Calls each layer on what the one before returns: tensors [B, ...], one or several."""
        for layer in self.layers:
            x = layer(x)
        return x

    @passes_tensors
    def output_shape(self, shape: Any) -> Any:
        """Returns the shape of the result; tuples of shapes for several tensors."""
        for layer in self.layers:
            shape = layer.output_shape(shape)
        return shape

    def layer_flops(self, shape: Any) -> list[int]:
        """Returns the operations of each layer's matrix products in a forward call."""
        flops = []
        for layer in self.layers:
            flops.append(layer.flops(shape))
            shape = layer.output_shape(shape)
        return flops

    def flops(self, shape: Sequence[int]) -> int:
        return sum(self.layer_flops(shape))
