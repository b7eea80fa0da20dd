"""A stack of alike layers as a scan: one copy of the computation, whatever the number of layers.

stacked: program path -> tensor [n, ...], the weights of all layers
for i in range(n):                      # one tf.while_loop
    x, sides[i] = body(x, weights[i])   # the pattern's layers, in a derived call context
sides: losses and metrics are added up, moments and caches stay stacked
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lingo.config.lazy import tf
from lingo.config.params import inherited_values
from lingo.layers import context, path
from lingo.layers.layer import Layer
from lingo.layers.stacks.stack import Stack
from lingo.ops.scan import scan


class Repeat(Stack):
    """Layers one after the other by a scan over stacked weights (as in Lingvo's `RepeatLayer`).

    Tracing and compiling take the time of one turn of the pattern.
    """

    def setup(self) -> None:
        size = len(self.pattern)
        self.turns = self.p.num_layers // size
        self.body = []
        for start, layer in enumerate(self.pattern):
            layer = layer.build(**inherited_values())
            self.repeated("layers", layer, self.turns, start=start, step=size)
            self.body.append(layer)

    def __call__(self, x: tf.Tensor, **inputs: Any) -> tf.Tensor:
        def turn(x: tf.Tensor) -> tf.Tensor:
            for layer in self.body:
                x = layer(x, **inputs)
            return x

        return scan_layers(turn, tf.cast(x, self.p.dtype), self.body, self.turns)

    def step(self, x: tf.Tensor, index: tf.Tensor, **inputs: Any) -> tf.Tensor:
        def turn(x: tf.Tensor) -> tf.Tensor:
            for layer in self.body:
                x = layer.step(x, index, **inputs)
            return x

        return scan_layers(turn, tf.cast(x, self.p.dtype), self.body, self.turns)

    def flops(self, shape: Sequence[int]) -> int:
        return self.turns * sum(layer.flops(shape) for layer in self.body)


def layer_index(layer: Layer, turn: tf.Tensor | int) -> Any:
    """Returns the index that the paths of a repeated layer's copy show."""
    indices = path.index_range(layer.path.rpartition("/")[2])
    if indices is None:
        raise ValueError(f"{layer.path} is no repeated layer")
    return indices.start + indices.step * turn


def scan_layers(
    turn: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, layers: Sequence[Layer], num: int
) -> tf.Tensor:
    """Calls a turn of a pattern so many times, each time with the next weights.

    Args:
        turn: calls the layers of the pattern; the shape of what it gets.
        x: [B, ...], of the type that goes from turn to turn.
        layers: of the pattern, declared by `repeated`.
        num: of turns.
    """
    call = context.current()

    def body(i: tf.Tensor, x: tf.Tensor, values: Any) -> tuple[tf.Tensor, Any]:
        indices = {layer.path: layer_index(layer, i) for layer in layers}
        inner = call.derive(indices={**call.indices, **indices}, **values)
        with context.entered(inner):
            y = tf.cast(turn(x), x.dtype)  # a layer of narrower type loses nothing by this
        return y, (inner.sides.summed(), inner.sides.stacked())

    x, (added, kept) = scan(body, x, call.of(layers), num)
    call.sides.add(tf.nest.map_structure(lambda v: tf.reduce_sum(v, axis=0), added))
    call.sides.add(kept)
    return x
