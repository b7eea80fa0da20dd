"""Edit distances of a batch equal those of each pair of texts, computed in Python."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.metrics.transcript import edits
from lingo.ops.speech.edit_distance import edit_distances


@pytest.mark.parametrize("jit_compile", [False, True])
def test_distances_are_the_fewest_edits_of_each_pair(jit_compile: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 3, [60, 7]), rng.integers(0, 3, [60, 9])
    sizes, others = rng.integers(0, 8, 60), rng.integers(0, 10, 60)
    arguments = [tf.constant(x, tf.int32) for x in (a, sizes, b, others)]
    found = tf.function(edit_distances, jit_compile=jit_compile)(*arguments)
    expected = [
        edits(x[:n].tolist(), y[:m].tolist()).total
        for x, n, y, m in zip(a, sizes, b, others, strict=True)
    ]
    assert found.numpy().tolist() == expected
