"""Rows in blocks, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.blocks import BlockGrid, Blocks, add_block, block_array, loop, zero_blocks

X = np.arange(1, 15, dtype=np.int32).reshape(2, 7)  # [B, T]


def test_rows_are_cut_and_the_last_block_is_filled_up() -> None:
    expected = [[1, 2, 3], [4, 5, 6], [7, 0, 0], [8, 9, 10], [11, 12, 13], [14, 0, 0]]
    np.testing.assert_array_equal(Blocks(3, before=True).split(tf.constant(X)), expected)


def test_blocks_have_their_neighbours_beside_them() -> None:
    both = Blocks(3, before=True, after=True).split_with_neighbors(tf.constant(X[:1]))
    expected = [
        [0, 0, 0, 1, 2, 3, 4, 5, 6],
        [1, 2, 3, 4, 5, 6, 7, 0, 0],
        [4, 5, 6, 7, 0, 0, 0, 0, 0],
    ]
    np.testing.assert_array_equal(both, expected)
    before = Blocks(3, before=True).split_with_neighbors(tf.constant(X[:1]))
    np.testing.assert_array_equal(before, np.array(expected)[:, :6])


@pytest.mark.parametrize("size", [1, 3, 7, 9])
def test_rows_undo_blocks(size: int) -> None:
    x = np.random.default_rng(0).normal(size=[2, 7, 2, 3])
    np.testing.assert_array_equal(Blocks(size).join(Blocks(size).split(tf.constant(x)), 7), x)


@pytest.mark.parametrize("length", [1, 5, 8, 9])
@pytest.mark.parametrize("axis", [0, 2])
def test_join_undoes_the_cut(length: int, axis: int) -> None:
    shape = [2, 3, 4]
    shape[axis] = length
    x = tf.reshape(tf.range(np.prod(shape)), shape)
    grid = BlockGrid(length, most=4)
    padded, array = grid.pad(x, axis), block_array(x.dtype, grid.count)
    for i in range(grid.count):
        block = grid.block(padded, i, axis)
        assert block.shape[axis] == grid.size <= 4
        array = array.write(i, block)
    np.testing.assert_array_equal(grid.join(array, axis), x)


def test_blocks_have_equal_sizes_and_little_padding() -> None:
    grid = BlockGrid(9, most=4)
    assert (grid.count, grid.size, grid.padding) == (3, 3, 0)
    grid = BlockGrid(10, most=4)
    assert (grid.count, grid.size, grid.padding) == (3, 4, 2)


@pytest.mark.parametrize("in_graph", [False, True])
def test_sums_of_blocks_are_kept_apart(in_graph: bool) -> None:
    def compute(stop: tf.Tensor) -> tf.Tensor:
        def add(i: Any, sums: tf.TensorArray) -> tf.TensorArray:
            return add_block(sums, i % 2, tf.fill([3], tf.cast(i, tf.float16)))

        return loop(1, stop, add, zero_blocks(2, tf.ones([3], tf.float16))).stack()

    sums = (tf.function(compute) if in_graph else compute)(tf.constant(5))
    assert sums.dtype == tf.float32
    np.testing.assert_array_equal(sums, [[6, 6, 6], [4, 4, 4]])
