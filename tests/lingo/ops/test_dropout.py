"""Dropout masks belong to examples."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops import random
from lingo.ops.dropout import dropout

KEY = random.root_key(1)
ROWS = np.array([0, 1, 2, 3, 4, 5], np.int32)


def ones(batch: int) -> tf.Tensor:
    return tf.ones([batch, 5, 4])


def test_elements_are_scaled_up_where_a_number_of_key_and_row_is_at_least_the_rate() -> None:
    y = dropout(ones(6), rate=0.2, key=KEY, rows=ROWS[::-1])
    uniform = random.uniform(random.fold(KEY, ROWS[::-1]), 5, 4)
    np.testing.assert_allclose(y, np.where(uniform >= np.float32(0.2), 1.25, 0))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_mask_is_the_same_in_a_graph_with_and_without_xla(jit_compile: bool) -> None:
    def drop(x: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        return dropout(x, rate=0.5, key=KEY, rows=rows)

    compiled = tf.function(drop, autograph=False, jit_compile=jit_compile)
    np.testing.assert_array_equal(compiled(ones(6), ROWS), drop(ones(6), ROWS))


def test_lengths_may_be_known_only_at_run_time() -> None:
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None, 4])])
    def drop(x: tf.Tensor) -> tf.Tensor:
        return dropout(x, rate=0.5, key=KEY, rows=tf.constant(ROWS))

    np.testing.assert_array_equal(drop(ones(6)), dropout(ones(6), rate=0.5, key=KEY, rows=ROWS))


def test_a_bfloat16_rate_is_not_rounded() -> None:
    # 0.9 in bfloat16 is 0.8984: all that is kept would be 0.2 % too large
    x = tf.cast(np.linspace(1, 2, 1000)[None, :, None], tf.bfloat16)
    y = dropout(x, rate=0.1, key=KEY, rows=ROWS[:1])
    assert y.dtype == tf.bfloat16
    kept = y.numpy().astype(np.float64)
    ratio = kept[kept > 0] * 0.9 / x.numpy().astype(np.float64)[kept > 0]
    np.testing.assert_allclose(ratio.mean(), 1.0, atol=5e-4)


@pytest.mark.parametrize(
    ("form", "shared"),
    [("element", ()), ("feature", (2,)), ("position", (3,)), ("example", (1, 2, 3))],
)
def test_a_form_says_what_is_dropped_together(form: str, shared: tuple[int, ...]) -> None:
    y = dropout(tf.ones([6, 3, 5, 4]), rate=0.5, key=KEY, rows=ROWS, form=form).numpy()
    for axis in range(1, 4):
        alike = (y == np.take(y, [0], axis)).all()
        assert alike == (axis in shared)
    assert set(np.unique(y)) == {0, 2}


@pytest.mark.parametrize("form", ["feature", "position"])
def test_features_of_positions_need_both_axes(form: str) -> None:
    with pytest.raises(ValueError, match=rf"form='{form}' needs \[B, ..., T, D\], got \(6, 4\)"):
        dropout(tf.ones([6, 4]), rate=0.5, key=KEY, rows=ROWS, form=form)
