"""Weights in rows: every device has an equal chunk, and a chunk is a few boxes of the weight."""

import itertools
import math

import numpy as np
import pytest

from lingo.mesh.split import Split
from lingo.mesh.tiles import tiles
from lingo.mesh.topology import topology
from lingo.mesh.weight_rows import WeightRows, read_rows, split_rows, weight_rows

MESH = topology({"data": 4, "model": 2})
CASES = [
    WeightRows(shape, parts, 4)
    for shape in [(7, 5), (10,), (2, 3, 7), (1, 3)]
    for parts in itertools.product(*([1, 2] for _ in shape))
]


def whole_rows(value: np.ndarray, rows: WeightRows) -> np.ndarray:
    """Returns weights [2, ...] in rows, by slow NumPy."""
    padded = np.zeros(
        [2, *(p * n for p, n in zip(rows.parts, rows.part_shape, strict=True))], np.float32
    )
    padded[tuple(map(slice, value.shape))] = value
    found = np.zeros([2, rows.num_rows, rows.row_size], np.float32)
    for number, part in enumerate(np.ndindex(*rows.parts)):
        index = [slice(i * n, (i + 1) * n) for i, n in zip(part, rows.part_shape, strict=True)]
        elements = padded[(slice(None), *index)].reshape(2, -1)
        found[:, number, : elements.shape[1]] = elements
    return found


@pytest.mark.parametrize("rows", CASES)
def test_chunks_are_read_and_put_back_as_boxes_of_the_weight(rows):
    value = np.arange(1, 1 + 2 * math.prod(rows.shape), dtype=np.float32).reshape(2, *rows.shape)
    expected, back = whole_rows(value, rows), np.zeros_like(value)
    for part, chunk in itertools.product(range(rows.num_rows), range(4)):
        columns = slice(chunk * rows.chunk_size, (chunk + 1) * rows.chunk_size)
        index = (slice(0, 2), slice(part, part + 1), columns)
        found = read_rows(value, index, rows)
        np.testing.assert_array_equal(found, expected[index])
        for where, elements in split_rows(found, index, rows, value.shape):
            assert not back[where].any()  # each element is in one box
            back[where] = elements
    np.testing.assert_array_equal(back, value)


def test_a_chunk_is_as_few_boxes_as_its_ends_allow():
    rows = WeightRows((4, 5, 6), (1, 1, 1), 2)
    assert [box.where for box in rows.boxes(0, 7, 100)] == [
        (slice(0, 1), slice(1, 2), slice(1, 6)),
        (slice(0, 1), slice(2, 5), slice(0, 6)),
        (slice(1, 3), slice(0, 5), slice(0, 6)),
        (slice(3, 4), slice(0, 1), slice(0, 6)),
        (slice(3, 4), slice(1, 2), slice(0, 4)),
    ]


def test_the_split_of_rows_is_that_of_an_array_of_parts_and_columns():
    split = Split(((), (), ("model",)), ("data",), 1)
    assert str(split) == "[-, -, model]/data"
    assert str(split.storage()) == "[-, model, data]"
    assert split.used_axes() == {"data", "model"}
    assert split.part_shape((3, 7, 5), MESH) == (3, 1, 6)  # a quarter of 7 * 3, rounded up
    assert split.padded_shape((3, 7, 5), MESH) == (3, 2, 24)
    assert split.part_size((3, 7, 5), MESH) == 18
    assert weight_rows((3, 7, 5), split, MESH) == WeightRows((7, 5), (1, 2), 4)
    assert tiles(split, MESH).tile_assignment_dimensions == (1, 2, 4)


def test_a_split_without_rows_has_none():
    assert weight_rows((7, 5), Split(((), ("model",))), MESH) is None
