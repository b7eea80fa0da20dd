"""Every token stands in exactly one row of an epoch; rows are found without those before them."""

import collections

import numpy as np
import pytest

from lingo.data.packing import Stream, pack_bins

LENGTHS = np.array([5, 1, 9, 3, 3, 14, 2])


def plans(row_length):
    return [
        Stream(LENGTHS, row_length=row_length, seed=None),
        Stream(LENGTHS, row_length=row_length, seed=7),
        pack_bins(LENGTHS, row_length=row_length),
    ]


@pytest.mark.parametrize("row_length", [1, 4, 37, 100])
def test_every_token_of_an_epoch_stands_in_exactly_one_row(row_length):
    everything = {(d, t): 1 for d, n in enumerate(LENGTHS) for t in range(n)}
    for plan in plans(row_length):
        for epoch in (0, 3):
            rows = [plan.row(epoch, r) for r in range(plan.num_rows)]
            found = collections.Counter(
                (p.document, t) for row in rows for p in row for t in range(p.begin, p.end)
            )
            assert found == everything
            assert all(p.begin < p.end for row in rows for p in row)
            assert all(0 < sum(p.end - p.begin for p in row) <= row_length for row in rows)


@pytest.mark.parametrize("row_length", [1, 4, 100])
def test_a_stream_is_cut_every_t_tokens(row_length):
    plan = Stream(LENGTHS, row_length=row_length, seed=None)
    stream = [(d, t) for d, n in enumerate(LENGTHS) for t in range(n)]
    for r in range(plan.num_rows):
        row = [(p.document, t) for p in plan.row(0, r) for t in range(p.begin, p.end)]
        assert row == stream[r * row_length : (r + 1) * row_length]


def test_bins_cut_no_document_that_fits_into_a_row():
    plan = pack_bins(LENGTHS, row_length=9)
    pieces = [p for r in range(plan.num_rows) for p in plan.row(0, r)]
    cut = collections.Counter(p.document for p in pieces)
    assert [d for d, n in cut.items() if n > 1] == [5]  # the only one longer than 9
    assert (5, 0, 9) in pieces
    assert (5, 9, 14) in pieces


def test_bins_are_those_of_a_plain_best_fit_decreasing():
    lengths = np.random.default_rng(0).integers(1, 65, 300)
    room = []
    for length in sorted(lengths.tolist(), reverse=True):
        fitting = [b for b in range(len(room)) if room[b] >= length]
        if not fitting:
            room.append(64)
            fitting = [len(room) - 1]
        room[min(fitting, key=lambda b: room[b])] -= length
    plan = pack_bins(lengths, row_length=64)
    used = [sum(p.end - p.begin for p in plan.row(0, r)) for r in range(plan.num_rows)]
    assert sorted(used) == sorted(64 - r for r in room)
