"""Pairs in rows, against loops in Python."""

import numpy as np

from lingo.data.pairs.pair import Pair
from lingo.data.pairs.paired_input import join_rows, separate_rows
from lingo.data.tokenizer import ByteTokenizer

BYTES = ByteTokenizer.params().build()
PAD, END, START = BYTES.pad_id, BYTES.end_id, BYTES.start_id


def pair(source, target):
    return Pair(np.array(source, np.int32), np.array(target, np.int32))


ROWS = [
    [pair([10, 11, END], [20, END]), pair([12, END], [21, 22, END])],
    [],
    [pair([13, 14, 15, 16, END], [23, 24, 25])],
]


def test_sources_and_targets_of_a_pair_share_a_segment():
    out = separate_rows(ROWS, source_length=6, target_length=5, tokenizer=BYTES)
    assert out["source_tokens"].tolist() == [
        [10, 11, END, 12, END, PAD],
        [PAD] * 6,
        [13, 14, 15, 16, END, PAD],
    ]
    assert out["source_segments"].tolist() == [[1, 1, 1, 2, 2, 0], [0] * 6, [1, 1, 1, 1, 1, 0]]
    assert out["source_positions"].tolist() == [[0, 1, 2, 0, 1, 0], [0] * 6, [0, 1, 2, 3, 4, 0]]
    assert out["targets"].tolist() == [[20, END, 21, 22, END], [PAD] * 5, [23, 24, 25, PAD, PAD]]
    assert out["tokens"].tolist() == [
        [START, 20, START, 21, 22],
        [PAD] * 5,
        [START, 23, 24, PAD, PAD],
    ]
    assert out["segments"].tolist() == [[1, 1, 2, 2, 2], [0] * 5, [1, 1, 1, 0, 0]]
    assert out["positions"].tolist() == [[0, 1, 0, 1, 2], [0] * 5, [0, 1, 2, 0, 0]]


def test_in_one_row_a_target_follows_its_source_and_alone_counts():
    out = join_rows(ROWS, length=11, tokenizer=BYTES)
    for i, pairs in enumerate(ROWS):
        tokens, targets, segments, positions, prefix, weights = [], [], [], [], [], []
        for number, (source, target) in enumerate(pairs, 1):
            ids = [START, *source, *target]
            tokens += ids[:-1]
            targets += ids[1:]
            segments += [number] * (len(ids) - 1)
            positions += range(len(ids) - 1)
            prefix += [j <= len(source) for j in range(len(ids) - 1)]
            weights += [float(j >= len(source)) for j in range(len(ids) - 1)]
        padding = 11 - len(tokens)
        assert out["tokens"][i].tolist() == tokens + [PAD] * padding
        assert out["targets"][i].tolist() == targets + [PAD] * padding
        assert out["segments"][i].tolist() == segments + [0] * padding
        assert out["positions"][i].tolist() == positions + [0] * padding
        assert out["prefix"][i].tolist() == prefix + [False] * padding
        assert out["target_weights"][i].tolist() == weights + [0.0] * padding


def test_an_empty_target_takes_no_place():
    out = separate_rows(
        [[pair([10], []), pair([11], [20])]], source_length=2, target_length=1, tokenizer=BYTES
    )
    assert out["segments"].tolist() == [[2]]
