"""A model of tables: columns become one vector per row, which goes through a network.

        output                        [B, K]
        network                       layers with a ReLU, then a matrix product
    z of numbers, one-hot categories  [B, D]
      numbers        categories       [B, N], [B, T, 2]

Axes: B rows, N columns of numbers and dates, T columns of categories, D features, K outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import FanIn, Layer, Linear, Normalize, OneHot, Vocabulary
from lingo.layers.context import annotate
from lingo.layers.residual import Residual, ResidualCall
from tasks.click.model import Mlp


class TableModel(Layer):
    """A network of normalized numbers and one-hot categories.

    The columns of numbers are normalized by the training rows. A category is a vector that is 1 at
    its id in the vocabulary of its column, where unknown and missing categories have their own ids.
    """

    num_numbers: int  # N; the task offers it
    category_sizes: tuple[int, ...]  # most known categories per column, [T]; the task offers it
    output_dim: int  # K; the task offers it
    numbers: Normalize = Normalize  # of the columns of numbers and dates
    categories: Vocabulary = Vocabulary  # ids of the categories
    one_hot: OneHot = OneHot  # vectors of the ids
    hidden: Mlp = Mlp.params(output_dims=(64, 64))  # the network before the last product
    head: Linear = Linear.params(use_bias=True, init=FanIn, axes=(None, None))  # the last product

    def check(self) -> None:
        if not self.p.num_numbers and not self.p.category_sizes:
            raise ParamError("the table has neither a column of numbers nor one of categories")

    def setup(self) -> None:
        p, dim = self.p, self.p.num_numbers
        if p.num_numbers:
            self.numbers = p.numbers.build(dim=p.num_numbers)
        if p.category_sizes:
            self.categories = p.categories.build(sizes=p.category_sizes)
            self.one_hot = p.one_hot.build(sizes=self.categories.id_counts)
            dim += self.one_hot.output_dim
        self.hidden = p.hidden.build(dim=dim)
        self.head = p.head.build(dim=p.hidden.output_dims[-1], output_dim=p.output_dim)

    def __call__(
        self, numbers: tf.Tensor | None = None, categories: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns the outputs, float32 [B, K].

        Args:
            numbers: [B, N], any float type, NaN where missing; None: the table has no numbers.
            categories: int32 [B, T, 2], fingerprints (`lingo.ops.fingerprint`); None: the table has
                no categories.
        """
        features = []
        if numbers is not None:
            features.append(self.numbers(numbers))
        if categories is not None:
            features.append(self.one_hot(self.categories(categories)))
        x = annotate(tf.concat(features, axis=-1), "batch", None)
        return tf.cast(self.head(self.hidden(x)), tf.float32)

    def flops(self, shape: Sequence[int]) -> int:
        return self.hidden.flops([shape[0], self.hidden.p.dim]) + self.head.flops(
            [shape[0], self.head.p.dim]
        )

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []  # products keep their inputs
