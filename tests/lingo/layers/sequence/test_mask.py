"""Masks against a definition for one query and one key."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers.sequence.mask import Bidirectional, Causal, LocalWindow, Prefix

INDICES = tf.range(5)[None]
PREFIX = np.array([[True, True, False, False, False]])


@pytest.mark.parametrize(
    ("params", "sees"),
    [
        (Causal.params(), lambda q, k: k <= q),
        (Prefix.params(), lambda q, k: k <= q or k < 2),
        (LocalWindow.params(window=2), lambda q, k: q - 1 <= k <= q),
        (LocalWindow.params(window=1), lambda q, k: k == q),
        (LocalWindow.params(window=2, ahead=1), lambda q, k: q - 1 <= k <= q + 1),
    ],
)
def test_a_query_sees_these_keys(params: Params, sees: Callable) -> None:
    mask = params.build()
    expected = [[sees(q, k) for k in range(5)] for q in range(5)]
    np.testing.assert_array_equal(mask.sees(INDICES, INDICES, PREFIX)[0], expected)
    later = any(expected[q][k] for q in range(5) for k in range(q + 1, 5))
    assert mask.sees_later == later
    assert mask.has_steps == (not later or isinstance(mask, Prefix))


def test_bidirectional_hides_nothing() -> None:
    mask = Bidirectional.params().build()
    assert mask.sees(INDICES, INDICES) is None
    assert mask.sees_later
    assert not mask.has_steps


def test_a_prefix_mask_without_a_prefix_is_causal() -> None:
    mask = Prefix.params().build()
    np.testing.assert_array_equal(mask.sees(INDICES, INDICES)[0], np.tri(5, dtype=bool))


def test_only_a_window_has_a_reach() -> None:
    assert LocalWindow.params(window=3, ahead=1).build().reach == (2, 1)
    assert Causal.params().build().reach is None
