"""DLRM against slow NumPy: the networks, the products of pairs, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import EmbeddingTables, context
from lingo.layers.embedding import pack_tables
from lingo.layers.layer import Layer
from tasks.click.model import Dlrm, Mlp, lower_triangle

B, N, SIZES, D = 3, 2, (5, 4, 7), 4
DRAW = np.random.default_rng(0)


def dlrm(**fields: Any) -> Params:
    known = {
        "num_numbers": N,
        "vocab_sizes": SIZES,
        "bottom": Mlp.params(output_dims=(6, D)),
        "top": Mlp.params(output_dims=(5, 1)),
    }
    return Dlrm.params(**known | fields)


def inputs() -> tuple[np.ndarray, np.ndarray]:
    numbers = DRAW.normal(size=[B, N]).astype("f")
    return numbers, DRAW.integers(0, SIZES, [B, len(SIZES)]).astype("i")


def network(x: np.ndarray, weights: dict[str, np.ndarray], where: str, depth: int) -> np.ndarray:
    """Returns the products of a network, with a ReLU after each but the last of `top`."""
    for i in range(depth):
        x = x @ weights[f"{where}/layers/{i}/w"] + weights[f"{where}/layers/{i}/b"]
        x = x if (where, i) == ("top", depth - 1) else np.maximum(x, 0)
    return x


def test_the_logit_is_that_of_numpy(draw):
    layer, (numbers, categories) = dlrm().build(), inputs()
    weights = draw(layer)
    logits, _ = context.apply(layer, weights, numbers, tf.constant(categories))
    arrays = {where: value.numpy().astype("d") for where, value in weights.items()}
    for i in range(B):
        first = network(numbers[i], arrays, "bottom", 2)
        rows = [arrays[f"tables/table_{t}"][row] for t, row in enumerate(categories[i])]
        vectors = [first, *rows]
        pairs = [vectors[j] @ vectors[k] for j in range(len(vectors)) for k in range(j)]
        expected = network(np.array([*first, *pairs]), arrays, "top", 2)
        np.testing.assert_allclose(logits[i], expected[0], rtol=1e-5)


def test_packed_tables_make_the_same_logit(draw):
    numbers, categories = inputs()
    apart, packed = dlrm().build(), dlrm(tables=EmbeddingTables.params(num_groups=2)).build()
    weights = draw(apart)
    own = {where: value for where, value in weights.items() if not where.startswith("tables/")}
    packing = pack_tables(SIZES, num_groups=2)
    table = np.zeros([packing.num_rows, D], "f")
    for i, (first, size) in enumerate(zip(packing.first_rows, SIZES, strict=True)):
        table[first : first + size] = weights[f"tables/table_{i}"]
    own["tables/tables"] = tf.constant(table)
    expected, _ = context.apply(apart, weights, numbers, tf.constant(categories))
    found, _ = context.apply(packed, own, numbers, tf.constant(categories))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_pairs_are_below_the_diagonal_row_by_row():
    matrices = DRAW.normal(size=[2, 5, 5])
    expected = [[matrix[i, j] for i in range(5) for j in range(i)] for matrix in matrices]
    np.testing.assert_array_equal(lower_triangle(tf.constant(matrices)), expected)


def test_operations_are_those_of_the_graph(traced_flops):
    class Whole(Layer):
        model: Dlrm = dlrm()

        def setup(self) -> None:
            self.model = self.p.model.build()

        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            return self.model(x, tf.zeros([B, len(SIZES)], tf.int32))

    numbers, _ = inputs()
    assert dlrm().build().flops([B, N]) == traced_flops(Whole.params().build(), numbers)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (dlrm(top=Mlp.params(output_dims=(5, 2))), r"top.output_dims=\(5, 2\) does not end in one"),
        (Mlp.params(dim=3, output_dims=()), r"output_dims=\(\) computes nothing"),
        (Mlp.params(dim=3, output_dims=(4, 0)), "output_dims.* is not positive"),
    ],
)
def test_what_computes_no_logit_is_refused(params: Params, message: str):
    with pytest.raises(ParamError, match=message):
        params.build()
