"""DLRM, a model of clicks: from numbers and categories to a logit.

                     logit                         [B]
                      top                          a network of several layers
      bottom output, products of all pairs         [B, D + F (F - 1) / 2]
        bottom            tables                   F = T + 1 vectors, [B, F, D]
    numbers [B, N]    categories [B, T]

Axes: B batch, N numbers, T categorical features, F vectors, D their width.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import EmbeddingTables, FanIn, Layer, Linear, Product
from lingo.layers.context import annotate
from lingo.layers.residual import Residual, ResidualCall


class Mlp(Layer):
    """Matrix products with biases and a ReLU after each product, perhaps except the last.

    The initial weights keep the variance of activations (He et al. 2015, sec. 2.2); in the DLRM
    authors' program they are somewhat smaller, and biases start at random. Devices do not split the
    weights: nearly all weights of a DLRM are in its tables.
    """

    dim: int  # width of the input
    output_dims: tuple[int, ...]  # widths of the products' results
    activate_last: bool = True  # whether there is a ReLU after the last product
    layer: Layer = Linear.params(  # each product
        use_bias=True, init=FanIn.params(scale=2.0), axes=(None, None)
    )

    def check(self) -> None:
        ranges.check_positive(self.p, "dim", "output_dims")
        if not self.p.output_dims:
            raise ParamError("output_dims=() computes nothing: give at least one width")

    def setup(self) -> None:
        self.layers = [
            self.p.layer.build(dim=dim, output_dim=output_dim)
            for dim, output_dim in pairwise((self.p.dim, *self.p.output_dims))
        ]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, F], in the layer's dtype, for x, [B, D], any float type."""
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i + 1 < len(self.layers) or self.p.activate_last:
                x = tf.nn.relu(x)
            x = annotate(x, "batch", None)
        return x

    def flops(self, shape: Sequence[int]) -> int:
        total = 0
        for layer, dim in zip(self.layers, self.p.output_dims, strict=True):
            total += layer.flops(shape)
            shape = [shape[0], dim]
        return total


class Dlrm(Layer):
    """The deep learning recommendation model (Naumov et al. 2019, sec. 2).

    One network maps the numbers of an example to a vector; tables have a vector for each of the
    example's categories. Another network maps the dot products of all pairs of these vectors,
    together with the first vector, to the logit of a click.
    """

    num_numbers: int  # N; the task offers it
    vocab_sizes: tuple[int, ...]  # of the categorical features; the task offers it
    bottom: Mlp  # of the numbers; its last width is D
    top: Mlp  # of the products; its last width is 1
    tables: EmbeddingTables = EmbeddingTables  # of the categories

    products = (Product("pairs", ("left", "right"), has_weight=False),)

    def setup(self) -> None:
        p = self.p
        dim, num_vectors = p.bottom.output_dims[-1], len(p.vocab_sizes) + 1
        if p.top.output_dims[-1] != 1:
            raise ParamError(f"top.output_dims={p.top.output_dims} does not end in one logit")
        self.bottom = p.bottom.build(dim=p.num_numbers)
        self.tables = p.tables.build(vocab_sizes=p.vocab_sizes, dim=dim)
        num_pairs = num_vectors * (num_vectors - 1) // 2
        self.top = p.top.build(dim=dim + num_pairs, activate_last=False)

    def __call__(self, numbers: tf.Tensor, categories: tf.Tensor) -> tf.Tensor:
        """Returns the logits of a click, float32 [B].

        Args:
            numbers: [B, N], any float type.
            categories: int32 [B, T], each below the vocabulary size of its feature.
        """
        first = self.bottom(numbers)
        vectors = tf.concat([first[:, None], self.tables(categories)], axis=1)
        left, right = self.operands("pairs", left=vectors, right=vectors)
        products = lower_triangle(tf.einsum("bfd,bgd->bfg", left, right))
        logits = self.top(annotate(tf.concat([first, products], axis=1), "batch", None))
        return tf.cast(logits[:, 0], tf.float32)

    def flops(self, shape: Sequence[int]) -> int:
        batch, _ = shape
        num_vectors, dim = len(self.p.vocab_sizes) + 1, self.tables.p.dim
        pairs = 2 * batch * num_vectors**2 * dim
        return self.bottom.flops(shape) + pairs + self.top.flops([batch, self.top.p.dim])

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        batch, num_vectors = call.shape[0], len(self.p.vocab_sizes) + 1
        axes = ("batch", None, None)
        vectors = Residual(1, (batch, num_vectors, self.tables.p.dim), axes)
        # the products' gradient: its transpose is the largest tensor of the step
        products = Residual(1, (batch, num_vectors, num_vectors), axes)
        return [*(self.tables.residuals(call) or ()), vectors, products]


def lower_triangle(matrices: tf.Tensor) -> tf.Tensor:
    """Returns the elements below the diagonals of square matrices, row by row.

    Args:
        matrices: [B, F, F], any type.

    Returns:
        [B, F (F - 1) / 2], the same type.

    >>> lower_triangle(tf.reshape(tf.range(9), [1, 3, 3])).numpy()
    array([[3, 6, 7]], dtype=int32)
    """
    size: Any = matrices.shape[-1]
    rows, columns = np.tril_indices(size, -1)
    flat = tf.reshape(matrices, [-1, size * size])
    return tf.gather(flat, rows * size + columns, axis=1)
