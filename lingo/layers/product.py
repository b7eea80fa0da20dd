"""Declares the matrix products and convolutions of a layer, so that wrappers can change factors.

    class Linear(Layer):
        products = (Product("w"),)

        def __call__(self, x):
            return tf.tensordot(*self.operands("w", input=x), 1)

Without a wrapper around the layer, `operands` returns x and the weight unchanged. `Quantized`, for
example, rounds them.
"""

from __future__ import annotations

from typing import NamedTuple


class Product(NamedTuple):
    """A layer's matrix product or convolution: of activations with a weight or with each other.

    With `is_sum` it is instead a sum of branches. Such a sum is declared since an 8-bit chip rounds
    its terms, too.
    """

    name: str  # name of the weight, or of a product without a weight
    activations: tuple[str, ...] = ("input",)
    """Names of the activations. An activation that is named after a function with a known range,
    such as "tanh", has this range. The ranges of other activations have to be measured."""
    sum_axes: tuple[int, ...] | None = None
    """Axes of the weight that the product sums over. None: its first axes, as many as have together
    the size of the weight's fan-in."""
    has_weight: bool = True
    """Whether the weight `name` is a factor. If the layer does not declare this weight, the product
    is skipped."""
    exact: bool = False  # whether the product is never quantized, as in routers and softmax layers
    is_sum: bool = False  # whether the activations are added, not multiplied

    @property
    def multiplies_activations(self) -> bool:
        """Whether the product multiplies activations with each other."""
        return not self.has_weight and not self.is_sum
