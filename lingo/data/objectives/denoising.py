"""Objectives on rows of running text: a part of each text is removed, and predicted from the rest.

Axes: B examples (rows), S tokens per source row, T tokens per target row, L tokens of text per row.
"""

from __future__ import annotations

import numpy as np

from lingo.data.packing import Packing, Stream
from lingo.data.pairs.pair import Pair
from lingo.data.pairs.paired_input import PairedInput, Row
from lingo.ops import random


class Denoising(PairedInput):
    """Rows of a stream of documents, each of which becomes one pair.

    The stream has an end token after each document and is cut every L tokens, as T5's is: a row may
    have several documents. An epoch has every token once. Which tokens of a row are removed depends
    on the seed and the row's `example_id`, so they differ from epoch to epoch.

    A subclass defines the length of a text (`text_length`) and of rows (`lengths`), which tokens
    are removed (`mask`), and the pair that results (`pair`).
    """

    @property
    def text_length(self) -> int:
        """L, the tokens of text per row."""
        raise NotImplementedError(f"{type(self).__name__} has no text_length")

    def mask(self, num_tokens: int, key: random.Key) -> np.ndarray:
        """Returns which of 2, ..., L tokens of a text to remove, bool [num_tokens].

        The words of the key are scalars on the host.
        """
        raise NotImplementedError(f"{type(self).__name__} has no mask")

    def pair(self, ids: np.ndarray, mask: np.ndarray) -> Pair:
        """Returns source and target of a text, int32 [num_tokens]; the mask is what is removed."""
        raise NotImplementedError(f"{type(self).__name__} has no pair")

    def row(self, number: int) -> Row:
        pieces = self.pieces(number)
        ids = np.concatenate([np.zeros(0, np.int32), *(self._sequence(p)[1:] for p in pieces)])
        if len(ids) < 2:  # no token, or the last one of an epoch, with nothing to predict it from
            return Row([], 0)
        mask = self.mask(len(ids), self._key(number))
        is_text = ids != self.tokenizer.end_id
        share = is_text[mask].sum() / max(is_text.sum(), 1)
        return Row([self.pair(ids, mask)], round(share * sum(map(self._num_bytes, pieces))))

    def _make_plan(self) -> Packing:
        seed = self.p.seed if self.p.shuffle else None
        return Stream(self.index.units + 1, row_length=self.text_length, seed=seed)

    def _key(self, number: int) -> random.Key:
        root = random.fold(random.root_key(self.p.seed), random.text_hash("denoising"))
        return random.fold(random.fold(root, number >> 32), number & 0xFFFFFFFF)
