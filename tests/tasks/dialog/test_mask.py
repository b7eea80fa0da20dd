"""What RatingMask shows, position by position."""

from __future__ import annotations

import numpy as np

from tasks.dialog.mask import RatingMask


def test_a_position_outside_of_the_prefix_is_seen_by_itself_alone() -> None:
    prefix = np.array([[True, True, False, False], [True, True, True, True]])
    indices = np.arange(4)[None]
    sees = np.asarray(RatingMask.params().build().sees(indices, indices, prefix))
    for b, q, k in np.ndindex(2, 4, 4):
        assert sees[b, q, k] == (k <= q and (prefix[b, k] or k == q))


def test_without_a_prefix_it_is_causal_and_has_steps() -> None:
    mask, indices = RatingMask.params().build(), np.arange(3)[None]
    np.testing.assert_array_equal(mask.sees(indices, indices), np.tril(np.ones((1, 3, 3), bool)))
    assert mask.has_steps
