"""Memory that is written position by position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.memory import write_positions

RNG = np.random.default_rng(0)
OLD = RNG.normal(size=[2, 3, 5, 4]).astype(np.float32)
NEW = RNG.normal(size=[2, 3, 2, 4]).astype(np.float32)


@pytest.mark.parametrize("index", [0, 1, 3])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_new_positions_take_the_place_of_old_ones(index: int, jit_compile: bool) -> None:
    write = tf.function(write_positions, autograph=False, jit_compile=jit_compile)
    first, second = write([tf.constant(OLD), tf.constant(-OLD)], [NEW, -NEW], tf.constant(index))
    expected = OLD.copy()
    expected[:, :, index : index + 2] = NEW
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second, -expected)


def test_sizes_may_be_known_only_at_run_time() -> None:
    unknown = tf.TensorSpec([None, 3, None, 4])

    @tf.function(autograph=False, input_signature=[unknown, unknown, tf.TensorSpec([], tf.int32)])
    def write(old: Any, new: Any, index: Any) -> Any:
        return write_positions([old], [new], index)[0]

    expected = OLD.copy()
    expected[:, :, 1:3] = NEW
    np.testing.assert_array_equal(write(OLD, NEW, 1), expected)
