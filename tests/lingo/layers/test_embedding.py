"""A table of vectors, and several, however they are packed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import EmbeddingTables, context
from lingo.layers.context import apply
from lingo.layers.embedding import Embedding, pack_tables
from lingo.learner.state import initial_value
from lingo.mesh.rules import RECIPES, split
from lingo.mesh.topology import topology
from lingo.ops import random

LAYER = Embedding.params(vocab_size=7, dim=4)


def test_each_id_finds_its_row(draw: Callable) -> None:
    layer, ids = LAYER.build(), np.array([[0, 6, 6], [3, 2, 1]])
    weights = draw(layer)
    np.testing.assert_array_equal(apply(layer, weights, ids)[0], weights["table"].numpy()[ids])


def test_the_vectors_of_all_tokens_are_the_table(with_weights) -> None:
    layer, weights = with_weights(LAYER.build())
    vectors, _ = apply(layer, weights, method="vectors")
    np.testing.assert_array_equal(vectors, weights["table"])


def test_rows_start_with_length_one() -> None:
    spec = LAYER.build().weights()["table"]
    assert spec.fan_in == 4
    assert spec.axes == ("vocab", "embed")


def test_vectors_have_the_type_of_the_computation(draw: Callable) -> None:
    layer = LAYER.copy().set(dtype="bfloat16").build()
    assert apply(layer, draw(layer), [[1]])[0].dtype == tf.bfloat16
    assert apply(layer, draw(layer), method="vectors")[0].dtype == tf.bfloat16


def test_a_lookup_multiplies_nothing(traced_flops: Callable) -> None:
    layer = LAYER.build()
    assert layer.flops([2, 3]) == traced_flops(layer, tf.zeros([2, 3], tf.int32)) == 0


SIZES, D = (5, 2, 7, 3), 4
IDS = np.array([[0, 1, 6, 2], [4, 0, 3, 0], [4, 0, 3, 1]], np.int32)


def tables(**fields: Any) -> EmbeddingTables:
    return EmbeddingTables.params(vocab_sizes=SIZES, dim=D, **fields).build()


def values(layer: EmbeddingTables) -> dict[str, np.ndarray]:
    return {where: initial_value(spec, 3) for where, spec in layer.weights().items()}


def call(layer: EmbeddingTables) -> np.ndarray:
    return context.apply(layer, values(layer), tf.constant(IDS))[0].numpy()


def test_an_example_has_its_row_of_each_table():
    layer = tables()
    rows = values(layer)
    expected = [[rows[f"table_{t}"][i] for t, i in enumerate(ids)] for ids in IDS]
    np.testing.assert_array_equal(call(layer), expected)


@pytest.mark.parametrize("num_groups", [1, 2, 3, 6])
def test_packed_tables_have_the_values_of_tables_by_themselves(num_groups: int):
    np.testing.assert_array_equal(call(tables(num_groups=num_groups)), call(tables()))


def test_any_part_of_packed_tables_is_drawn_alone():
    (spec,) = tables(num_groups=3).weights().values()
    key = spec.init.key(random.root_key(3), "tables")
    drawn = spec.init.draw(key, spec.shape, fan_in=1)
    for low, high in itertools.combinations(range(len(drawn) + 1), 2):
        index = [slice(low, high), slice(1, 3)]
        part = spec.init.draw(key, spec.shape, fan_in=1, index=index)
        np.testing.assert_array_equal(part, drawn[low:high, 1:3])


def test_rows_have_the_variance_of_the_authors():
    layer = EmbeddingTables.params(vocab_sizes=(300, 30), dim=100).build()
    for table, size in zip(values(layer).values(), (300, 30), strict=True):
        np.testing.assert_allclose(table.var(), 1 / (3 * size), rtol=0.05)


@pytest.mark.parametrize(("sizes", "num_groups"), [(SIZES, 2), ((9, 9, 1), 3), ((1,) * 7, 4)])
def test_each_table_is_whole_in_one_group_and_overlaps_no_other(sizes, num_groups):
    packing = pack_tables(sizes, num_groups=num_groups)
    group_rows, rest = divmod(packing.num_rows, num_groups)
    used = [range(first, first + n) for first, n in zip(packing.first_rows, sizes, strict=True)]
    assert rest == 0
    assert all(rows[0] // group_rows == rows[-1] // group_rows for rows in used)
    assert len({row for rows in used for row in rows}) == sum(sizes)


def test_the_largest_group_is_within_a_third_of_the_best():
    draw = np.random.default_rng(0)
    for _ in range(20):
        sizes = draw.integers(1, 20, 6).tolist()
        best = min(
            max(sum(n for n, g in zip(sizes, groups, strict=True) if g == i) for i in range(3))
            for groups in itertools.product(range(3), repeat=6)
        )
        assert best <= pack_tables(sizes, num_groups=3).num_rows / 3 <= 4 / 3 * best


def test_small_tables_are_whole_on_every_device():
    mesh, rules = topology({"data": 2, "model": 4}), RECIPES["1d"].weights
    specs = tables(whole_below=5).weights().values()
    splits = [str(split(spec.shape, spec.axes, rules, mesh, uneven=True)) for spec in specs]
    assert splits == ["[model, -]", "[-, -]", "[model, -]", "[-, -]"]


def test_vectors_of_all_tables_have_the_type_of_the_computation():
    for num_groups in (None, 2):
        layer = tables(num_groups=num_groups, dtype="bfloat16")
        assert context.apply(layer, values(layer), tf.constant(IDS))[0].dtype == tf.bfloat16


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_sizes": ()}, r"vocab_sizes=\(\) has no table"),
        ({"vocab_sizes": (3, 0)}, "vocab_sizes.* is not positive"),
        ({"num_groups": 0}, "num_groups=0 is not positive"),
        ({"whole_below": -1}, "whole_below=-1"),
        ({"num_groups": 2, "whole_below": 3}, "whole_below=3 is for tables that are not packed"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ParamError, match=message):
        EmbeddingTables.params(**{"vocab_sizes": SIZES, "dim": D} | fields).build()
