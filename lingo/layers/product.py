"""The products of a layer, by name, so that a wrapper can change what is multiplied.

    class Linear(Layer):
        products = (Product("w"),)

        def __call__(self, x):
            return tf.tensordot(*self.operands("w", input=x), 1)

Without a wrapper around the layer, `operands` returns x and the weight as they are.
"""

from __future__ import annotations

from typing import NamedTuple


class Product(NamedTuple):
    """A layer's matrix product or convolution: of activations with a weight or with each other.

    With `is_sum` it is a sum of branches instead, whose operands an 8-bit chip rounds, too.
    """

    name: str  # its weight's name
    activations: tuple[str, ...] = ("input",)
    """The names of the activations. An activation that is named after a natural range, such as
    "tanh", has this range; the ranges of the others have to be measured."""
    sum_axes: tuple[int, ...] | None = None
    """The axes of the weight that the product sums over; None: its first axes, by its fan-in."""
    has_weight: bool = True
    """Whether it multiplies the weight `name`; if the layer has no such weight, it is skipped."""
    exact: bool = False  # whether it is never quantized, as in routers and softmax layers
    is_sum: bool = False  # whether its activations are added, not multiplied

    @property
    def multiplies_activations(self) -> bool:
        """Whether it multiplies activations with each other."""
        return not self.has_weight and not self.is_sum
