"""Rows of BERT: `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, then padding (Devlin et al. 2019).

Axes: B rows, T tokens per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lingo.data.array_spec import ArraySpec
from lingo.data.tokenizer import Tokenizer

ARRAYS = ("tokens", "types", "segments")
"""What a row has of its texts."""


def row_specs(num_rows: int, *, length: int) -> dict[str, ArraySpec]:
    """Returns name -> (shape, dtype) of `ARRAYS`, [B, T]."""
    return {name: ((num_rows, length), "int32") for name in ARRAYS}


def blank_rows(num_rows: int, *, length: int, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Returns `ARRAYS` of rows with nothing but padding, int32 [B, T]."""
    out = {name: np.zeros((num_rows, length), np.int32) for name in ARRAYS}
    out["tokens"][:] = tokenizer.pad_id
    return out


def fill_row(
    row: Mapping[str, np.ndarray], texts: Sequence[np.ndarray], *, tokenizer: Tokenizer
) -> int:
    """Writes one or two texts, int32 [their tokens], into `ARRAYS` of a blank row, int32 [T].

    `tokens` has the tokenizer's start, and an end after each text; `types` is the number of a
    token's text, 0 or 1; `segments` is 1. Returns how many tokens the row has.
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


def cut_pair(texts: Sequence[np.ndarray], *, max_tokens: int) -> list[np.ndarray]:
    """Returns texts with at most `max_tokens` in all. The longest loses its last token repeatedly.

    >>> [ids.tolist() for ids in cut_pair([np.arange(5), np.arange(2)], max_tokens=5)]
    [[0, 1, 2], [0, 1]]
    """
    sizes = [len(ids) for ids in texts]
    while sum(sizes) > max_tokens:
        sizes[sizes.index(max(sizes))] -= 1
    return [ids[:size] for ids, size in zip(texts, sizes, strict=True)]
