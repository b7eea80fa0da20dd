"""Layers one after the other: a stack of one pattern, or a chain of different layers.

`Stack`, `Repeat` and `Pipeline` share the fields `layer` and `num_layers` and give their layers the
same paths, `layers/<i>`, so that each can replace the others: `--set=Stack=Repeat`.

Axes: B batch.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

from lingo.config.lazy import tf
from lingo.config.params import ParamError, fields, inherited_values
from lingo.layers.flops import passes_tensors
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer


class Stack(Layer):
    """Identical layers one after the other, each with its own computation in the program."""

    layer: Layer | list[Layer]  # the layer to repeat, or a list of layers that repeats as a whole
    num_layers: int = 1  # number of layers in all

    positionwise = True  # layers inside have their own

    def check(self) -> None:
        if not self.pattern:
            raise ParamError("layer=[] is not a pattern: give at least one layer")
        if self.p.num_layers < 1 or self.p.num_layers % len(self.pattern):
            raise ParamError(
                f"num_layers={self.p.num_layers} is not a positive multiple of the"
                f" {len(self.pattern)} layers of the pattern"
            )

    @property
    def pattern(self) -> list[Any]:
        """The params of the layers that repeat in this order: `layer` as a list."""
        return self.p.layer if isinstance(self.p.layer, list) else [self.p.layer]

    def setup(self) -> None:
        in_turn = itertools.islice(itertools.cycle(self.pattern), self.p.num_layers)
        self.layers = [layer.build(**inherited_values()) for layer in in_turn]

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Calls each layer on the previous layer's output; keeps the shape of x, [B, ...]."""
        for layer in self.layers:
            x = layer(x, inputs=inputs)
        return x

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        for layer in self.layers:
            x = layer.step(x, index, inputs=inputs)
        return x

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result."""
        return tuple(shape)

    def flops(self, shape: Sequence[int], *, memory_length: int | None = None) -> int:
        shape = tuple(shape)  # a new tensor: a layer does not read the stack's own input
        return sum(layer.flops(shape, memory_length=memory_length) for layer in self.layers)


class Chain(Layer):
    """Different layers one after the other; each takes the previous layer's result.

    `Stack` repeats layers on activations of one shape. Here all layers may differ, and the
    activations between them may change shape or be several tensors. Each layer has its own
    computation in the program.

    Every layer needs `flops`, and `output_shape(shape)`, which maps the shape of the layer's input
    to the shape of its result. For several tensors, these shapes are tuples of shapes.

    A layer whose `dim` is not set inherits the width of the result before it, if that is known
    without the shape of the input: `Flatten`, for example, ends it.
    """

    layers: list[Layer]  # in order

    positionwise = True  # layers inside have their own

    def check(self) -> None:
        if not self.p.layers:
            raise ParamError("layers=[] computes nothing: give at least one layer")

    def setup(self) -> None:
        layers: list[Layer] = []
        width = None
        for params in self.p.layers:
            is_set = "dim" in fields(params.cls) and params.is_given("dim")
            layers.append(params.build(**({} if is_set or width is None else {"dim": width})))
            width = _output_width(layers[-1], width)
        self.layers = layers

    def __call__(self, x: Any) -> Any:
        """Calls each layer on the previous layer's result: one or several tensors [B, ...]."""
        for layer in self.layers:
            x = layer(x)
        return x

    @passes_tensors
    def output_shape(self, shape: Any) -> Any:
        """Returns the shape of the result; for several tensors, a tuple of their shapes."""
        for layer in self.layers:
            shape = layer.output_shape(shape)
        return shape

    def layer_flops(self, shape: Any) -> list[int]:
        """Returns the operations of each layer's matrix products in a forward call.

        `shape` is the shape of the chain's input.
        """
        flops = []
        for layer in self.layers:
            flops.append(layer.flops(shape))
            shape = layer.output_shape(shape)
        return flops

    def flops(self, shape: Sequence[int]) -> int:
        return sum(self.layer_flops(shape))


def _output_width(layer: Layer, width: int | None) -> int | None:
    """Returns the size of the last axis of a layer's result, given its input's; None: not known.

    The function asks `output_shape` for a vector, a sequence and an image. The width is known if
    the answers, where the layer takes these shapes, are the same.
    """
    own = fields(type(layer))
    if "output_dim" in own:
        return layer.p.output_dim
    if (width := layer.p.dim if "dim" in own else width) is None:
        return None
    found = set[int]()
    for sizes in ([], [64], [64, 64]):
        with contextlib.suppress(Exception):  # a shape that the layer does not take
            found.add(layer.output_shape([1, *sizes, width])[-1])
    return found.pop() if len(found) == 1 else None
