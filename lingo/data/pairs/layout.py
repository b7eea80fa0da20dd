"""Layout of pairs in rows: two rows for encoder and decoder, or one row for a decoder alone.

Axes: B examples (rows), S tokens per source row, T tokens per target row (or per joined row).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lingo.data.array_spec import ArraySpec
from lingo.data.pairs.pair import Pair
from lingo.data.tokenizer import Tokenizer

_SOURCE = ("source_tokens", "source_segments", "source_positions")
_TARGET = ("tokens", "targets", "segments", "positions")


def separate_rows(
    rows: Sequence[Sequence[Pair]], *, source_length: int, target_length: int, tokenizer: Tokenizer
) -> dict[str, np.ndarray]:
    """Returns rows of sources, and rows of their targets; a row without pairs is padding.

    Returns:
        `source_tokens`: int32 [B, S];
        `source_segments`: int32 [B, S], i for pair i of a row, from 1; 0 for padding;
        `source_positions`: int32 [B, S], 0, 1, ... in each source;
        `targets`: int32 [B, T], tokens to predict;
        `tokens`: int32 [B, T], the token before each target, the start before the first of a pair;
        `segments`, `positions`: int32 [B, T], likewise for the targets.
    """
    out = {name: np.zeros((len(rows), source_length), np.int32) for name in _SOURCE}
    out |= {name: np.zeros((len(rows), target_length), np.int32) for name in _TARGET}
    for name in ("source_tokens", "tokens", "targets"):
        out[name][:] = tokenizer.pad_id
    for i, pairs in enumerate(rows):
        row = {name: array[i] for name, array in out.items()}
        begin = at = 0
        for segment, pair in enumerate(pairs, 1):
            here = slice(begin, begin + len(pair.source))
            row["source_tokens"][here] = pair.source
            row["source_segments"][here] = segment
            row["source_positions"][here] = np.arange(len(pair.source))
            _predict(row, slice(at, at + len(pair.target)), segment, pair.target, tokenizer)
            begin, at = here.stop, at + len(pair.target)
    return out


def join_rows(
    rows: Sequence[Sequence[Pair]], *, length: int, tokenizer: Tokenizer
) -> dict[str, np.ndarray]:
    """Returns rows in which every target follows its source; a row without pairs is padding.

    Returns:
        `tokens`, `targets`, `segments`, `positions`: int32 [B, T], as `DocumentInput.fill_rows`,
            with source and target joined to one document;
        `prefix`: bool [B, T], whether a token is the start or in the source: the whole pair may
            attend to these (`Prefix`);
        `target_weights`: float32 [B, T], 1 where `targets` is in the target, else 0.
    """
    out = {name: np.zeros((len(rows), length), np.int32) for name in _TARGET}
    out["tokens"][:] = out["targets"][:] = tokenizer.pad_id
    prefix, weights = np.zeros((len(rows), length), bool), np.zeros((len(rows), length), np.float32)
    for i, pairs in enumerate(rows):
        row, at = {name: array[i] for name, array in out.items()}, 0
        for segment, pair in enumerate(pairs, 1):
            ids = np.concatenate([pair.source, pair.target])
            _predict(row, slice(at, at + len(ids)), segment, ids, tokenizer)
            source_end = at + len(pair.source)
            prefix[i, at : source_end + 1] = True
            weights[i, source_end : at + len(ids)] = 1
            at += len(ids)
    return out | {"prefix": prefix, "target_weights": weights}


def specs_of_separate_rows(
    batch_size: int, *, source_length: int, target_length: int
) -> dict[str, ArraySpec]:
    """Returns name -> (shape, dtype) of what `separate_rows` returns for a whole batch."""
    source, target = (batch_size, source_length), (batch_size, target_length)
    specs: dict[str, ArraySpec] = {name: (source, "int32") for name in _SOURCE}
    return specs | {name: (target, "int32") for name in _TARGET}


def specs_of_joined_rows(batch_size: int, *, length: int) -> dict[str, ArraySpec]:
    """Returns name -> (shape, dtype) of what `join_rows` returns for a whole batch."""
    shape = (batch_size, length)
    specs: dict[str, ArraySpec] = {name: (shape, "int32") for name in _TARGET}
    return specs | {"prefix": (shape, "bool"), "target_weights": (shape, "float32")}


def _predict(
    row: dict[str, np.ndarray], here: slice, segment: int, ids: np.ndarray, tokenizer: Tokenizer
) -> None:
    """Writes a sequence, to be predicted token by token, into a row's arrays, each [T]."""
    if len(ids):
        row["targets"][here] = ids
        row["tokens"][here] = np.concatenate([[tokenizer.start_id], ids[:-1]])
        row["segments"][here] = segment
        row["positions"][here] = np.arange(len(ids))
