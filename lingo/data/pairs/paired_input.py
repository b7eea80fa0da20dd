"""Inputs whose rows hold sources and the targets that are predicted from them.

With an encoder and a decoder, source and target have separate rows; a decoder alone has one row.

Axes: B examples (rows), S tokens per source row, T tokens per target row (or per joined row).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from lingo.data.array_spec import ArraySpec
from lingo.data.document_input import PlannedInput
from lingo.data.pairs.pair import Pair
from lingo.data.prompt import Prompt
from lingo.data.tokenizer import Tokenizer

_SOURCE = ("source_tokens", "source_segments", "source_positions")
_TARGET = ("tokens", "targets", "segments", "positions")


class Lengths(NamedTuple):
    """Tokens per row."""

    source: int  # S
    target: int  # T
    decoder: int  # tokens of a row with source and target, for a decoder alone


class Row(NamedTuple):
    """The contents of a row."""

    pairs: Sequence[Pair]  # the pairs of the row, in order
    num_bytes: int  # bytes of the targets' text; end tokens and sentinels count 0


class PairedInput(PlannedInput):
    """Rows of sources and targets.

    A subclass plans its rows, and defines their lengths (`lengths`) and the pairs in each (`row`).
    """

    form: Literal["encoder_decoder", "decoder"] = "encoder_decoder"  # decoder: one joined row

    @property
    def lengths(self) -> Lengths:
        raise NotImplementedError(f"{type(self).__name__} has no lengths")

    def row(self, number: int) -> Row:
        """Returns the contents of the row with an `example_id`; no pairs after a single pass."""
        raise NotImplementedError(f"{type(self).__name__} has no row")

    def prompt(self, text: str) -> Prompt:
        return self.source_prompt(np.append(self.source_ids(text), self.tokenizer.end_id))

    def source_prompt(self, ids: Sequence[int] | np.ndarray) -> Prompt:
        """Returns the prompt of a source, ints [number of tokens], its end token included."""
        start, source = self.tokenizer.start_id, np.asarray(ids, np.int32)
        if self.p.form == "encoder_decoder":
            return Prompt(np.array([start], np.int32), source=source, is_answered=True)
        tokens = np.append(start, source).astype(np.int32)
        return Prompt(tokens, is_prefix=True, is_answered=True)

    def source_ids(self, text: str) -> np.ndarray:
        """Returns the ids of a source, int32 [number of tokens], without its end token."""
        return self.tokenizer.encode(text)

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arrays of `separate_rows`, or of `join_rows` for a decoder alone.

        There is also `bytes`: int32 [B], bytes of the targets' text.
        """
        rows = [self.row(number) for number in numbers.tolist()]
        pairs, lengths = [row.pairs for row in rows], self.lengths
        if self.p.form == "decoder":
            out = join_rows(pairs, length=lengths.decoder, tokenizer=self.tokenizer)
        else:
            out = separate_rows(
                pairs,
                source_length=lengths.source,
                target_length=lengths.target,
                tokenizer=self.tokenizer,
            )
        return out | {"bytes": np.array([row.num_bytes for row in rows], np.int32)}

    def specs(self) -> dict[str, ArraySpec]:
        size, lengths = self.p.batch_size, self.lengths
        if self.p.form == "decoder":
            specs = specs_of_joined_rows(size, length=lengths.decoder)
        else:
            specs = specs_of_separate_rows(
                size, source_length=lengths.source, target_length=lengths.target
            )
        return super().specs() | specs | {"bytes": ((size,), "int32")}


# ---- layout --------------------------------------------------------------------------------------


def separate_rows(
    rows: Sequence[Sequence[Pair]], *, source_length: int, target_length: int, tokenizer: Tokenizer
) -> dict[str, np.ndarray]:
    """Returns rows of sources, and rows of their targets; a row without pairs is padding.

    Returns:
        `source_tokens`: int32 [B, S];
        `source_segments`: int32 [B, S], i for pair i of a row, from 1; 0 for padding;
        `source_positions`: int32 [B, S], 0, 1, ... in each source;
        `targets`: int32 [B, T], tokens to predict;
        `tokens`: int32 [B, T], the token before each target; before a pair's first, `start_id`;
        `segments`, `positions`: int32 [B, T], like the source's, but for the targets.
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
        `tokens`, `targets`, `segments`, `positions`: int32 [B, T], as in `DocumentInput.fill_rows`,
            with source and target joined to one document;
        `prefix`: bool [B, T], whether a token is the start token or in the source; all tokens of
            the pair may attend to such tokens (`Prefix`);
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
