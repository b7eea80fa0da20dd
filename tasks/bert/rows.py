"""Rows of BERT: `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, then padding (Devlin et al. 2019).

Axes: T tokens per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lingo.data.tokenizer import Tokenizer


def fill_row(
    row: Mapping[str, np.ndarray], texts: Sequence[np.ndarray], *, tokenizer: Tokenizer
) -> None:
    """Writes one or two texts, int32 [their tokens], into the arrays of a row, int32 [T].

    `tokens` has the texts after the tokenizer's start and before an end each; `types` is the number
    of a token's text, 0 or 1; `segments` is 1 there. What follows them stays as it is.
    """
    at = 1
    row["tokens"][0] = tokenizer.start_id
    for number, ids in enumerate(texts):
        end = at + len(ids)
        row["tokens"][at:end], row["tokens"][end] = ids, tokenizer.end_id
        row["types"][at : end + 1] = number
        at = end + 1
    row["segments"][:at] = 1


def cut_pair(texts: Sequence[np.ndarray], *, max_tokens: int) -> list[np.ndarray]:
    """Returns texts with at most so many tokens in all: the longest loses its last, one by one.

    >>> [ids.tolist() for ids in cut_pair([np.arange(5), np.arange(2)], max_tokens=5)]
    [[0, 1, 2], [0, 1]]
    """
    sizes = [len(ids) for ids in texts]
    while sum(sizes) > max_tokens:
        sizes[sizes.index(max(sizes))] -= 1
    return [ids[:size] for ids, size in zip(texts, sizes, strict=True)]
