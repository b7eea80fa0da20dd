"""A table's columns become features, whichever kinds of columns it has."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.learner.state import initial_value
from tasks.click.model import Mlp
from tasks.table.task import TableModel

NUMBERS = np.array([[1.0, np.nan], [3.0, -2.0]], "f")
CATEGORIES = np.array([[[3, 5]], [[-1, -1]]], "i")


def model(num_numbers: int, sizes: tuple[int, ...]) -> TableModel:
    hidden = Mlp.params(output_dims=(5,))
    params = TableModel.params(num_numbers=num_numbers, category_sizes=sizes, output_dim=3)
    return params.set(hidden=hidden).build()


def call(layer: TableModel, *inputs: np.ndarray | None) -> np.ndarray:
    weights = {k: tf.constant(initial_value(spec, 0)) for k, spec in layer.weights().items()}
    state = {k: tf.constant(initial_value(spec, 0)) for k, spec in layer.states().items()}
    given = [None if x is None else tf.constant(x) for x in inputs]
    return context.apply(layer, weights, *given, call={"state": state})[0].numpy()


def test_features_are_numbers_then_ids() -> None:
    layer = model(2, (4,))
    w = initial_value(layer.weights()["hidden/layers/0/w"], 0)
    head = initial_value(layer.weights()["head/w"], 0)
    # not fitted: numbers are unchanged, and each category but a missing one is unknown
    x = np.array([[1.0, 0.0, 1, 0, 0, 0, 0, 0], [3.0, -2.0, 0, 1, 0, 0, 0, 0]])
    np.testing.assert_allclose(
        call(layer, NUMBERS, CATEGORIES), np.maximum(x @ w, 0) @ head, rtol=1e-5
    )


@pytest.mark.parametrize(("num", "sizes", "dim"), [(2, (), 2), (0, (4, 1), 9), (1, (3,), 6)])
def test_a_table_may_lack_numbers_or_categories(num, sizes, dim) -> None:
    layer = model(num, sizes)
    assert layer.weights()["hidden/layers/0/w"].shape == (dim, 5)
    categories = np.repeat(CATEGORIES, max(1, len(sizes)), axis=1)
    y = call(layer, NUMBERS[:, :num] if num else None, categories if sizes else None)
    assert y.shape == (2, 3)
    assert layer.flops([7]) == 2 * 7 * (dim * 5 + 5 * 3)


def test_a_table_without_columns_is_refused() -> None:
    with pytest.raises(ParamError, match="neither a column of numbers nor one of categories"):
        model(0, ())
