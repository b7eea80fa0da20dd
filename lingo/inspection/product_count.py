"""How many products of a model are quantized, and which are not."""

from __future__ import annotations

import collections
import math
from typing import NamedTuple

from lingo.layers import path
from lingo.layers.layer import Layer
from lingo.layers.quantization.quantized import Quantized, layer_products
from lingo.layers.wrap.reweighted import is_matrix


class ProductCount(NamedTuple):
    """Numbers of products; those of stacked layers count for each layer."""

    num_quantized: int
    others: dict[str, int]  # class of a layer -> the number of its products that keep precision

    def __str__(self) -> str:
        total = self.num_quantized + sum(self.others.values())
        text = f"{self.num_quantized} of {total} products quantized"
        others = [f"{number} of {name}" for name, number in self.others.items()]
        return f"{text}, not {', '.join(others)}" if others else text


def count_products(model: Layer) -> ProductCount:
    """Counts the products of a root layer.

    A class that says its `flops` but not its `products`, and has no layers inside, counts one for
    each matrix: no wrapper can change these.
    """
    quantized = {
        path.join(wrapper.path, product.path)
        for wrapper in model.tree()
        if isinstance(wrapper, Quantized)
        for product in wrapper.quantized_products
    }
    numbers: collections.Counter[str] = collections.Counter()
    count = 0
    for layer in model.tree():
        for name in _product_names(layer):
            where = path.join(layer.path, name)
            number = math.prod(path.stack_shape(where))
            if where in quantized:
                count += number
            else:
                numbers[type(layer).__name__] += number
    return ProductCount(count, dict(numbers))


def _product_names(layer: Layer) -> list[str]:
    products = [one.product for one in layer_products(layer)]
    names = [product.name for product in products if not product.is_sum]
    is_leaf = sum(1 for _ in layer.tree()) == 1
    if type(layer).products or type(layer).flops is Layer.flops or not is_leaf:
        return names
    return [spec.path for spec in layer.declarations() if spec.decay is None and is_matrix(spec)]
