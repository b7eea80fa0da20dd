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
    """A matrix product or convolution of a layer: of activations with a weight or each other.

    Or, with `is_sum`, a sum of branches, whose operands a chip for 8 bits rounds, too.
    """

    name: str  # that of its weight
    activations: tuple[str, ...] = ("input",)
    """What is multiplied besides the weight. The name of a natural range, such as "tanh", says that
    the values have this range; that of others has to be measured."""
    sum_axes: tuple[int, ...] | None = None
    """The axes of the weight that the product sums over; None: the first, by its fan-in."""
    has_weight: bool = True
    """Whether it multiplies the weight of its name; it is left out if the layer has none."""
    exact: bool = False  # whether it keeps its precision, as those of routers and softmax layers
    is_sum: bool = False  # whether its activations are added; it counts as no product

    @property
    def multiplies_activations(self) -> bool:
        """Whether it multiplies activations with each other."""
        return not self.has_weight and not self.is_sum
