"""Pairs are packed so that both of their sides fit, each once."""

import numpy as np
import pytest

from lingo.data.pairs.pair_packing import best_fit_pairs

ROW = (64, 20)


def drawn(num_pairs, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(1, limit + 1, num_pairs) for limit in ROW], axis=1)


def slow_best_fit(lengths, row_lengths):
    """As the module says, looking at every row for every pair."""
    shares = lengths / np.array(row_lengths)
    first = int(np.argmax(shares.sum(axis=0)))
    rooms = []
    rows = [0] * len(lengths)
    for i in np.argsort(-shares.max(axis=1), kind="stable").tolist():
        sizes = lengths[i].tolist()
        fits = [r for r, room in enumerate(rooms) if (lengths[i] <= room).all()]
        if fits:
            rows[i] = min(fits, key=lambda r: (rooms[r][first], rooms[r][1 - first]))
        else:
            rooms.append(list(row_lengths))
            rows[i] = len(rooms) - 1
        for side in (0, 1):
            rooms[rows[i]][side] -= sizes[side]
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_the_plan_fills_rows_as_looking_at_every_row_would(seed):
    lengths = drawn(300, seed)
    rows = best_fit_pairs(lengths, ROW)
    assert rows.max() == max(slow_best_fit(lengths, ROW)) < 250
    for side in (0, 1):
        assert np.bincount(rows, lengths[:, side]).max() <= ROW[side]


def test_rows_without_room_on_one_side_take_no_more():
    assert best_fit_pairs(np.array([[1, 20], [1, 20], [63, 1]]), ROW).tolist() == [0, 1, 2]
    assert best_fit_pairs(np.array([[32, 10], [32, 10]]), ROW).tolist() == [0, 0]
