"""Pairs are packed so that both of their sides fit, each once."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.data.pairs.pair_packing import OneARow, PairBins, best_fit_pairs

ROW = (64, 20)


def drawn(num_pairs: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(1, limit + 1, num_pairs) for limit in ROW], axis=1)


def slow_best_fit(lengths: np.ndarray, row_lengths: tuple[int, int]) -> list[int]:
    """As the module says, looking at every row for every pair."""
    shares = lengths / np.array(row_lengths)
    first = int(np.argmax(shares.sum(axis=0)))
    rooms: list[list[int]] = []
    rows = [0] * len(lengths)
    for i in np.argsort(-shares.max(axis=1), kind="stable").tolist():
        sizes = lengths[i].tolist()
        fits = [
            r
            for r, room in enumerate(rooms)
            if all(s <= f for s, f in zip(sizes, room, strict=True))
        ]
        if fits:
            least = min((rooms[r][first], rooms[r][1 - first]) for r in fits)
            same = [r for r in fits if (rooms[r][first], rooms[r][1 - first]) == least]
            sizes_of_same = {tuple(rooms[r]) for r in same}
            assert len(sizes_of_same) == 1
            rows[i] = same[-1]
        else:
            rooms.append(list(row_lengths))
            rows[i] = len(rooms) - 1
        for side in (0, 1):
            rooms[rows[i]][side] -= sizes[side]
    return rows


def filled(lengths: np.ndarray, rows: np.ndarray) -> list[list[int]]:
    """Returns how much of every row both sides take, sorted."""
    return sorted(np.stack([np.bincount(rows, lengths[:, s]) for s in (0, 1)], 1).tolist())


@pytest.mark.parametrize("seed", range(3))
def test_the_plan_fills_rows_as_looking_at_every_row_would(seed: int) -> None:
    lengths = drawn(300, seed)
    rows = best_fit_pairs(lengths, ROW)
    assert rows.max() == max(slow_best_fit(lengths, ROW))
    assert (np.array(filled(lengths, rows)) <= ROW).all()


def test_every_pair_stands_in_one_row_whole() -> None:
    lengths, documents = drawn(200), np.arange(200) * 3
    plan = PairBins(documents, lengths, row_lengths=ROW)
    pieces = [piece for row in range(plan.num_rows) for piece in plan.row(0, row)]
    wanted = [(int(d), 0, int(n)) for d, n in zip(documents, lengths.sum(axis=1), strict=True)]
    assert sorted(pieces) == wanted
    assert plan.num_rows < 150


def test_rows_without_room_on_one_side_take_no_more() -> None:
    assert best_fit_pairs(np.array([[1, 20], [1, 20], [63, 1]]), ROW).tolist() == [0, 1, 2]
    assert best_fit_pairs(np.array([[32, 10], [32, 10]]), ROW).tolist() == [0, 0]


def test_unpacked_pairs_have_a_row_each() -> None:
    plan = OneARow(np.array([4, 7]), np.array([[1, 2], [3, 4]]))
    assert [plan.row(5, row) for row in range(plan.num_rows)] == [[(4, 0, 3)], [(7, 0, 7)]]
