"""Rows in blocks, and back."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.blocks import Blocks

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
