"""Rows of BERT: `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, then padding (Devlin et al. 2019).

Axes: B rows, T tokens per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lingo.data.array_spec import ArraySpec
from lingo.data.tokenizer import Tokenizer

ROW_ARRAYS = ("tokens", "types", "segments")
"""The arrays of a row that hold its texts."""


def row_specs(num_rows: int, *, length: int) -> dict[str, ArraySpec]:
    """Returns name -> (shape, dtype) of `ROW_ARRAYS`, [B, T]."""
    return {name: ((num_rows, length), "int32") for name in ROW_ARRAYS}


def blank_rows(num_rows: int, *, length: int, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Returns `ROW_ARRAYS` of rows of padding, int32 [B, T]."""
    out = {name: np.zeros((num_rows, length), np.int32) for name in ROW_ARRAYS}
    out["tokens"][:] = tokenizer.pad_id
    return out


def fill_row(
    row: Mapping[str, np.ndarray], texts: Sequence[np.ndarray], *, tokenizer: Tokenizer
) -> int:
    """Writes one or two texts, int32 [their tokens], into `ROW_ARRAYS` of a blank row, int32 [T].

    `tokens` gets the tokenizer's start token, and its end token after each text. `types` gets the
    number of each token's text, 0 or 1; `segments` gets 1. Returns the number of tokens in the row.
    """
    at = 1
    row["tokens"][0] = tokenizer.start_id
    for number, ids in enumerate(texts):
        end = at + len(ids)
        row["tokens"][at:end], row["tokens"][end] = ids, tokenizer.end_id
        row["types"][at : end + 1] = number
        at = end + 1
    row["segments"][:at] = 1
    return at


def cut_texts(texts: Sequence[np.ndarray], *, max_tokens: int) -> list[np.ndarray]:
    """Returns one or two texts with at most `max_tokens` in all, by cutting the longer one first.

    Two texts are cut to the same length, up to one token, before the shorter one loses any token.

    >>> [ids.tolist() for ids in cut_texts([np.arange(5), np.arange(2)], max_tokens=5)]
    [[0, 1, 2], [0, 1]]
    """
    if len(texts) == 1:
        return [texts[0][:max_tokens]]
    first, second = texts
    size = max(max_tokens - len(second), min(len(first), max_tokens // 2))
    first = first[:size]
    return [first, second[: max_tokens - len(first)]]
