"""Inputs whose rows hold sources and the targets that are predicted from them.

Axes: B examples (rows), S tokens per source row, T tokens per target row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from lingo.data.array_spec import ArraySpec
from lingo.data.document_input import PlannedInput
from lingo.data.pairs import layout
from lingo.data.pairs.pair import Pair
from lingo.data.prompt import Prompt


class Lengths(NamedTuple):
    """Tokens per row."""

    source: int  # S
    target: int  # T
    decoder: int  # tokens of a row with source and target, for a decoder alone


class Row(NamedTuple):
    """The contents of a row."""

    pairs: Sequence[Pair]  # in order
    num_bytes: int  # bytes of the text of the targets; ends and sentinels have none


class PairedInput(PlannedInput):
    """Rows of sources and targets.

    A subclass plans its rows, and defines their lengths (`lengths`) and the pairs in each (`row`).
    """

    form: Literal["encoder_decoder", "decoder"] = "encoder_decoder"  # decoder: all in one row

    @property
    def lengths(self) -> Lengths:
        raise NotImplementedError(f"{type(self).__name__} has no lengths")

    def row(self, number: int) -> Row:
        """Returns the contents of a row, by its `example_id`; no pairs beyond a single pass."""
        raise NotImplementedError(f"{type(self).__name__} has no row")

    def prompt(self, text: str) -> Prompt:
        return self.source_prompt(np.append(self.source_ids(text), self.tokenizer.end_id))

    def source_prompt(self, ids: Sequence[int] | np.ndarray) -> Prompt:
        """Returns the prompt of a source, ints [number of tokens], its end included."""
        start, source = self.tokenizer.start_id, np.asarray(ids, np.int32)
        if self.p.form == "encoder_decoder":
            return Prompt(np.array([start], np.int32), source=source, is_answered=True)
        tokens = np.append(start, source).astype(np.int32)
        return Prompt(tokens, is_prefix=True, is_answered=True)

    def source_ids(self, text: str) -> np.ndarray:
        """Returns the ids of a source, int32 [number of tokens], without its end."""
        return self.tokenizer.encode(text)

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arrays of `layout.separate_rows`, or for a decoder those of `join_rows`.

        There is also `bytes`: int32 [B], bytes of the text of the targets.
        """
        rows = [self.row(number) for number in numbers.tolist()]
        pairs, lengths = [row.pairs for row in rows], self.lengths
        if self.p.form == "decoder":
            out = layout.join_rows(pairs, length=lengths.decoder, tokenizer=self.tokenizer)
        else:
            out = layout.separate_rows(
                pairs,
                source_length=lengths.source,
                target_length=lengths.target,
                tokenizer=self.tokenizer,
            )
        return out | {"bytes": np.array([row.num_bytes for row in rows], np.int32)}

    def specs(self) -> dict[str, ArraySpec]:
        size, lengths = self.p.batch_size, self.lengths
        if self.p.form == "decoder":
            specs = layout.specs_of_joined_rows(size, length=lengths.decoder)
        else:
            specs = layout.specs_of_separate_rows(
                size, source_length=lengths.source, target_length=lengths.target
            )
        return super().specs() | specs | {"bytes": ((size,), "int32")}
