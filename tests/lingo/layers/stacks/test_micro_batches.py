"""A batch in micro-batches: what comes to each, and what is no whole number of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import BatchNorm, Chain, Linear, PipelinedChain
from lingo.layers.stacks.micro_batches import (
    merge_microbatches,
    micro_batch_shape,
    split_microbatches,
)


def pipeline(num: int, statistics_over: int | None = None) -> Chain:
    norm = BatchNorm.params(dim=2, statistics_over=statistics_over)
    layers = [Linear.params(dim=2, output_dim=2), norm]
    return PipelinedChain.params(layers=layers, num_stages=1, num_micro_batches=num).build()


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((12, 2), (4, 2)), (((12, 2), (12,)), ((4, 2), (4,))), ([12, 5, 2], (4, 5, 2))],
)
def test_a_micro_batch_has_part_of_the_rows_and_all_of_the_rest(shape: Any, wanted: Any) -> None:
    assert micro_batch_shape(pipeline(3), shape) == wanted


@pytest.mark.parametrize(
    ("num", "over", "batch", "message"),
    [
        (3, None, 8, "8 rows cannot be cut into num_micro_batches=3 equal parts: a batch"),
        (3, None, 8, "has to be a multiple of 3"),
        (3, 4, 8, "equal parts of whole groups of 4 neighbouring rows, which layers inside"),
        (2, 8, 8, "has to be a multiple of 16"),
        (2, None, None, "an unknown number of rows cannot be cut into num_micro_batches=2"),
    ],
)
def test_what_does_not_divide_is_refused(num, over, batch, message):
    with pytest.raises(ParamError, match=re.escape(message)):
        micro_batch_shape(pipeline(num, over), (batch, 2))


def test_rows_that_are_split_are_merged_again() -> None:
    rows = tf.constant(np.arange(24).reshape(12, 2))
    parts = split_microbatches(rows, 3, 2)
    np.testing.assert_array_equal(parts[0, :, 0] // 2, [0, 1, 6, 7])
    np.testing.assert_array_equal(merge_microbatches(parts, 2), rows)
