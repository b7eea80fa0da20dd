"""Unlike layers, one after the other: what one returns, the next one takes.

`Stack` repeats one pattern on activations of one shape; here every layer is its own, and what goes
from one to the next may change its shape, or be several tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lingo.config.params import ParamError
from lingo.layers.layer import Layer


class Chain(Layer):
    """Layers one after the other, each with a copy of the computation in the program.

    Every layer has, beside `flops`, `output_shape(shape)`: the shape of its result, for an input of
    a shape; tuples of shapes where it takes or returns several tensors.
    """

    layers: list[Layer]  # in order

    def check(self) -> None:
        if not self.p.layers:
            raise ParamError("layers=[] computes nothing: give at least one layer")

    def setup(self) -> None:
        self.layers = [layer.build() for layer in self.p.layers]

    def __call__(self, x: Any) -> Any:
        """Calls each layer on what the one before returns.

        Args:
            x: [B, ...], or a structure of such tensors: what the first layer takes.

        Returns:
            What the last layer returns.
        """
        for layer in self.layers:
            x = layer(x)
        return x

    def output_shape(self, shape: Any) -> Any:
        """Returns the shape of the result; tuples of shapes for several tensors."""
        for layer in self.layers:
            shape = layer.output_shape(shape)
        return shape

    def layer_flops(self, shape: Any) -> list[int]:
        """Returns the operations of each layer's matrix products, for an input of a shape."""
        found = []
        for layer in self.layers:
            found.append(layer.flops(shape))
            shape = layer.output_shape(shape)
        return found

    def flops(self, shape: Sequence[int]) -> int:
        return sum(self.layer_flops(shape))
