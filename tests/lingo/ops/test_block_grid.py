"""Blocks of an axis: what is cut is joined again, and a loop is a loop in a graph, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.block_grid import BlockGrid, add_block, block_array, loop, zero_blocks


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
